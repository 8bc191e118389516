"""Random problems with couplings in a band, and masks of visible spins."""

from __future__ import annotations

import torch
from torch import Tensor

from diabat.ising import Ising
from diabat.testing.problems import Lead, make_problem


def band(n: int, width: int) -> Tensor:
    """1 where 0 < |j - k| <= width, [n, n]."""
    places = torch.arange(n)
    apart = (places[:, None] - places).abs()
    return ((apart > 0) & (apart <= width)).double()


def banded_problem(
    batch: tuple[int, ...],
    n: int,
    width: int,
    *,
    lead: Lead = "shared",
    seed: int = 0,
    fields: float = 0.6,
    couplings: float = 0.5,
    dtype: torch.dtype = torch.float64,
    visible: Tensor | None = None,
) -> Ising:
    ising = make_problem(batch, n, lead=lead, seed=seed, fields=fields, couplings=couplings, dtype=dtype)
    J = ising.couplings
    return Ising(ising.fields, None if J is None else J * band(n, width).to(dtype), visible)


def ragged(problems: int, n: int) -> Tensor:
    mask = torch.rand(problems, n, generator=torch.Generator().manual_seed(3)) < 0.6
    mask[0] = False
    mask[1] = True
    return mask


PATTERNS = {
    "all": None,
    "causal": torch.ones(6, 6, dtype=torch.bool).tril(),
    "reversed": torch.ones(6, 6, dtype=torch.bool).triu(),
    "padding": (torch.arange(6) < 4).expand(6, 6).clone(),
    "shared_row": torch.tensor([True, False, True, True, False, True]),
    "ragged": ragged(6, 6),
    "nothing": torch.zeros(6, 6, dtype=torch.bool),
    "one_for_all": torch.tensor([True]),
}
