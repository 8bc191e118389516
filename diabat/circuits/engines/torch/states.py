"""Energies and moments of all spin states on a torch device, from tables of two halves of the spins."""

from __future__ import annotations

import torch
from torch import Tensor

from diabat.circuits.problem import spin_table


class HalvedStates:
    """The 2^n states of n spins as a matrix: row x is the state of the high spins, column y of the low ones.

    State index = x·B + y with A·B = 2^n, so that [A, B, Q] is [2^n, Q] seen otherwise. Every sum over states
    of spins and of pairs needs only tables of A and of B rows, never one of 2^n rows and n columns.

    Attributes:
        num_spins: n.
        high: Spins ±1 of the rows, float64 [A, n - b]: spins b, b+1, ... with b = ⌈n/2⌉.
        low: Spins ±1 of the columns, float64 [B, b]: spins 0 ... b-1.
    """

    def __init__(self, num_spins: int, device: torch.device) -> None:
        self.num_spins, self.split = num_spins, (num_spins + 1) // 2
        self.high, self.low = (
            torch.tensor(spin_table(count), dtype=torch.float64, device=device)
            for count in (num_spins - self.split, self.split)
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(A, B)."""
        return len(self.high), len(self.low)

    def field_terms(self, fields: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_j h_j s_j as the sum of two tables.

        Args:
            fields: h, float64 [Q, n].

        Returns:
            The high spins' part [A, 1, Q] and the low spins' part [1, B, Q].
        """
        low, high = fields[:, : self.split], fields[:, self.split :]
        return (self.high @ high.T)[:, None], (self.low @ low.T)[None]

    def pair_terms(self, matrix: Tensor) -> Tensor:
        """Σ_{jk} W_jk s_j s_k for symmetric W.

        Args:
            matrix: W, float64 [n, n] or [Q, n, n].

        Returns:
            float64 [A, B, 1] or [A, B, Q].
        """
        stack, b = matrix.reshape(-1, *matrix.shape[-2:]), self.split
        within_high = ((self.high @ stack[:, b:, b:]) * self.high).sum(-1)  # [Q, A]
        within_low = ((self.low @ stack[:, :b, :b]) * self.low).sum(-1)  # [Q, B]
        across = 2 * self.high @ stack[:, b:, :b] @ self.low.T  # [Q, A, B]
        total = across + within_high[:, :, None] + within_low[:, None, :]
        return total.permute(1, 2, 0).contiguous()

    def spin_sums(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Σ_x w(x) s_j(x), float64 [Q, n], from w summed over columns [A, Q] and over rows [B, Q]."""
        return torch.cat([columns.T @ self.low, rows.T @ self.high], dim=1)

    def up_sums(self, weights: Tensor) -> Tensor:
        """Σ_x w(x) [s_j(x) = +1] for w [A, B, Q]: float64 [Q, n]; no difference of large numbers in it."""
        low, high = (self.low > 0).to(self.low), (self.high > 0).to(self.high)
        return torch.cat([weights.sum(0).T @ low, weights.sum(1).T @ high], dim=1)

    def pair_sums(self, weights: Tensor) -> Tensor:
        """Σ_x w(x) s_j(x) s_k(x) for w [A, B, Q]: float64 [Q, n, n], symmetric."""
        low, high = self.low, self.high
        across = torch.einsum("xi,xyq,yj->qij", high, weights, low)
        within_high = torch.einsum("xi,xq,xj->qij", high, weights.sum(1), high)
        within_low = torch.einsum("yi,yq,yj->qij", low, weights.sum(0), low)
        upper = torch.cat([within_low, across.mT], dim=2)
        return torch.cat([upper, torch.cat([across, within_high], dim=2)], dim=1)
