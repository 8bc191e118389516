"""Damped iteration of batches with torch: any device, any number of spins, three-body terms.

Problems that have converged are dropped, so that the slowest ones iterate alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from diabat.ising import Ising


class Iterated(NamedTuple):
    """Result of the iteration.

    Attributes:
        magnetization: m, [*batch, n]; 0 for invisible spins.
        iterations: int32 [*batch].
        residual: max |tanh(h + J m) - m| before the last step, float64 [*batch].
    """

    magnetization: Tensor
    iterations: Tensor
    residual: Tensor


def local_field(ising: Ising, m: Tensor) -> Tensor:
    """h_j + Σ_k J_jk m_k + ½ Σ_kl K_jkl m_k m_l, with m = 0 on invisible spins; differentiable."""
    local = ising.fields
    if ising.edges is not None:
        local = local + ising.edges.local_fields(m)
    elif ising.matrix is not None:
        local = local + _pair_field(ising.matrix, m)
    if ising.three_body is not None:
        local = local + torch.einsum("...jkl,...k,...l->...j", ising.three_body, m, m) / 2
    return local


def _pair_field(J: Tensor, m: Tensor) -> Tensor:
    """Σ_k J_jk m_k; problems with the same J in one matrix product."""
    if J.ndim == 2:
        return m @ J.mT
    if J.shape[-3] == 1 and m.ndim >= J.ndim - 1:
        return m @ J.squeeze(-3).mT
    return (J @ m[..., None])[..., 0]


def iterate(ising: Ising, damping: float, tolerance: float, most: int) -> Iterated:
    """Iterate m <- (1 - damping) m + damping tanh(h + J m) from m = 0, each problem until it has converged.

    Args:
        ising: Problems without a graph.
        damping: Weight of the new value.
        tolerance: A problem stops when no magnetization changes by more than this.
        most: Largest number of iterations.
    """
    batch, n, device = ising.batch_shape, ising.num_spins, ising.fields.device
    m = ising.fields.new_zeros(ising.num_problems, n)
    counts = torch.zeros(len(m), dtype=torch.int32, device=device)
    residuals = torch.zeros(len(m), dtype=torch.float64, device=device)
    part = _Part.of(ising)
    for count in range(1, most + 1):
        moving = part.step(damping, tolerance)
        alive = int(moving.sum())
        if 2 * alive <= moving.numel() or count == most:
            m[part.rows], residuals[part.rows] = part.m, part.residual
            counts[part.rows] = part.counts
            if not alive or count == most:
                break
            part = part.kept(moving)
    return Iterated(m.reshape(*batch, n), counts.reshape(batch), residuals.reshape(batch))


class _Part:
    """Problems that still iterate, in C groups of Q with the same couplings.

    Attributes:
        ising: The problems; fields [C, Q, n], J [C, 1, n, n] or [n, n], or edges with values [C, 1, E] or [E].
        visible: bool [C, Q, n].
        rows: Index of each problem in the flat batch, int64 [C, Q].
        m: Magnetizations, [C, Q, n].
        moving: Whether a problem has not converged, bool [C, Q].
        counts: Iterations of each problem, int32 [C, Q].
        residual: Last residual of each problem, float64 [C, Q].
    """

    def __init__(self, ising: Ising, rows: Tensor, m: Tensor, counts: Tensor, residual: Tensor) -> None:
        self.ising, self.visible, self.rows = ising, ising.visible_mask, rows
        self.m, self.counts, self.residual = m, counts, residual
        self.moving = torch.ones_like(rows, dtype=torch.bool)

    @classmethod
    def of(cls, ising: Ising) -> _Part:
        """All problems of a batch, at m = 0."""
        n, distinct, device = ising.num_spins, ising.num_couplings, ising.fields.device
        # Leading dimensions broadcast, so every J belongs to as many problems.
        rows = ising.coupling_index().argsort(stable=True).reshape(distinct, -1).to(device)
        J, K, edges = ising.matrix, ising.three_body, ising.edges
        if edges is not None:
            shape = (distinct, 1) if distinct > 1 else ()
            values = edges.values.expand(*ising.lead, edges.count)
            edges = edges.with_values(values.reshape(*shape, edges.count))
        if distinct > 1:
            lead = ising.lead
            J = None if J is None else J.expand(*lead, n, n).reshape(distinct, 1, n, n)
            K = None if K is None else K.expand(*lead, n, n, n).reshape(distinct, 1, n, n, n)
        else:
            J = None if J is None else J.reshape(n, n)
            K = None if K is None else K.reshape(n, n, n)
        fields = ising.fields.reshape(-1, n)[rows]
        visible = ising.visible_mask.reshape(-1, n)[rows]
        counts = torch.zeros_like(rows, dtype=torch.int32)
        residual = torch.zeros_like(rows, dtype=torch.float64)
        return cls(
            Ising(fields, J if edges is None else edges, visible, K, check=False),
            rows,
            torch.zeros_like(fields),
            counts,
            residual,
        )

    def step(self, damping: float, tolerance: float) -> Tensor:
        """One iteration of the problems that have not converged; returns which of them still have not."""
        moving = self.moving
        new = torch.where(self.visible, torch.tanh(local_field(self.ising, self.m)), 0)
        residual = (new - self.m).abs().amax(-1).double()
        self.m = torch.where(moving[..., None], torch.lerp(self.m, new, damping), self.m)
        self.residual = torch.where(moving, residual, self.residual)
        self.counts = self.counts + moving
        self.moving = moving & (self.residual > tolerance)
        return self.moving

    def kept(self, moving: Tensor) -> _Part:
        """The groups and places with a problem that still moves."""
        groups, places = moving.any(1).nonzero()[:, 0], moving.any(0).nonzero()[:, 0]

        def cut(values: Tensor) -> Tensor:
            return values[groups][:, places]

        J, K, edges = self.ising.matrix, self.ising.three_body, self.ising.edges
        if len(moving) > 1:
            J, K = (None if t is None else t[groups] for t in (J, K))
            edges = None if edges is None else edges.with_values(edges.values[groups])
        part = _Part(
            Ising(cut(self.ising.fields), J if edges is None else edges, cut(self.visible), K, check=False),
            cut(self.rows),
            cut(self.m),
            cut(self.counts),
            cut(self.residual),
        )
        part.moving = cut(moving)
        return part
