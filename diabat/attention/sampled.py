r"""Autograd through a sampler whose moments have no derivative: forward by the sampler, backward by an estimator.

``torch.func.vmap`` does not trace either pass; the mapped dimension becomes part of the batch.  Estimators give first
derivatives in reverse; second and forward derivatives raise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from diabat.attention import estimators
from diabat.edges import Edges
from diabat.ising import Ising, without_autocast
from diabat.samplers import folding
from diabat.samplers.answers import Moments
from diabat.samplers.base import Sampler
from diabat.samplers.capabilities import Estimator, UnsupportedError
from diabat.samplers.folding import Terms, dims_of, folded_terms
from diabat.samplers.state import in_place

Maybe = Tensor | None


@dataclass(frozen=True, eq=False)
class Draw:
    """One call: sampler, estimator, number of reads and seed.

    Attributes:
        ising: The problem, detached; None under a transform of torch.func, which changes its tensors.
        edges: The edges whose values take the place of J; None for matrices.
    """

    sampler: Sampler
    estimator: Estimator
    num_reads: int | None
    seed: int | None
    ising: Ising | None = None
    edges: Edges | None = None

    @property
    def takes_edges(self) -> bool:
        """Whether sampler and estimator need no matrix of couplings."""
        return self.sampler.capabilities.edges and self.estimator in ("straight_through", "covariance")

    def problem(self, terms: Terms) -> Ising:
        """The problem of these terms, detached."""
        if self.ising is not None:
            return self.ising
        return Ising(terms.fields, terms.couplings, terms.visible, terms.three_body, check=False).detach()


def sampled_probabilities(ising: Ising, draw: Draw) -> Tensor:
    """Smoothed P(s = +1), differentiable once in h, J, K and the sampler's parameters by the estimator."""
    transformed = torch._C._are_functorch_transforms_active()
    if ising.edges is not None and (transformed or not draw.takes_edges or ising.three_body is not None):
        ising = ising.dense()
    J = ising.matrix if ising.edges is None else ising.edges.values
    terms = Terms(ising.fields, J, ising.three_body, ising.visible)
    if not transformed:  # transforms pass other tensors to the forward pass
        draw = replace(draw, ising=ising.detach(), edges=ising.edges)
    # No other estimator differentiates the law with respect to the sampler's parameters.
    parameters = draw.sampler.parameters() if draw.estimator == "adjoint" else ()
    result: Any = _Sampled.apply(*terms, draw, *parameters)
    probability: Tensor = result[0]
    return probability


def refuse_forward(estimator: str, sampler: Sampler) -> NoReturn:
    """Raise UnsupportedError for a forward derivative of what an estimator differentiates."""
    raise UnsupportedError(
        "gradient",
        f"estimator '{estimator}' of sampler '{sampler.name}' has derivatives in reverse only, got a forward one "
        "(jvp, jacfwd or hessian of torch.func); use torch.func.grad, or sampler 'exact' or 'banded'.",
    )


def refuse_second(estimator: str, sampler: Sampler) -> NoReturn:
    """Raise UnsupportedError for a second derivative of what an estimator differentiates."""
    raise UnsupportedError(
        "gradient",
        f"estimator '{estimator}' of sampler '{sampler.name}' has first derivatives only, got a second one; use "
        "sampler 'exact' or 'banded'.",
    )


def first_only(gradient: Tensor, estimator: str, sampler: Sampler, *given: Tensor) -> Tensor:
    """The gradient of an estimator, computed from ``given``: its own derivatives raise UnsupportedError."""
    found: Tensor = _FirstDerivative.apply(gradient, estimator, sampler, *given)
    return found


