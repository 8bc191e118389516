"""The gradient bridge: differentiable spin probabilities from any sampler."""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from diabat.attention import estimators
from diabat.ising import Ising
from diabat.samplers.base import Estimator, Sampler, UnsupportedError, check_num_reads, draw_seed
from diabat.samplers.registry import as_sampler


def spin_probabilities(
    fields: Tensor,
    couplings: Tensor | None,
    sampler: Sampler | str,
    *,
    gradient: str = "auto",
    visible: Tensor | None = None,
    three_body: Tensor | None = None,
    num_reads: int | None = None,
    seed: int | None = None,
    check: bool = True,
) -> Tensor:
    r"""Compute alpha_j = P(s_j = +1) under P(s) ∝ exp(Σ h s + Σ_{j<k} J s s + Σ K s s s), differentiably.

    Args:
        fields: h, [*batch, n], float32 or float64, or whatever else :class:`diabat.Ising` converts.
        couplings: J, [*lead, n, n], symmetric with zero diagonal, or None.
        sampler: A sampler or the name of one.
        gradient: ``exact`` (the sampler's own derivative by autograd), ``straight_through``, ``linear_response``,
            ``covariance``, ``adjoint`` (the exact derivative of a simulated anneal), or ``auto`` (the sampler's
            first choice).
        visible: bool, broadcastable to [*batch, n].
        three_body: K, [*lead, n, n, n], or None.
        num_reads: Reads for sampling backends; None takes the sampler's own setting.
        seed: Seed of the reads; None draws one.
        check: Validate the problem.

    Returns:
        Probabilities [*batch, n] in the dtype of the (converted) fields; smoothed, (reads·P + 1/2)/(reads + 1), if they
        were sampled, so that they are never all zero; 0 for invisible spins.

    Raises:
        IsingError: If the problem is not valid.
        UnsupportedError: If the sampler does not support the problem or the estimator.
    """
    sampler = as_sampler(sampler)
    ising = Ising(fields, couplings, visible, three_body, check=check)
    estimator = choose_estimator(sampler, gradient)
    if num_reads is not None:
        check_num_reads(num_reads)
    if estimator == "exact":
        if num_reads is not None:
            raise UnsupportedError(
                "num_reads: gradient 'exact' differentiates the sampler's own moments, "
                f"expected None, got {num_reads}."
            )
        return sampler.moments(ising, seed=seed).smoothed_probability
    if estimator == "adjoint":
        seed = draw_seed(seed)  # forward and backward are to see the same law
    problem = (ising.fields, ising.couplings, ising.three_body, ising.visible)
    result: Any = _Bridge.apply(*problem, sampler, estimator, num_reads, seed, *sampler.parameters)
    return result


def choose_estimator(sampler: Sampler, gradient: str) -> Estimator:
    """Resolve ``auto`` and refuse an estimator that the sampler does not support.

    Raises:
        UnsupportedError: With the estimators that it does support.
    """
    supported = sampler.capabilities.gradients
    if gradient == "auto":
        return supported[0]
    for estimator in supported:
        if gradient == estimator:
            return estimator
    known = ", ".join(get_args(Estimator))
    if gradient not in get_args(Estimator):
        raise UnsupportedError(f"gradient: expected auto, {known}, got '{gradient}'.")
    raise UnsupportedError(
        f"gradient: sampler '{sampler.name}' supports {', '.join(supported)}, got '{gradient}'."
    )


class _Bridge(torch.autograd.Function):
    """Forward through the sampler, backward through a pure estimator of what it returned."""

    @staticmethod
    def forward(
        ctx: Any,
        fields: Tensor,
        couplings: Tensor | None,
        three_body: Tensor | None,
        visible: Tensor | None,
        sampler: Sampler,
        estimator: Estimator,
        num_reads: int | None,
        seed: int | None,
        *parameters: Tensor,
    ) -> Tensor:
        ising = Ising(fields, couplings, visible, three_body, check=False)
        ctx.shapes = tuple(None if t is None else t.shape for t in (couplings, three_body))
        mask = ising.visible_mask
        if estimator == "covariance":
            samples = sampler.sample(ising, num_reads or sampler.num_reads, seed=seed)
            moments = samples.moments(dtype=fields.dtype)
            ctx.save_for_backward(mask, samples.spins, samples.weights)
        else:
            if num_reads is None:
                moments = sampler.moments(ising.detach(), seed=seed)
            else:
                moments = sampler.sample(ising, num_reads, seed=seed).moments(dtype=fields.dtype)
            p = moments.probability
            if estimator == "adjoint":
                ctx.save_for_backward(mask, fields, couplings)
            else:
                response_at = None
                if sampler.capabilities.law != "boltzmann":
                    response_at = estimators.mean_field_probability(fields, couplings, three_body, p, mask)
                heard = (couplings, three_body) if estimator == "linear_response" else ()
                ctx.save_for_backward(mask, p, response_at, *heard)
        ctx.estimator, ctx.sampler, ctx.seed = estimator, sampler, seed
        return moments.smoothed_probability.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        (v,) = cotangents
        mask, *state = ctx.saved_tensors
        if ctx.estimator == "adjoint":
            ising = Ising(state[0], state[1], mask, check=False)
            exact = ctx.sampler.adjoint(ising, v, seed=ctx.seed)
            return exact.fields, exact.couplings, *(None,) * 6, *exact.parameters
        pair_shape, triple_shape = ctx.shapes
        wanted = {"couplings": ctx.needs_input_grad[1], "three_body": ctx.needs_input_grad[2]}
        if ctx.estimator == "covariance":
            gradient = estimators.covariance(v, state[0], mask, weights=state[1], **wanted)
        elif ctx.estimator == "linear_response":
            p, at, J, K = state
            effective = estimators.effective_couplings(J, K, p, mask)
            gradient = estimators.linear_response(v, p, mask, effective, response_at=at, **wanted)
        else:
            p, at = state
            gradient = estimators.straight_through(v, p, mask, response_at=at, **wanted)
        dJ, dK = gradient.couplings, gradient.three_body
        return (
            gradient.fields,
            None if dJ is None else dJ.sum_to_size(pair_shape),
            None if dK is None else dK.sum_to_size(triple_shape),
            *(None,) * (len(ctx.needs_input_grad) - 3),
        )
