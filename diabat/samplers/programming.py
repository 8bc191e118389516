"""From the problems asked for to the fields and couplings that are programmed: scales and control noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.circuits import Batch, Betas
from diabat.ising import Ising
from diabat.samplers.grouping import Tier, grouped, unpadded_cost


@dataclass(frozen=True, eq=False)
class Placed:
    """A batch and where it came from.

    Attributes:
        batch: Programmed problems, Q of them with m spins.
        rows: int64 [Q], index into the flat batch of N problems.
        spins: int64 [Q, m], spin of each problem.
        couplings: int64 [Q], index into the distinct couplings.
    """

    batch: Batch
    rows: Tensor
    spins: Tensor
    couplings: Tensor


@dataclass(frozen=True)
class ControlNoise:
    """Errors of the programmed values: normal, independent, anew for every problem, in hardware units.

    Attributes:
        fields: Standard deviation σ of each programmed field.
        couplings: σ of each programmed coupling.
    """

    fields: float = 0.0
    couplings: float = 0.0

    def __post_init__(self) -> None:
        for name in ("fields", "couplings"):
            value = getattr(self, name)
            number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
            if not number or not 0 <= value < float("inf"):
                raise ArgumentError(
                    f"{name[:-1]}_noise",
                    f"expected a standard deviation >= 0 in hardware units, got {value!r}.",
                )

    @property
    def present(self) -> bool:
        """Whether there is any."""
        return self.fields > 0 or self.couplings > 0


def program(ising: Ising, betas: Betas, noise: ControlNoise, seed: int) -> list[Placed]:
    """Divide by the inverse temperatures, add the control noise, and group what shares couplings.

    Args:
        ising: The problems.
        betas: h / beta_h and J / beta_J are programmed.
        noise: Errors of the programmed values.
        seed: Seed of these errors.
    """
    random = np.random.default_rng([seed, 1])
    parts = list(_parts(ising, betas))
    return (
        [replace(part, batch=_noisy(part.batch, noise, random)) for part in parts] if noise.present else parts
    )


def _parts(ising: Ising, betas: Betas) -> Iterator[Placed]:
    for group in grouped(ising.detach(), unpadded_cost):
        tier = group.tier
        h = group.fields.detach().double().cpu().numpy() / betas.beta_h  # [G, Q, m]
        groups, problems, m = h.shape
        if group.couplings is None:
            J = np.zeros((groups, m, m))
        else:
            J = group.couplings.detach().double().cpu().numpy() / betas.beta_J
        if problems == 1 and groups > 1:
            # Every problem has couplings of its own: one batch of them all.  (A single problem needs no phase table
            # per lane, which would double its memory and more.)
            yield Placed(Batch(h[:, 0], J), *_places(tier, ising.num_problems, together=True)[0])
            continue
        places = _places(tier, ising.num_problems, together=False)
        for g, (rows, spins, couplings) in enumerate(places):
            yield Placed(Batch(h[g, : len(rows)], J[g]), rows, spins, couplings)


# Tiers of attention are the same at every step; weak, since those of large masks are made anew.
_kept: WeakKeyDictionary[Tier, list[tuple[Tensor, Tensor, Tensor]]] = WeakKeyDictionary()


def _places(tier: Tier, total: int, *, together: bool) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Rows, spins and couplings of the problems of each group, or of all in one; padding is left out."""
    if tier not in _kept:
        groups = [slice(None)] if together else [slice(g, g + 1) for g in range(len(tier.coupling))]
        _kept[tier] = [_places_of(tier, which, total) for which in groups]
    return _kept[tier]


def _places_of(tier: Tier, which: slice, total: int) -> tuple[Tensor, Tensor, Tensor]:
    problems = tier.problems[which].cpu()
    shape = problems.shape
    kept = (problems < total).reshape(-1)
    spins = tier.spins[which].cpu()[:, None].expand(*shape, -1).reshape(len(kept), -1)
    couplings = tier.coupling[which].cpu()[:, None].expand(shape).reshape(-1)
    return problems.reshape(-1)[kept], spins[kept], couplings[kept]


def _noisy(batch: Batch, noise: ControlNoise, random: np.random.Generator) -> Batch:
    fields = batch.fields + noise.fields * random.standard_normal(batch.fields.shape)
    if not noise.couplings:
        return Batch(fields, batch.couplings)
    n = batch.num_spins
    upper = np.triu(random.standard_normal((batch.num_problems, n, n)), 1)
    return Batch(fields, batch.couplings + noise.couplings * (upper + upper.swapaxes(1, 2)))


def scatter_moments(
    parts: list[Placed], values: list[np.ndarray], ising: Ising, *, pairs: bool = False
) -> Tensor:
    """Numbers per spin [Q, m] (or per pair [Q, m, m]) of all parts in a zero tensor [N, n] (or [N, n, n])."""
    n, total = ising.num_spins, ising.num_problems
    out = torch.zeros((total, n, n) if pairs else (total, n), dtype=torch.float64)
    for part, value in zip(parts, values, strict=True):
        block = torch.from_numpy(value)
        if pairs:
            out[part.rows[:, None, None], part.spins[:, :, None], part.spins[:, None, :]] = block
        else:
            out[part.rows[:, None], part.spins] = block
    return out


def gather_couplings(parts: list[Placed], shares: list[np.ndarray], couplings: Tensor) -> Tensor:
    """Sum the gradients of all parts into the shape of J."""
    n = couplings.shape[-1]
    out = torch.zeros(couplings.shape[:-2].numel(), n, n, dtype=torch.float64)
    for index, spins, share in _by_coupling(parts, shares):
        out.index_put_((index[:, None, None], spins[:, :, None], spins[:, None, :]), share, accumulate=True)
    return out.reshape(couplings.shape)


def _by_coupling(parts: list[Placed], shares: list[np.ndarray]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    for part, share in zip(parts, shares, strict=True):
        block = torch.from_numpy(share)
        if block.ndim == 2:  # one J for all problems of the part
            yield part.couplings[:1], part.spins[:1], block[None]
        else:
            yield part.couplings, part.spins, block
