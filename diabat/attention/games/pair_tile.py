"""One tile of the pair sums: a few problems and a few coalitions, all pairs; forward and backward."""

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


class Values(NamedTuple):
    """What is differentiated: G [N, n, n], ‖S‖² [N, K], t [N, K, n], Q [N, K], R [N, K, n], 1/γ [N]."""

    gram: Tensor
    square: Tensor
    change: Tensor
    whole: Tensor
    single: Tensor
    beta: Tensor


class Tile:
    """A few problems and coalitions at once: everything is [rows, draws, n, n], [rows, draws, n] or [rows, draws].

    Args:
        values: Of all problems and coalitions.
        coalitions: Likewise.
        rows: The problems of this tile.
        draws: The coalitions of this tile.
    """

    def __init__(self, values: Values, coalitions: Coalitions, rows: slice, draws: slice) -> None:
        part = (rows, draws)
        self.rows, self.part, self.tanh = rows, part, coalitions.tanh
        self.member, self.outside = coalitions.member[part], 1 - coalitions.member[part]
        self.whole, self.single = values.whole[part], values.single[part]
        self.beta = values.beta[rows, None]
        self.equal_weight = 1 / values.square.shape[1]
        self.log_proposal = None if coalitions.log_proposal is None else coalitions.log_proposal[part]
        sign, change, square = coalitions.sign[part], values.change[part], values.square[part]
        self.signs = sign[..., :, None] * sign[..., None, :]
        self.change = change
        self.cross = (self.signs * values.gram[rows, None]).mul_(2)
        squared = self.cross + (change + square[..., None])[..., :, None]
        squared.add_(change[..., None, :])
        floor = coalitions.floor[part][..., None, None]
        self.norm = squared.mul_(squared > floor).sqrt_()
        self.double = torch.tanh(self.norm) if self.tanh else self.norm

    def interaction(self) -> Tensor:
        r"""Δ_ij = ε_i ε_j (T_ij - R_i - R_j + Q).

        Norms of many vectors with a common part nearly cancel here.  With c = 2 ε_i ε_j G_ij and r_i = R_i - Q =
        t_i/(R_i + Q) the same difference is (c - r_j (r_i + (t_i + c)/(T + R_j)))/(T + R_i), whose rounding is that of
        ‖V‖²/‖S‖ instead of ‖S‖.  T + R_i = 0 only where V_j = 0, and then Δ_ij = 0.
        """
        R = self.single
        if self.tanh:
            delta = self.double - R[..., :, None]
            return delta.sub_((R - self.whole[..., None])[..., None, :]).mul_(self.signs)
        rise = self.change / _never_zero(R + self.whole[..., None])
        delta = (self.cross + self.change[..., :, None]).div_(_never_zero(self.norm + R[..., None, :]))
        delta.add_(rise[..., :, None]).mul_(rise[..., None, :])
        delta = torch.sub(self.cross, delta, out=delta).div_(_never_zero(self.norm + R[..., :, None]))
        return delta.mul_(self.signs)

    def log_weights(self) -> Tensor:
        r"""v(C \ {i,j})/γ - log p(C \ {i,j}); the context is C without those of i and j that are in it."""
        assert self.log_proposal is not None
        none, one, two = self.log_proposal.unbind(-1)
        c, out = self.member, self.outside
        row = c * (self.beta[..., None] * self.single - one[..., None])
        corner = out * (self.beta * self.whole - none)[..., None]
        logits = self.double * self.beta[..., None, None]
        logits.sub_(two[..., None, None]).mul_(c[..., :, None]).mul_(c[..., None, :])
        logits.addcmul_(row[..., :, None], out[..., None, :])
        return logits.addcmul_(out[..., :, None], (row + corner)[..., None, :])

    def weights(self, normaliser: Tensor) -> Tensor:
        """w_k, from the log of the normaliser [rows, n, n] if they are Gibbs weights."""
        if self.log_proposal is None:
            return torch.full_like(self.norm, self.equal_weight)
        return self.log_weights().sub_(normaliser[:, None]).exp_()

    def add_gradient(self, gradient: Values, u: Tensor, mean: Tensor, normaliser: Tensor) -> None:
        r"""Add ∂L/∂(values) for L = Σ u_ij J_ij with symmetric u [rows, 1, n, n].

        dJ = Σ_k w_k (dΔ_k + (Δ_k - J) dℓ_k) with ℓ the log-weights, which uniform weights do not have.
        """
        uw = u * (self.equal_weight if self.log_proposal is None else self.weights(normaliser))
        to_double = uw * self.signs
        gradient.single[self.part] -= 2 * to_double.sum(-1)
        gradient.whole[self.part] += to_double.sum((-2, -1))
        if self.log_proposal is not None:
            to_double = to_double + self._through_weights(gradient, uw.mul_(self.interaction() - mean))
        if self.tanh:
            to_double = to_double * (1 - self.double**2)
        # The subgradient of the norm at 0 is 0.
        to_squared = torch.where(self.norm > 0, to_double / (2 * self.norm), 0)
        gradient.square[self.part] += to_squared.sum((-2, -1))
        gradient.change[self.part] += 2 * to_squared.sum(-1)
        gradient.gram[self.rows] += 2 * (to_squared * self.signs).sum(1)

    def _through_weights(self, gradient: Values, to_logits: Tensor) -> Tensor:
        r"""Add what goes through v(C \ {i,j})/γ and return its part of ∂L/∂T_ij."""
        c, out, beta = self.member, self.outside, self.beta
        alone = (to_logits @ out[..., None])[..., 0]  # Σ over partners outside C
        both = to_logits * c[..., :, None] * c[..., None, :]
        to_single, to_whole = 2 * c * alone, (out * alone).sum(-1)
        gradient.single[self.part] += beta[..., None] * to_single
        gradient.whole[self.part] += beta * to_whole
        of_pairs, of_players = (both * self.double).sum((-2, -1)), (to_single * self.single).sum(-1)
        gradient.beta[self.rows] += (of_pairs + of_players + to_whole * self.whole).sum(1)
        return both * beta[..., None, None]


def _never_zero(norms: Tensor) -> Tensor:
    """Infinity in place of 0, so that what is divided by it vanishes; in place."""
    return norms.masked_fill_(norms == 0, torch.inf)
