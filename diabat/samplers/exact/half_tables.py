"""States of the two halves of a problem, and the exponents of `half_split` over them (kernel)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations

import torch
from torch import Tensor

from diabat.samplers.kept import kept


class HalfTables:
    """Constants of one half of ``spins`` spins.

    Attributes:
        bits_and_one: 0/1 states with a column of ones, which sums the weights, [2^spins, spins + 1]; bit j of the row
            index is spin j.
        signs: ±1 states, [2^spins, spins].
        upper: Pairs j < k, int64 [2, spins(spins-1)/2].
        pairs: Products s_j s_k for j < k, [2^spins, spins(spins-1)/2].
    """

    def __init__(self, spins: int, device: torch.device, dtype: torch.dtype) -> None:
        self.spins = spins
        index = torch.arange(2**spins, device=device)[:, None]
        bits = index >> torch.arange(spins, device=device) & 1
        self.bits_and_one = torch.cat((bits, torch.ones_like(index)), 1).to(dtype)
        self.signs = 2 * self.bits_and_one[:, :-1] - 1
        self.upper = torch.triu_indices(spins, spins, offset=1, device=device)
        j, k = self.upper
        self.pairs = self.signs[:, j] * self.signs[:, k]

    def features(self, three_body: bool) -> Tensor:
        """Spins of the half, followed by their pair products if three-body terms cross the cut."""
        return torch.cat((self.signs, self.pairs), 1) if three_body else self.signs


@kept(lambda spins, device, dtype=torch.float64: dtype.itemsize * (spins * (spins + 3) // 2 + 1) << spins)
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
        single: Whether every group has one query, whose fields are in e_L and e_R, and W includes e_R.
    """

    left: Tensor
    right: Tensor
    cross: Tensor
    three_body: bool
    single: bool = False

    def of(self, groups: Tensor | slice) -> HalfEnergies:
        """Those of some groups, as indices, bool or a slice."""
        return HalfEnergies(self.left[groups], self.right[groups], self.cross[groups], self.three_body)


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
    J = (J + J.mT).double() / 2
    left = J[:, :a, :a][:, *L.upper] @ L.pairs.T
    right = J[:, a:, a:][:, *R.upper] @ R.pairs.T
    cross = J[:, :a, a:]
    if K is None:
        return HalfEnergies(left, right, cross, three_body=False)
    K = torch.stack([K.double().permute(0, *p) for p in permutations((1, 2, 3))]).mean(0)
    left = left + _triple_energy(K[:, :a, :a, :a], L)
    right = right + _triple_energy(K[:, a:, a:, a:], R)
    pair_left = K[:, :a, :a, a:][:, *L.upper]  # [G, pairs_L, b]
    pair_right = K[:, :a, a:, a:][:, :, *R.upper]  # [G, a, pairs_R]
    corner = K.new_zeros(groups, pair_left.shape[1], pair_right.shape[2])
    cross = torch.cat((torch.cat((cross, pair_right), 2), torch.cat((pair_left, corner), 2)), 1)
    return HalfEnergies(left, right, cross, three_body=True)


def _triple_energy(K: Tensor, half: HalfTables) -> Tensor:
    index = torch.combinations(torch.arange(half.spins, device=K.device), 3).T
    return K[:, *index] @ half.signs[:, index].prod(1).T


def single_queries(
    fields: Tensor, energies: HalfEnergies, which: tuple[Tensor, ...]
) -> tuple[Tensor, HalfEnergies]:
    """Convert R queries of fields [G, Q, m] to R groups of one query each, with its fields in e_L and e_R.

    ``which`` has the group and the query of each, int64 [R].  Then C is 1, and every row of W and A are scaled by their
    largest entries: no sum loses its largest terms, for any fields and couplings.  The cost is a W for every query.
    """
    group, own = which[0], fields[which]
    a, m = fields.shape[-1] // 2, fields.shape[-1]
    e = energies.of(group)
    left = e.left + own[:, :a] @ half_tables(a, own.device).signs.T
    right = e.right + own[:, a:] @ half_tables(m - a, own.device).signs.T
    return torch.zeros_like(own)[:, None], replace(e, left=left, right=right, single=True)
