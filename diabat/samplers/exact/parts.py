"""Constants of the states of some spins, and the exponents that all problems of one J share (kernel)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from diabat.ising import triple_indices
from diabat.samplers.exact.batches import Groups
from diabat.samplers.kept import kept


class Part:
    """Constants of the states of some spins.

    Attributes:
        bits, zeros: Whether each spin is up, or down, [2^spins, spins]; bit j of the row index is spin j.
        signs: ±1 states, [2^spins, spins].
        upper: Pairs j < k, int64 [2, spins(spins-1)/2].
        pairs: Products s_j s_k for j < k, [2^spins, spins(spins-1)/2].
        triples: Triples j < k < l, int64 [3, spins(spins-1)(spins-2)/6].
    """

    def __init__(self, spins: int, device: torch.device, dtype: torch.dtype) -> None:
        self.spins = spins
        bits = torch.arange(2**spins, device=device)[:, None] >> torch.arange(spins, device=device) & 1
        self.bits, self.zeros = bits.to(dtype), (1 - bits).to(dtype)
        self.signs = 2 * self.bits - 1
        self.upper = torch.triu_indices(spins, spins, offset=1, device=device)
        self.pairs = self.signs[:, self.upper[0]] * self.signs[:, self.upper[1]]
        self.triples = torch.stack(triple_indices(spins, device))

    def features(self, three_body: bool) -> Tensor:
        """Spins of the part, followed by their pair products if three-body terms cross the cut."""
        return torch.cat((self.signs, self.pairs), 1) if three_body else self.signs


@kept(lambda spins, device, dtype=torch.float64: dtype.itemsize * (spins * (spins + 5) // 2) << spins)
def part(spins: int, device: torch.device, dtype: torch.dtype = torch.float64) -> Part:
    """Constants of some spins, shared by all calls."""
    return Part(spins, device, dtype)


class Energies(NamedTuple):
    """Exponents that the problems of a group share.

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

    @property
    def spins(self) -> tuple[int, int]:
        """Numbers a and b of spins of the parts."""
        return self.left.shape[-1].bit_length() - 1, self.right.shape[-1].bit_length() - 1


def energies(groups: Groups, a: int) -> Energies:
    """J and K on the parts, the left one of a spins, and the cut; differentiable.

    J is read through its symmetric part, so that the gradient of a symmetric matrix is symmetric.
    """
    like, J, K = groups[:3]
    number, _, m = like.shape
    L, R = part(a, like.device), part(m - a, like.device)
    if J is None:
        J = torch.zeros(number, m, m, dtype=torch.float64, device=like.device)
    J = (J + J.mT).double() / 2
    left = J[:, :a, :a][:, *L.upper] @ L.pairs.T
    right = J[:, a:, a:][:, *R.upper] @ R.pairs.T
    cross = J[:, :a, a:]
    if K is None:
        return Energies(left, right, cross, three_body=False)
    K = K.double()
    left = left + _triple_energy(K[:, :a, :a, :a], L)
    right = right + _triple_energy(K[:, a:, a:, a:], R)
    pair_left = K[:, :a, :a, a:][:, *L.upper]  # [G, pairs_L, b]
    pair_right = K[:, :a, a:, a:][:, :, *R.upper]  # [G, a, pairs_R]
    corner = K.new_zeros(number, pair_left.shape[1], pair_right.shape[2])
    cross = torch.cat((torch.cat((cross, pair_right), 2), torch.cat((pair_left, corner), 2)), 1)
    return Energies(left, right, cross, three_body=True)


def _triple_energy(K: Tensor, some: Part) -> Tensor:
    index = some.triples
    return K[:, *index] @ some.signs[:, index].prod(1).T
