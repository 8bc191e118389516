"""Random problems whose couplings are edges."""

from __future__ import annotations

import torch

from diabat.edges import Edges
from diabat.ising import Ising


def sparse_problem(
    batch: tuple[int, ...],
    n: int,
    count: int,
    *,
    lead: tuple[int, ...] = (),
    seed: int = 0,
    fields: float = 0.5,
    couplings: float = 0.6,
    dtype: torch.dtype = torch.float64,
) -> Ising:
    """Random problem whose couplings are ``count`` random edges; h and J are multiples of 1/64, exact in float32.

    Args:
        batch: Leading shape of the fields.
        n: Spins.
        count: Edges, at most n(n - 1)/2.
        lead: Leading shape of the values.
        seed: Seed.
        fields: Standard deviation of h.
        couplings: Standard deviation of J.
        dtype: float32 or float64.
    """
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.triu_indices(n, n, offset=1).T
    index = pairs[torch.randperm(len(pairs), generator=generator)[:count]]
    h, J = (
        (64 * scale * torch.randn(*shape, generator=generator, dtype=torch.float64)).round() / 64
        for scale, shape in ((fields, (*batch, n)), (couplings, (*lead, count)))
    )
    flipped = torch.rand(count, generator=generator) < 0.5  # either order of a pair is an edge
    index = torch.where(flipped[:, None], index.flip(1), index)
    return Ising(h.to(dtype), Edges(index, J.to(dtype)))
