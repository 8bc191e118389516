"""States of the two halves of a problem, and the exponents of half_split over them (kernel)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import permutations
from typing import Any

import numpy as np
import torch
from torch import Tensor


class HalfTables:
    """Constants of one half of ``spins`` spins, built when they are first needed.

    Attributes:
        signs: ±1 states, [2^spins, spins]; bit j of the row index is spin j.
        bits: 0/1 states, [2^spins, spins].
        bits_and_one: 0/1 states with a column of ones, which sums the weights.
        upper: Pairs j < k, int64 [2, spins(spins-1)/2].
        pairs: Products s_j s_k for j < k, [2^spins, spins(spins-1)/2].
        triples: Products s_j s_k s_l for j < k < l, [2^spins, spins(spins-1)(spins-2)/6].
    """

    def __init__(self, spins: int, device: torch.device, dtype: torch.dtype) -> None:
        self.spins = spins
        index = torch.arange(2**spins, device=device)
        self.bits = ((index[:, None] >> torch.arange(spins, device=device)) & 1).to(dtype)
        self.signs = 2 * self.bits - 1
        self.bits_and_one = torch.cat((self.bits, self.bits.new_ones(len(index), 1)), 1)

    @cached_property
    def upper(self) -> Tensor:
        """Pairs j < k, [2, spins(spins-1)/2]."""
        return torch.triu_indices(self.spins, self.spins, offset=1, device=self.signs.device)

    @cached_property
    def pairs(self) -> Tensor:
        """Products of two spins."""
        j, k = self.upper
        return self.signs[:, j] * self.signs[:, k]

    @cached_property
    def triples(self) -> Tensor:
        """Products of three spins."""
        t = torch.combinations(torch.arange(self.spins, device=self.signs.device), 3)
        return self.signs[:, t[:, 0]] * self.signs[:, t[:, 1]] * self.signs[:, t[:, 2]]

    def features(self, three_body: bool) -> Tensor:
        """Spins of the half, followed by their pair products if three-body terms cross the cut."""
        return torch.cat((self.signs, self.pairs), 1) if three_body else self.signs


@lru_cache(maxsize=128)
def half_tables(spins: int, device: torch.device, dtype: torch.dtype = torch.float64) -> HalfTables:
    """Tables of one half, shared by all calls."""
    return HalfTables(spins, device, dtype)


@dataclass(frozen=True, eq=False)
class HalfEnergies:
    """Exponents shared by all queries of a group.

    Attributes:
        left: e_L, float64 [G, 2^a].
        right: e_R, float64 [G, 2^b].
        cross: X, float64 [G, f_L, f_R].
        three_body: Whether F includes pair products.
    """

    left: Tensor
    right: Tensor
    cross: Tensor
    three_body: bool


def split_energies(
    J: Tensor | None, K: Tensor | None, groups: int, m: int, device: torch.device
) -> HalfEnergies:
    """Distribute J [G, m, m] and K [G, m, m, m] over the halves and the cut; differentiable.

    Both are read through their symmetric part, so that the gradient of a symmetric matrix is symmetric.
    """
    a = m // 2
    L, R = half_tables(a, device), half_tables(m - a, device)
    if J is None:
        J = torch.zeros(groups, m, m, dtype=torch.float64, device=device)
    J = J.double()
    J = (J + J.transpose(1, 2)) / 2
    left = _pair_energy(J[:, :a, :a], L)
    right = _pair_energy(J[:, a:, a:], R)
    cross = J[:, :a, a:]
    if K is None:
        return HalfEnergies(left, right, cross, three_body=False)
    K = K.double()
    K = torch.stack([K.permute(0, *p) for p in permutations((1, 2, 3))]).mean(0)
    left = left + _triple_energy(K[:, :a, :a, :a], L)
    right = right + _triple_energy(K[:, a:, a:, a:], R)
    (jl, kl), (jr, kr) = L.upper, R.upper
    pair_left = K[:, :a, :a, a:][:, jl, kl]  # [G, pairs_L, b]
    pair_right = K[:, :a, a:, a:][:, :, jr, kr]  # [G, a, pairs_R]
    corner = K.new_zeros(groups, len(jl), len(jr))
    cross = torch.cat((torch.cat((cross, pair_right), 2), torch.cat((pair_left, corner), 2)), 1)
    return HalfEnergies(left, right, cross, three_body=True)


def own_weights(
    fields: Tensor, energies: HalfEnergies, which: tuple[Tensor, Tensor]
) -> tuple[Tensor, HalfEnergies]:
    """Convert queries to groups of one query each, with the fields of the right half in e_R; differentiable.

    Then C is 1 and rows of W are scaled separately: no sum loses its largest terms, for any fields and couplings.
    The cost is a separate W for every query.

    Args:
        fields: float64 [G, Q, m].
        energies: Shared exponents.
        which: Group and query of each of the R selected queries, int64 [R].

    Returns:
        Fields [R, 1, m], zero in the right half, and exponents of R groups.
    """
    group, query = which
    a = fields.shape[-1] // 2
    own = fields[group, query]
    right = energies.right[group] + own[:, a:] @ half_tables(own.shape[-1] - a, own.device).signs.T
    left_only = torch.cat((own[:, :a], torch.zeros_like(own[:, a:])), 1)
    e = HalfEnergies(energies.left[group], right, energies.cross[group], energies.three_body)
    return left_only[:, None], e


def without(fields: Tensor, energies: HalfEnergies, lost: Tensor) -> tuple[Tensor, HalfEnergies]:
    """Put another query of its group in the place of each lost one, and a free problem where all of a group are lost.

    Sums of a lost query may be 0, and their derivatives NaN even for a cotangent of 0.

    Args:
        fields: float64 [G, Q, m].
        energies: Shared exponents.
        lost: bool [G, Q].
    """
    groups, queries, m = fields.shape
    other = (~lost).to(torch.int8).argmax(1, keepdim=True)  # [G, 1]
    index = torch.where(lost, other, torch.arange(queries, device=lost.device))
    empty = lost.all(1)[:, None, None]
    kept = torch.where(empty, 0, fields.gather(1, index[..., None].expand(groups, queries, m)))
    left, right = (torch.where(empty[..., 0], 0, e) for e in (energies.left, energies.right))
    return kept, HalfEnergies(left, right, torch.where(empty, 0, energies.cross), energies.three_body)


def _pair_energy(J: Tensor, half: HalfTables) -> Tensor:
    j, k = half.upper
    return _table_sums(J[:, j, k], half.pairs)


def _triple_energy(K: Tensor, half: HalfTables) -> Tensor:
    t = torch.combinations(torch.arange(K.shape[1], device=K.device), 3)
    return _table_sums(K[:, t[:, 0], t[:, 1], t[:, 2]], half.triples)


def _table_sums(values: Tensor, table: Tensor) -> Tensor:
    sums: Tensor = _TableSums.apply(values, table)
    return sums


class _TableSums(torch.autograd.Function):
    """(values [G, p], table [states, p]) -> Σ_p values·table, [G, states], the same on any number of threads."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(table)
        if values.device.type != "cpu":
            return values @ table.T
        # BLAS is not used: its last bit depends on the number of threads.
        return torch.from_numpy(np.einsum("gp,xp->gx", values.detach().numpy(), table.numpy()))

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        (table,) = ctx.saved_tensors
        return cotangents[0] @ table, None
