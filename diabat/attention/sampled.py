r"""Autograd through a sampler whose moments have no derivative: forward by the sampler, backward by an estimator.

``torch.func.vmap`` does not trace either pass; the mapped dimension becomes part of the batch.  Estimators give first
derivatives in reverse; second and forward derivatives raise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from diabat.attention.estimators import GradientEstimator, Need, effective_couplings, mean_field_probability
from diabat.ising import Ising, without_autocast
from diabat.samplers import folding
from diabat.samplers.answers import AdjointSolution
from diabat.samplers.base import Sampler
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.folding import Terms, batched_cotangent, dims_of, folded_terms, transformed
from diabat.samplers.state import in_place

Maybe = Tensor | None


@dataclass(frozen=True, eq=False)
class SampledCall:
    """One call: sampler, estimator, number of reads and seed.

    Attributes:
        ising: The problem, detached; None under a transform of torch.func, which changes its tensors.
        keeps: Whether the forward pass keeps its solution for the adjoint method.
        solution: That solution, of the forward pass.
    """

    sampler: Sampler
    estimator: GradientEstimator
    num_reads: int | None
    seed: int | None
    ising: Ising | None = None
    keeps: bool = False
    solution: AdjointSolution | None = None

    def solved(self, ising: Ising) -> AdjointSolution:
        """The solution of the forward pass, or a new one, for the adjoint method."""
        return cast("AdjointSolution", self.solution or self.sampler.solution(ising, seed=self.seed or 0))

    def problem(self, terms: Terms) -> Ising:
        """The problem of these terms, detached."""
        if self.ising is not None:
            return self.ising
        return Ising(terms.fields, terms.couplings, terms.visible, terms.three_body, check=False).detach()


def sampled_probabilities(ising: Ising, call: SampledCall) -> Tensor:
    """Smoothed P(s = +1), differentiable once in h, J, K and the sampler's parameters by the estimator."""
    opaque = transformed()
    takes_edges = call.sampler.capabilities.edges and call.estimator.edges and ising.three_body is None
    if ising.edges is not None and (opaque or not takes_edges):
        ising = ising.dense()
    J = ising.matrix if ising.edges is None else ising.edges.values
    terms = Terms(ising.fields, J, ising.three_body, ising.visible)
    adjoint = call.estimator.uses_adjoint
    parameters = tuple(call.sampler.parameters()) if adjoint else ()
    if opaque:  # transforms pass other tensors to the forward pass
        result: Any = _Sampled.apply(*terms, call, *parameters)
    else:
        leaves = (*terms[:3], *parameters)
        wanted = torch.is_grad_enabled() and any([t is not None and t.requires_grad for t in leaves])
        keeps = wanted and adjoint and call.num_reads is None
        run = _Plain.apply if wanted else _Sampled.forward
        result = run(*terms, replace(call, ising=ising.detach(), keeps=keeps), *parameters)
    probability: Tensor = result[0]
    return probability


def refuse_forward(estimator: str, sampler: Sampler) -> NoReturn:
    """Raise UnsupportedError for a forward derivative of what an estimator differentiates."""
    able = f"estimator '{estimator}' of sampler '{sampler.name}' has derivatives in reverse only"
    got = "a forward one (jvp, jacfwd or hessian of torch.func)"
    fix = "use torch.func.grad, or sampler 'exact' or 'banded'"
    raise UnsupportedError("gradient", f"{able}, got {got}; {fix}.")


def refuse_second(estimator: str, sampler: Sampler) -> NoReturn:
    """Raise UnsupportedError for a second derivative of what an estimator differentiates."""
    able = f"estimator '{estimator}' of sampler '{sampler.name}' has first derivatives only"
    raise UnsupportedError("gradient", f"{able}, got a second one; use sampler 'exact' or 'banded'.")


