"""Test problems for samplers: small, seeded, and strong enough to reveal mistakes."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from diabat.ising import Ising, pack_couplings, pack_three_body

Lead = Literal["none", "shared", "heads", "per_problem"]
LEADS: tuple[Lead, ...] = get_args(Lead)
"""Leading shapes of J."""


def make_problem(
    batch: tuple[int, ...], n: int, *, lead: Lead = "shared", seed: int = 0,
    fields: float = 0.6, couplings: float = 0.5, three_body: float = 0.0, dtype: torch.dtype = torch.float64,
) -> Ising:  # fmt: skip
    """Random problem of n spins with standard deviations of h, J and, unless 0, of K; fields [*batch, n].

    ``lead`` is the leading shape of J and K: no J at all, [n, n], [H, 1, n, n] against a batch [..., H, T], or one J
    for every problem.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    heads = (batch[-2], 1) if len(batch) > 1 else ()
    shape = {"none": (), "shared": (), "heads": heads, "per_problem": batch}[lead]
    h = (fields * normal(*batch, n)).to(dtype)
    J = None if lead == "none" else pack_couplings(couplings * normal(*shape, n * (n - 1) // 2), n).to(dtype)
    triples = n * (n - 1) * (n - 2) // 6
    K = pack_three_body(three_body * normal(*shape, triples), n).to(dtype) if three_body else None
    return Ising(h, J, three_body=K)


def with_visible(ising: Ising, visible: Tensor) -> Ising:
    """Return the same parameters with a visibility mask."""
    return Ising(ising.fields, ising.held_couplings, visible, ising.three_body)


def causal_problem(n: int, *, seed: int, dtype: torch.dtype = torch.float64) -> Ising:
    """One causal window: fields [n, n], J [n, n], position i sees the spins j <= i."""
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    return with_visible(make_problem((n,), n, seed=seed, dtype=dtype), mask)
