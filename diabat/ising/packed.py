"""Interactions from one number for each pair or triple of spins: symmetric, differentiable."""

from __future__ import annotations

import math
from itertools import permutations

import torch
from torch import Tensor


def pack_couplings(pairs: Tensor, n: int, reach: int | None = None) -> Tensor:
    """Build symmetric J [..., n, n] from its upper triangle [..., n(n-1)/2] in row-major order; differentiable.

    With a ``reach`` w the entries are those with k - j <= w, [..., Σ_{d=1..w} (n-d)]; the others are 0.
    """
    j, k = pair_indices(n, reach, pairs.device)
    J = pairs.new_zeros(*pairs.shape[:-1], n, n)
    J[..., j, k] = pairs
    return J + J.mT


def pair_indices(
    n: int, reach: int | None = None, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Indices of all pairs j < k of n spins with k - j <= reach, in row-major order."""
    if reach is None or reach >= n - 1:
        j, k = torch.triu_indices(n, n, offset=1, device=device)
        return j, k
    # All spins but the last w have w partners, and the last ones are all coupled: no mask, whose values are read.
    j = torch.arange(n - reach, device=device)[:, None].expand(-1, reach)
    k = j + torch.arange(1, reach + 1, device=device)
    last = torch.triu_indices(reach, reach, offset=1, device=device) + (n - reach)
    both = torch.cat((torch.stack((j.flatten(), k.flatten())), last), 1)
    return both[0], both[1]


def pack_three_body(triples: Tensor, n: int) -> Tensor:
    """Build symmetric K [..., n, n, n] from its entries j<k<l [..., n(n-1)(n-2)/6]; differentiable."""
    K = triples.new_zeros(*triples.shape[:-1], n, n, n)
    for j, k, m in permutations(triple_indices(n, triples.device)):
        K[..., j, k, m] = triples
    return K


def triple_indices(n: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """Indices of all triples j < k < l of n spins, in lexicographic order."""
    pairs = torch.triu_indices(n, n, offset=1, device=device)
    # The pairs above each j are the last ones of all pairs.
    counts = [math.comb(max(n - 1 - j, 0), 2) for j in range(max(n, 1))]
    above = [pairs[:, pairs.shape[1] - count :] for count in counts]
    first = [torch.full((count,), j, device=device) for j, count in enumerate(counts)]
    k, m = torch.cat(above, 1)
    return torch.cat(first), k, m
