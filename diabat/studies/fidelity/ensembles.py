"""Problems on which backends are compared: random ensembles by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diabat.checks import ArgumentError, check_count
from diabat.compute.memory import require_memory
from diabat.ising import Ising, pack_couplings

DEFAULT_STRENGTHS = (0.1, 0.3, 0.6, 1.0, 1.5)


@dataclass(frozen=True, eq=False)
class Ensemble:
    """One batch of problems with a name and a place on the axis of coupling strengths.

    Attributes:
        name: Name of the family; members of different strength share it.
        strength: g of the family; for recorded attention sqrt(n · mean J²), the g of an SK model of that
            size.
        ising: The problems.
    """

    name: str
    strength: float
    ising: Ising


def sk(
    strengths: Sequence[float] = DEFAULT_STRENGTHS,
    *,
    num_spins: int = 6,
    instances: int = 12,
    queries: int = 4,
    field_strength: float | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> list[Ensemble]:
    """Sherrington-Kirkpatrick models J ~ N(0, g/√n), h ~ N(0, g_h), g and g_h being standard deviations.

    The same random numbers are scaled for every strength, so that a curve over g is smooth.

    Args:
        strengths: Values of g, dimensionless.
        num_spins: Number n of spins.
        instances: Number of different J.
        queries: Number of different h for each J.
        field_strength: g_h; None means g_h = g.
        seed: Seed of the ensemble.
        dtype: float32 or float64.

    Returns:
        One ensemble for each g: fields [instances, queries, n], J [instances, 1, n, n].

    Raises:
        ValueError: If a size is below 1, or a strength is negative or not finite.
    """
    for name, size in (("num_spins", num_spins), ("instances", instances), ("queries", queries)):
        check_count(name, size)
    _require_room(len(strengths), num_spins, instances, queries)
    generator = torch.Generator().manual_seed(seed)
    pairs = num_spins * (num_spins - 1) // 2
    h = torch.randn(instances, queries, num_spins, generator=generator, dtype=torch.float64)
    J = torch.randn(instances, 1, pairs, generator=generator, dtype=torch.float64)
    J = pack_couplings(J, num_spins) / math.sqrt(num_spins)
    return [
        Ensemble("SK", g, Ising((g_h * h).to(dtype), (g * J).to(dtype)))
        for g, g_h in _strengths(strengths, field_strength)
    ]


def ferromagnet(
    strengths: Sequence[float] = DEFAULT_STRENGTHS,
    *,
    num_spins: int = 6,
    queries: int = 48,
    field_strength: float | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> list[Ensemble]:
    """All-to-all ferromagnet J_jk = g/n in random fields h ~ N(0, g_h).

    Args:
        strengths: Values of g, dimensionless.
        num_spins: Number n of spins.
        queries: Number of different h.
        field_strength: g_h; None means g_h = g.
        seed: Seed of the fields.
        dtype: float32 or float64.

    Returns:
        One ensemble for each g: fields [queries, n], J [n, n].

    Raises:
        ValueError: If a size is below 1, or a strength is negative or not finite.
    """
    check_count("num_spins", num_spins)
    check_count("queries", queries)
    _require_room(len(strengths), num_spins, 1, queries)
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(queries, num_spins, generator=generator, dtype=torch.float64)
    J = (1 - torch.eye(num_spins, dtype=torch.float64)) / num_spins
    return [
        Ensemble("ferromagnet", g, Ising((g_h * h).to(dtype), (g * J).to(dtype)))
        for g, g_h in _strengths(strengths, field_strength)
    ]


def _require_room(strengths: int, spins: int, instances: int, queries: int) -> None:
    """Refuse ensembles that do not fit into memory, float64."""
    needed = 8 * (strengths + 2) * instances * spins * (spins + queries)
    require_memory(needed, f"{instances} x {queries} problems of {spins} spins", "instances")


def coupling_strength(couplings: Tensor | None) -> float:
    """Return sqrt(n · mean_{j<k} J_jk²), the g of an SK model with couplings of this size; 0 without J."""
    if couplings is None or couplings.shape[-1] < 2:
        return 0.0
    n = couplings.shape[-1]
    upper = torch.triu_indices(n, n, offset=1)
    return math.sqrt(n * float(couplings[..., upper[0], upper[1]].double().square().mean()))


def _strengths(strengths: Sequence[float], field_strength: float | None) -> list[tuple[float, float]]:
    for g in (*strengths, *([] if field_strength is None else [field_strength])):
        if not (math.isfinite(g) and g >= 0):
            raise ArgumentError("strengths", f"expected finite values >= 0, got {g!r}.")
    return [(float(g), float(g if field_strength is None else field_strength)) for g in strengths]
