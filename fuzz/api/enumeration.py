"""Reference answers: an independent enumeration of all 2^n states in float64, differentiable in h, J and K."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from diabat.ising import Ising


class Law(NamedTuple):
    """Moments of a batch of problems, float64.

    Attributes:
        probability: P(s_j = +1), [*batch, n], 0 where invisible.
        correlation: <s_j s_k>, [*batch, n, n], 0 where invisible.
        log_partition: log Z of the visible spins, [*batch].
        states: P(s), [*batch, 2^n]; bit j of the index is spin j, bit 1 means +1.
        span: Largest sum of |h|, |J| and |K| of a problem; rounding errors are proportional to it.
        near_tie: bool [*batch], problems so strong that rounding decides between their best states.
    """

    probability: Tensor
    correlation: Tensor
    log_partition: Tensor
    states: Tensor
    span: float
    near_tie: Tensor


def enumerate_law(ising: Ising) -> Law:
    """Moments by enumeration; n of at most 12."""
    n, v = ising.num_spins, ising.visible_mask
    table = _table(n)
    s = table * v[..., None, :]  # [*batch, 2^n, n], an invisible spin takes no part
    exponent = (ising.fields.double()[..., None, :] * s).sum(-1)
    if ising.couplings is not None:
        J = ising.couplings.double()
        exponent = exponent + torch.einsum("...jk,...xj,...xk->...x", J, s, s) / 2
    if ising.three_body is not None:
        K = ising.three_body.double()
        exponent = exponent + torch.einsum("...jkl,...xj,...xk,...xl->...x", K, s, s, s) / 6
    counted = ~((table > 0) & ~v[..., None, :]).any(-1)  # of an invisible spin only the state -1
    exponent = torch.where(counted, exponent, -torch.inf)
    p = torch.softmax(exponent, -1)
    up = (table > 0).double()
    span = _span(ising)
    return Law(
        probability=torch.where(v, p @ up, 0.0),
        correlation=torch.einsum("...x,...xj,...xk->...jk", p, s, s),
        log_partition=torch.logsumexp(exponent, -1),
        states=p,
        span=span,
        near_tie=_near_tie(exponent.detach(), span),
    )


def _table(n: int) -> Tensor:
    return ((torch.arange(2**n)[:, None] >> torch.arange(n)) & 1).double() * 2 - 1


def _span(ising: Ising) -> float:
    terms = ((ising.fields, 1), (ising.couplings, 2), (ising.three_body, 3))
    sums = [t.detach().double().abs().flatten(-dim).sum(-1).max() for t, dim in terms if t is not None]
    return float(sum(sums))


def _near_tie(exponent: Tensor, span: float) -> Tensor:
    """Problems in which a state is below the best one by less than the rounding error, but not equal to it."""
    gap = exponent.max(-1, keepdim=True).values - exponent
    rounding = 1e-13 * span
    if rounding < 1e-9:
        return torch.zeros(exponent.shape[:-1], dtype=torch.bool)
    return ((gap > 0) & (gap < 60 + 100 * rounding)).any(-1)


def gradients(law: Law, wanted: Sequence[tuple[int, Tensor]], cotangent: Tensor) -> list[Tensor]:
    """Derivatives of Σ v P in tensors with 1, 2 or 3 spin axes; 0 where two indices coincide, as diabat has them."""
    loss = (law.probability * cotangent).sum()
    found = torch.autograd.grad(loss, [t for _, t in wanted], allow_unused=True, retain_graph=True)
    return [
        torch.zeros_like(t) if g is None else g.masked_fill(coincident(order, t.shape[-1]), 0)
        for (order, t), g in zip(wanted, found, strict=True)
    ]


def coincident(order: int, n: int) -> Tensor:
    """Where two of the last ``order`` indices are the same, bool [n] * order."""
    axes = torch.meshgrid(*[torch.arange(n)] * order, indexing="ij")
    same = torch.zeros((n,) * order, dtype=torch.bool)
    for a, b in combinations(axes, 2):
        same |= a == b
    return same
