"""One tile of the pair sums in torch: a few problems and a few coalitions, all pairs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Elements of a tile: its temporaries stay in the second-level cache.
TILE = 1 << 18


class Coalitions(NamedTuple):
    """What is constant in the derivative, for N problems, K coalitions and n players.

    Attributes:
        sign: ε, [N, K, n]; 0 where there is no player.
        member: 1 in the coalition, 0 outside, [N, K, n].
        floor: Squared norms up to this are zero to rounding, [N, K].
        log_proposal: log p of the context for 0, 1 and 2 players taken out of C, [N, K, 3]; None for uniform
            weights.
        tanh: f is tanh, not the identity.
    """

    sign: Tensor
    member: Tensor
    floor: Tensor
    log_proposal: Tensor | None
    tanh: bool

    def part(self, at: tuple[slice, slice]) -> Coalitions:
        """Some problems and coalitions."""
        log_proposal = None if self.log_proposal is None else self.log_proposal[at]
        return Coalitions(self.sign[at], self.member[at], self.floor[at], log_proposal, self.tanh)


class Values(NamedTuple):
    """What is differentiated: G [N, n, n], ‖S‖² [N, K], t [N, K, n], Q [N, K], R [N, K, n], 1/γ [N]."""

    gram: Tensor
    square: Tensor
    change: Tensor
    whole: Tensor
    single: Tensor
    beta: Tensor

    def part(self, at: tuple[slice, slice]) -> Values:
        """Views of some problems and coalitions."""
        rows = at[0]
        middle = (self.square[at], self.change[at], self.whole[at], self.single[at])
        return Values(self.gram[rows], *middle, self.beta[rows])


def interactions(values: Values, coalitions: Coalitions) -> tuple[Tensor, Tensor | None]:
    r"""Δ_ij = ε_i ε_j (T_ij - R_i - R_j + Q), and the log-weights of Gibbs weights, each [N, K, n, n].

    The log-weights are v(C \ {i,j})/γ - log p; the context is C without those of i and j that are in it.
    """
    sign, R, Q = coalitions.sign, values.single, values.whole[..., None]
    signs = sign[..., :, None] * sign[..., None, :]
    cross = 2 * signs * values.gram[:, None]
    change = values.change[..., None, :]
    square = cross + (values.change + values.square[..., None])[..., :, None] + change
    positive = square > coalitions.floor[..., None, None]
    norm = torch.where(positive, torch.where(positive, square, 1).sqrt(), 0)
    double = torch.tanh(norm) if coalitions.tanh else norm
    delta = double - R[..., :, None] - (R - Q)[..., None, :]
    if not coalitions.tanh:
        delta = delta - delta.detach() + _without_cancellation(values, cross, norm).detach()
    if coalitions.log_proposal is None:
        return delta * signs, None
    # Where i, j, both or neither are in C.
    inside = coalitions.member > 0
    none, one, two = coalitions.log_proposal[..., None].unbind(-2)
    beta = values.beta[:, None, None]
    alone = beta * R - one
    of_row = torch.where(inside, alone, beta * Q - none)[..., :, None]
    other = torch.where(inside[..., :, None], beta[..., None] * double - two[..., None], alone[..., None, :])
    return delta * signs, torch.where(inside[..., None, :], other, of_row)


@torch.no_grad()
def _without_cancellation(values: Values, cross: Tensor, norm: Tensor) -> Tensor:
    """T_ij - R_i - R_j + Q of norms of many vectors with a common part, which nearly cancel.

    With c = 2 ε_i ε_j G_ij and r_i = R_i - Q = t_i/(R_i + Q) the same difference is
    (c - r_j (r_i + (t_i + c)/(T + R_j)))/(T + R_i), whose rounding is that of ‖V‖²/‖S‖ instead of ‖S‖.
    T + R_i = 0 only where V_j = 0, and then Δ_ij = 0.  Forward derivatives do not stop here.
    """
    R, change = values.single, values.change
    rise = change / _never_zero(R + values.whole[..., None])
    delta = (cross + change[..., :, None]) / _never_zero(norm + R[..., None, :])
    delta = cross - rise[..., None, :] * (delta + rise[..., :, None])
    return delta / _never_zero(norm + R[..., :, None])


def _never_zero(norms: Tensor) -> Tensor:
    """Infinity in place of 0, so that what is divided by it vanishes; in place."""
    return norms.masked_fill_(norms == 0, torch.inf)