class _Sampled(torch.autograd.Function):
    """(h, J, K, visible, call, parameters) -> smoothed P, and P, spins and solution for the estimator."""

    @staticmethod
    def forward(
        fields: Tensor, J: Maybe, K: Maybe, visible: Maybe, call: SampledCall, *parameters: Tensor
    ) -> tuple[Any, ...]:
        ising = call.problem(Terms(fields, J, K, visible))
        with without_autocast(fields), in_place(call.sampler, parameters):
            spins = solution = None
            if call.estimator.uses_reads:
                samples = call.sampler.sample(ising, call.num_reads or call.sampler.num_reads, seed=call.seed)
                moments, spins = samples.moments(dtype=ising.fields.dtype), samples.spins
            elif call.keeps:
                solution = call.solved(ising)
                moments = solution.moments
            else:
                moments = call.sampler.moments(ising, num_reads=call.num_reads, seed=call.seed)
        return moments.smoothed_probability.clone(), moments.probability, spins, solution

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        terms, call, parameters, answer = inputs[:4], inputs[4], inputs[5:], output[1:3]
        ctx.call = replace(call, solution=output[3])
        ctx.save_for_backward(*terms, *answer, *parameters)
        ctx.mark_non_differentiable(*[t for t in answer if t is not None])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, v: Maybe, *rest: Any) -> tuple[Maybe, ...]:
        if v is None:
            return (None,) * len(ctx.needs_input_grad)
        wanted = (*ctx.needs_input_grad[1:3], any(ctx.needs_input_grad[5:]))
        # The parameters of the forward pass may differ from those of the sampler now (torch.func.functional_call).
        # They are read once: checkpointing computes them again at each reading.
        h, J, K, visible, p, spins, *parameters = ctx.saved_tensors
        # Only a derivative of the derivative needs a graph, and only to be refused.
        opaque = torch.is_grad_enabled() or transformed() or batched_cotangent(v)
        run: Any = _Estimated.apply if opaque else _Estimated.forward
        dh, dJ, dK, *of_parameters = run(h, J, K, visible, p, spins, v, ctx.call, wanted, *parameters)
        return dh, dJ, dK, None, None, *(of_parameters or [None] * len(parameters))

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> NoReturn:
        refuse_forward(ctx.call.estimator.name, ctx.call.sampler)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        *terms, call = inputs[:5]
        if any(dim is not None for dim in in_dims[5:]):
            reason = "vmap over parameters of the anneal is unsupported; map other inputs only."
            raise UnsupportedError("gradient", reason)
        folded = folded_terms(Terms(*terms), in_dims[:4], info.batch_size)
        results: Any = _Sampled.apply(*folded, replace(call, ising=None), *inputs[5:])
        smoothed, p, spins, _ = results
        return results, (*dims_of(smoothed, p), None if spins is None else 1, None)


class _Plain(_Sampled):
    """The same in the form without rules for transforms, which torch enters 60 us sooner."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Maybe, ...]:
        output = _Sampled.forward(*inputs)
        _Sampled.setup_context(ctx, inputs, output)
        return output

    setup_context = torch.autograd.Function.setup_context


class _Estimated(torch.autograd.Function):
    """The estimator: a pure function of the cotangent v and of inputs and outputs of the forward pass."""

    @staticmethod
    def forward(
        fields: Tensor, couplings: Maybe, three_body: Maybe, visible: Maybe, p: Tensor, spins: Maybe, v: Tensor,
        call: SampledCall, wanted: tuple[bool, ...], *parameters: Tensor,
    ) -> tuple[Maybe, ...]:  # fmt: skip
        with without_autocast(fields), in_place(call.sampler, parameters):
            ising = call.problem(Terms(fields, couplings, three_body, visible))
            boltzmann = call.sampler.capabilities.law == "boltzmann"  # then the response is taken at P itself
            known: dict[Need, Callable[[], Any]] = {
                "probability": lambda: p,
                "response_at": lambda: None if boltzmann else mean_field_probability(ising, p),
                "effective": lambda: effective_couplings(ising, p),
                "spins": lambda: spins,
                "solution": lambda: call.solved(ising),
            }
            gradient = call.estimator.function(
                v,
                visible=ising.visible_mask,
                couplings=ising.edges if wanted[0] and ising.edges is not None else wanted[0],
                three_body=wanted[1],
                **{name: known[name]() for name in call.estimator.needs},
            )
        dJ, dK = (
            None if g is None or t is None else g.sum_to_size(t.shape)
            for g, t in ((gradient.couplings, couplings), (gradient.three_body, three_body))
        )
        return gradient.fields, dJ, dK, *(gradient.parameters if wanted[2] else ())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.call = inputs[7]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> NoReturn:
        refuse_second(ctx.call.estimator.name, ctx.call.sampler)

    jvp = backward

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        size, call, wanted = info.batch_size, inputs[7], inputs[8]
        if wanted[2]:
            reason = "gradients of the anneal's parameters under vmap are unsupported."
            raise UnsupportedError("gradient", reason)
        dims: folding.TermDims = in_dims[:4]
        terms = Terms(*inputs[:4])
        folded = folded_terms(terms, dims, size, own=True)
        p, spins, v = [  # spins have their reads first
            None if inputs[i] is None else folding.mapped_first(inputs[i], in_dims[i], size, place)
            for i, place in ((4, 0), (5, 1), (6, 0))
        ]
        call = replace(call, ising=None, solution=None)
        slopes: Any = _Estimated.apply(*folded, p, spins, v, call, wanted, *inputs[9:])
        outputs = [folding.unfolded(g, t, d) for g, t, d in zip(slopes[:3], terms[:3], dims[:3], strict=True)]
        return tuple(outputs), dims_of(*outputs)
