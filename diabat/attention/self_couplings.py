r"""Attention from couplings alone: the query's own spin is +1, and there are no fields (mode ``J-self``).

Without fields the law does not change when all spins are flipped.  Hence with spin i held at +1

    alpha_ij = P(s_j = +1 | s_i = +1) = (1 + <s_i s_j>) / 2 = (1 + P(s_i = s_j) - P(s_i ≠ s_j)) / 2,

where <> is the law without fields.  The problems depend on neither queries nor keys: there is one for every set of
visible keys and own position, whatever the batch.

Analytic backends solve the clamped problem, whose fields are h_j = J_ij.  Sampling backends draw reads without fields;
s_i s is a read of the clamped law, and the covariances of the same reads give the gradient,

    ∂alpha_ij / ∂J_kl = Cov(s_i s_j, s_k s_l) / 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from diabat.attention import estimators
from diabat.attention.bridge import GradientBridge, outside_graphs
from diabat.attention.sampled import first_only, refuse_forward
from diabat.ising import Ising, without_autocast
from diabat.samplers.answers import Samples
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.folding import refuse_batched_cotangent
from diabat.samplers.seeds import draw_seed


def self_probabilities(
    bridge: GradientBridge, couplings: Tensor, visible: Tensor, *, last: bool, seed: int | None = None
) -> Tensor:
    """Compute P(s_j = +1 | s_own = +1) without fields, [H, Q, T] or [B, H, Q, T].

    The own spin has 1.  In a row that does not see its own spin every probability is 1/2.

    Args:
        bridge: Sampler and estimator.
        couplings: J, [H, 1, T, T].
        visible: bool [Q, T] or [B, 1, Q, T].
        last: The own spin of every row is the last one, instead of spin i in row i.
        seed: Seed of a bridge that draws; None takes one from torch's global generator.
    """
    draws = bridge.draws and bridge.gradient in ("auto", "covariance")
    return (_reads_by_rows if draws else _by_rows)(bridge, couplings, visible, draws, last, seed)


def _by_rows(
    bridge: GradientBridge, couplings: Tensor, visible: Tensor, draws: bool, last: bool, seed: int | None
) -> Tensor:
    """The probabilities, of relative layers from one problem for each different row of the mask."""
    spins, solved = couplings.shape[-1], partial(_solved, bridge, couplings, draws=draws, seed=seed)
    if not last:
        return solved(visible, torch.arange(spins, device=visible.device))
    if torch.compiler.is_compiling():  # the number of distinct rows depends on the data
        own = torch.full((visible.shape[-2],), spins - 1, device=visible.device)
        return solved(visible, own)
    rows, index = torch.unique(visible.reshape(-1, spins), dim=0, return_inverse=True)
    own = torch.full((len(rows),), spins - 1, device=visible.device)
    found = solved(rows, own)  # [H, P, T]
    found = found[:, index.reshape(visible.shape[:-1])]  # [H, Q, T] or [H, B, 1, Q, T]
    return found if visible.ndim == 2 else found[:, :, 0].transpose(0, 1)


_reads_by_rows = outside_graphs(_by_rows)


def _solved(
    bridge: GradientBridge, couplings: Tensor, visible: Tensor, own: Tensor, *, draws: bool, seed: int | None
) -> Tensor:
    """The probabilities for own spins ``own``, int64 [P], of rows [P, T] or [B, 1, P, T]."""
    is_own = torch.nn.functional.one_hot(own, couplings.shape[-1]).bool()  # [P, T]
    with_own = (visible & is_own).any(-1, keepdim=True)
    if draws:
        reads = bridge.num_reads or bridge.sampler.num_reads
        call = _Call(bridge, reads, draw_seed(seed), visible, own, with_own)
        found, _ = _FromReads.apply(couplings, call)
    else:
        fields = couplings[:, 0, own] * with_own  # [H, P, T] or [B, H, P, T]
        found = bridge(fields, couplings, visible & ~is_own, seed=seed)
    return found.masked_fill(visible & is_own, 1)


@dataclass(frozen=True, eq=False)
class _Call:
    """What does not change with J: sampler, reads, seed, and the rows of the mask."""

    bridge: GradientBridge
    num_reads: int
    seed: int
    visible: Tensor
    own: Tensor
    with_own: Tensor


class _FromReads(torch.autograd.Function):
    """(J, call) -> smoothed P, and reads of the clamped law."""

    @staticmethod
    def forward(couplings: Tensor, call: _Call) -> tuple[Tensor, Tensor]:
        J = couplings.detach()
        shape = torch.broadcast_shapes(call.visible.shape, (len(J), *call.visible.shape[-2:]))
        with without_autocast(J):
            ising = Ising(J.new_zeros(shape), J, call.visible, check=False)
            drawn = call.bridge.sampler.sample(ising, call.num_reads, seed=call.seed)
            held = clamped(drawn, call.own, call.with_own)
            moments = held.moments(dtype=J.dtype)
        return moments.smoothed_probability, held.spins

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        couplings, ctx.call = inputs
        ctx.save_for_backward(couplings, output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, v: Tensor, *rest: Any) -> tuple[Tensor | None, None]:
        refuse_batched_cotangent(v)
        couplings, spins = ctx.saved_tensors
        visible = ctx.call.visible.expand(v.shape)
        found = estimators.covariance(v, spins, visible, couplings=True, three_body=False).couplings
        assert found is not None
        sampler, gradient = ctx.call.bridge.sampler, found.sum_to_size(couplings.shape)
        return first_only(gradient, "covariance", sampler, couplings), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> NoReturn:
        refuse_forward("covariance", ctx.call.bridge.sampler)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> NoReturn:
        raise UnsupportedError(
            "gradient",
            "vmap over couplings of mode 'J-self' with reads is unsupported; use gradient='straight_through'.",
        )


def clamped(drawn: Samples, own: Tensor, with_own: Tensor) -> Samples:
    """Reads s_own s, in which the own spin is +1; reads of rows without their own spin do not change."""
    spins = drawn.spins  # [R, *, P, T]
    index = own[:, None].expand(*spins.shape[:-1], 1)
    sign = torch.where(with_own, spins.gather(-1, index), 1)
    # Invisible spins are -1 in every read.
    return replace(drawn, spins=torch.where(drawn.visible, spins * sign, -1), ising=None)
