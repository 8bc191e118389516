"""Conversion of problems into programmed fields and couplings: scales and control noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from diabat.checks import ArgumentError, is_number
from diabat.circuits import Batch, Betas
from diabat.ising import Ising
from diabat.ising_checks import few_numbers
from diabat.samplers.grouping import Places, Tier, Tiers, tiers, unpadded_cost


@dataclass(frozen=True, eq=False)
class Programmed:
    """A batch of problems as an engine runs it, in parts that share couplings, with the conversion of results.

    Attributes:
        ising: The given problems.
        batches: Programmed problems of each part, P of them with m spins.
        places: Their rows in the flat batch, their spins and their couplings.
        whole: The concatenated parts are the batch in its order, without padding.
    """

    ising: Ising
    batches: list[Batch]
    places: list[Places]
    whole: bool

    @property
    def num_spins(self) -> int:
        """Number of programmed spins of all parts."""
        return sum(place.spins.numel() for place in self.places)

    def cut(self, values: Tensor) -> list[np.ndarray]:
        """Split values per spin [*batch, n] into float64 [P, m] of each part."""
        flat = values.detach().double().cpu().reshape(self.ising.num_problems, -1)
        return [flat[place.rows[:, None], place.spins].numpy() for place in self.places]

    def per_spin(self, values: Sequence[np.ndarray]) -> Tensor:
        """Join values per spin, [P, m] of each part, to float64 [*batch, n]; zero for invisible spins."""
        shape = self.ising.fields.shape
        if self.whole:
            joined = values[0] if len(values) == 1 else np.concatenate(values)
            return torch.from_numpy(joined).reshape(shape)
        out = torch.zeros(self.ising.num_problems, shape[-1], dtype=torch.float64)
        for place, value in zip(self.places, values, strict=True):
            out[place.rows[:, None], place.spins] = torch.from_numpy(value)
        return out.reshape(shape)

    def per_pair(self, values: Sequence[np.ndarray]) -> Tensor:
        """Join values per pair, [P, m, m] of each part, to float64 [*batch, n, n]; zero for invisible spins."""
        n = self.ising.num_spins
        out = torch.zeros(self.ising.num_problems, n, n, dtype=torch.float64)
        for place, value in zip(self.places, values, strict=True):
            rows, spins = place.rows, place.spins
            out[rows[:, None, None], spins[:, :, None], spins[:, None, :]] = torch.from_numpy(value)
        return out.reshape(*self.ising.fields.shape, n)

    def per_state(self, tables: Sequence[np.ndarray]) -> Tensor:
        """Join values per state, [P, 2^n] of each part, to float64 [*batch, 2^n]; every spin is visible."""
        out = torch.empty(self.ising.num_problems, 2**self.ising.num_spins, dtype=torch.float64)
        for place, table in zip(self.places, tables, strict=True):
            out[place.rows] = torch.from_numpy(table)
        return out.reshape(*self.ising.batch_shape, -1)

    def reads(self, values: Sequence[np.ndarray], num_reads: int) -> Tensor:
        """Join reads, int8 [num_reads, P, m] of each part, to [num_reads, *batch, n]; -1 for invisible spins."""
        shape, total = self.ising.fields.shape, self.ising.num_problems
        out = torch.full((num_reads, total, shape[-1]), -1, dtype=torch.int8)
        for place, spins in zip(self.places, values, strict=True):
            out[:, place.rows[:, None], place.spins] = torch.from_numpy(spins)
        return out.reshape(num_reads, *shape)

    def per_coupling(self, shares: Sequence[np.ndarray], couplings: Tensor) -> Tensor:
        """Sum derivatives, [m, m] or [P, m, m] of each part, to float64 in the shape of J."""
        n = couplings.shape[-1]
        out = torch.zeros(couplings.shape[:-2].numel(), n, n, dtype=torch.float64)
        for place, share in zip(self.places, shares, strict=True):
            block = torch.from_numpy(share)
            if block.ndim == 2:  # one J for all problems of the part
                place, block = Places(*(t[:1] for t in place)), block[None]
            where = (place.couplings[:, None, None], place.spins[:, :, None], place.spins[:, None, :])
            out.index_put_(where, block, accumulate=True)
        return out.reshape(couplings.shape)


@dataclass(frozen=True)
class ControlNoise:
    """Errors of the programmed values: normal and independent for every problem, in hardware units.

    Attributes:
        fields: Standard deviation σ of each programmed field.
        couplings: σ of each programmed coupling.
    """

    fields: float = 0.0
    couplings: float = 0.0

    def __post_init__(self) -> None:
        for name in ("fields", "couplings"):
            value = getattr(self, name)
            number = is_number(value)
            if not number or not 0 <= value < float("inf"):
                raise ArgumentError(
                    f"{name[:-1]}_noise",
                    f"expected a standard deviation >= 0 in hardware units, got {value!r}.",
                )

    @property
    def present(self) -> bool:
        """Whether the noise is not zero."""
        return self.fields > 0 or self.couplings > 0


def program(ising: Ising, betas: Betas, noise: ControlNoise, seed: int) -> Programmed:
    """Divide by the inverse temperatures, add the control noise, and group problems that share couplings.

    Args:
        ising: The problems.
        betas: h / beta_h and J / beta_J are programmed.
        noise: Errors of the programmed values.
        seed: Seed of the noise.
    """
    # Values that are checked already, and cannot overflow when they are divided.
    batch = Batch.checked if ising.check and ising.fields.dtype == torch.float32 else Batch
    ising = ising.detach()
    found = tiers(ising, unpadded_cost)
    batches: list[Batch] = []
    places: list[Places] = []
    for tier, fields, couplings in _gathered(found, ising):
        h = fields / betas.beta_h  # [G, Q, m]
        groups, problems, m = h.shape
        J = np.zeros((groups, m, m)) if couplings is None else couplings / betas.beta_J
        if problems == 1 and groups > 1:
            # Every problem has different couplings: one batch of all.  (A single problem needs no phase table per
            # lane, which would more than double its memory.)
            batches.append(batch(h[:, 0], J))
            places.append(tier.places)
            continue
        for g, place in enumerate(tier.places_by_group):
            batches.append(batch(h[g, : len(place.rows)], J[g]))
            places.append(place)
    if noise.fields or noise.couplings:
        random = np.random.default_rng([seed, 1])
        batches = [_noisy(batch, noise, random) for batch in batches]
    return Programmed(ising, batches, places, found.whole)


def _gathered(found: Tiers, ising: Ising) -> list[tuple[Tier, np.ndarray, np.ndarray | None]]:
    """Fields [G, Q, m] and couplings [G, m, m] of each tier, float64."""
    if found.whole and ising.edges is None:
        tier, J = found.tiers[0], ising.matrix
        groups, problems, m = tier.cells.shape
        return [
            (
                tier,
                _double(ising.fields).reshape(groups, problems, m),
                None if J is None else _double(J).reshape(groups, m, m),
            )
        ]
    return [
        (group.tier, _double(group.fields), None if group.couplings is None else _double(group.couplings))
        for group in found.gather(ising)
    ]


def _double(values: Tensor) -> np.ndarray:
    few = few_numbers(values)
    return values.double().cpu().numpy() if few is None else few.astype(np.float64)


def _noisy(batch: Batch, noise: ControlNoise, random: np.random.Generator) -> Batch:
    fields = batch.fields + noise.fields * random.standard_normal(batch.fields.shape)
    if not noise.couplings:
        return Batch(fields, batch.couplings)
    n = batch.num_spins
    upper = np.triu(random.standard_normal((batch.num_problems, n, n)), 1)
    return Batch(fields, batch.couplings + noise.couplings * (upper + upper.swapaxes(1, 2)))