class _FirstDerivative(torch.autograd.Function):
    """(gradient, estimator, sampler, what the gradient depends on) -> the gradient, which has no derivative itself."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor, estimator: str, sampler: Sampler, *given: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, *ctx.names = inputs[:3]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> NoReturn:
        refuse_second(*ctx.names)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> NoReturn:
        refuse_second(*ctx.names)


def _moments_and_reads(draw: Draw, ising: Ising) -> tuple[Moments, Maybe, Maybe]:
    """Compute moments and, for the estimator that uses them, the reads and their weights."""
    if draw.estimator != "covariance":
        return draw.sampler.moments(ising, num_reads=draw.num_reads, seed=draw.seed), None, None
    samples = draw.sampler.sample(ising, draw.num_reads or draw.sampler.num_reads, seed=draw.seed)
    return samples.moments(dtype=ising.fields.dtype), samples.spins, samples.weights


class _Sampled(torch.autograd.Function):
    """(h, J, K, visible, draw, parameters) -> smoothed P, and inputs of the estimator: P, (1 + t)/2, spins, weights."""

    @staticmethod
    def forward(
        fields: Tensor, couplings: Maybe, three_body: Maybe, visible: Maybe, draw: Draw, *parameters: Tensor
    ) -> tuple[Maybe, ...]:
        ising = draw.problem(Terms(fields, couplings, three_body, visible))
        with without_autocast(fields), in_place(draw.sampler, parameters):
            moments, spins, weights = _moments_and_reads(draw, ising)
            p, at = moments.probability, None
            own_law = draw.sampler.capabilities.law != "boltzmann"
            if own_law and draw.estimator in ("straight_through", "linear_response"):
                at = estimators.mean_field_probability(
                    ising.fields, ising.held_couplings, ising.three_body, p, ising.visible_mask
                )
        return moments.smoothed_probability.clone(), p, at, spins, weights

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        fields, couplings, three_body, visible, ctx.draw, *parameters = inputs
        seen = output[1:]
        ctx.save_for_backward(fields, couplings, three_body, visible, *seen, *parameters)
        ctx.mark_non_differentiable(*(t for t in seen if t is not None))

    @staticmethod
    def backward(ctx: Any, v: Tensor, *rest: Any) -> tuple[Maybe, ...]:
        wanted = (*ctx.needs_input_grad[1:3], any(ctx.needs_input_grad[5:]))
        # The parameters of the forward pass may differ from those of the sampler now (torch.func.functional_call).
        seen, parameters = ctx.saved_tensors[:8], ctx.saved_tensors[8:]
        found: Any = _Estimated.apply(*seen, v, ctx.draw, wanted, *parameters)
        h, J, K, *of_parameters = found
        return h, J, K, None, None, *(of_parameters or [None] * len(parameters))

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> NoReturn:
        refuse_forward(ctx.draw.estimator, ctx.draw.sampler)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        *terms, draw = inputs[:5]
        if any(dim is not None for dim in in_dims[5:]):
            raise UnsupportedError(
                "gradient", "vmap over parameters of the anneal is unsupported; map other inputs only."
            )
        folded = folded_terms(Terms(*terms), in_dims[:4], info.batch_size)
        found: Any = _Sampled.apply(*folded, replace(draw, ising=None), *inputs[5:])
        smoothed, p, at, spins, weights = found
        behind_reads = tuple(None if t is None else 1 for t in (spins, weights))
        return found, (*dims_of(smoothed, p, at), *behind_reads)


class _Estimated(torch.autograd.Function):
    """The estimator: a pure function of the cotangent v and of inputs and outputs of the forward pass."""

    @staticmethod
    def forward(
        fields: Tensor,
        couplings: Maybe,
        three_body: Maybe,
        visible: Maybe,
        p: Tensor,
        at: Maybe,
        spins: Maybe,
        weights: Maybe,
        v: Tensor,
        draw: Draw,
        wanted: tuple[bool, ...],
        *parameters: Tensor,
    ) -> tuple[Maybe, ...]:
        with without_autocast(fields):
            ising = draw.problem(Terms(fields, couplings, three_body, visible))
            mask = ising.visible_mask
            if draw.estimator in ("adjoint", "covariance"):
                folding.refuse_batched_cotangent(v)
            if draw.estimator == "adjoint":
                with in_place(draw.sampler, parameters):
                    exact = draw.sampler.adjoint(ising, v, seed=draw.seed or 0)
                of_parameters = exact.parameters if wanted[2] else ()
                return exact.fields, exact.couplings if wanted[0] else None, None, *of_parameters
            pairs = draw.edges if wanted[0] and draw.edges is not None else wanted[0]
            terms: Any = {"couplings": pairs, "three_body": wanted[1]}
            if draw.estimator == "covariance":
                assert spins is not None
                gradient = estimators.covariance(v, spins, mask, weights=weights, **terms)
            elif draw.estimator == "linear_response":
                effective = estimators.effective_couplings(couplings, three_body, p, mask)
                gradient = estimators.linear_response(v, p, mask, effective, response_at=at, **terms)
            else:
                gradient = estimators.straight_through(v, p, mask, response_at=at, **terms)
        dJ, dK = (
            None if g is None or t is None else g.sum_to_size(t.shape)
            for g, t in ((gradient.couplings, couplings), (gradient.three_body, three_body))
        )
        return gradient.fields, dJ, dK

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.draw = inputs[9]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> NoReturn:
        refuse_second(ctx.draw.estimator, ctx.draw.sampler)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> NoReturn:
        refuse_second(ctx.draw.estimator, ctx.draw.sampler)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        size, draw, wanted = info.batch_size, inputs[9], inputs[10]
        if wanted[2]:
            raise UnsupportedError(
                "gradient", "gradients of the anneal's parameters under vmap are unsupported."
            )
        dims: folding.TermDims = in_dims[:4]
        terms = Terms(*inputs[:4])
        folded = folded_terms(terms, dims, size, own=True)
        behind_reads = (0, 0, 1, 1, 0)  # spins and weights have their reads first
        seen = [
            None if t is None else folding.mapped_first(t, dim, size, place)
            for t, dim, place in zip(inputs[4:9], in_dims[4:9], behind_reads, strict=True)
        ]
        found: Any = _Estimated.apply(*folded, *seen, replace(draw, ising=None), wanted, *inputs[11:])
        outputs = [folding.unfolded(g, t, d) for g, t, d in zip(found[:3], terms[:3], dims[:3], strict=True)]
        return tuple(outputs), dims_of(*outputs)
