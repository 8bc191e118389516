"""Problems on which backends are compared: random ensembles by seed, and the queries of trained attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from diabat.checks import ArgumentError, check_count
from diabat.compute.memory import require_memory
from diabat.ising import Ising, pack_couplings

DEFAULT_STRENGTHS = (0.1, 0.3, 0.6, 1.0, 1.5)


@dataclass(frozen=True, eq=False)
class Ensemble:
    """One batch of problems with a name and a coupling strength.

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
    return _scaled("SK", h, J, strengths, field_strength, dtype)


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
    return _scaled("ferromagnet", h, J, strengths, field_strength, dtype)


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


def _scaled(
    name: str,
    h: Tensor,
    J: Tensor,
    strengths: Sequence[float],
    field_strength: float | None,
    dtype: torch.dtype,
) -> list[Ensemble]:
    """One ensemble for each strength g: g_h h and g J."""
    for g in (*strengths, *([] if field_strength is None else [field_strength])):
        if not (math.isfinite(g) and g >= 0):
            raise ArgumentError("strengths", f"expected finite values >= 0, got {g!r}.")
    scales = [(float(g), float(g if field_strength is None else field_strength)) for g in strengths]
    return [Ensemble(name, g, Ising((g_h * h).to(dtype), (g * J).to(dtype))) for g, g_h in scales]


def from_attention(
    fields: Tensor,
    couplings: Tensor | None,
    visible: Tensor | None = None,
    three_body: Tensor | None = None,
    *,
    windows: int = 16,
    rows: Literal["last", "random"] | Sequence[int] = "last",
    num_rows: int = 4,
    seed: int = 0,
    name: str = "attention",
) -> Ensemble:
    """Take a subset of the queries of a trained attention layer, heads and couplings as they are.

    Args:
        fields: h [windows, ..., T, T] as the layer computed it (rows are queries), e.g. [B, H, T, T].
        couplings: J [*lead, T, T], ``lead`` broadcasting against the fields' leading shape, e.g. [H, 1, T,
            T].
        visible: bool, broadcastable to the fields.
        three_body: K [*lead, T, T, T], or None.
        windows: Number of entries of the first axis to take, by seed; all if there are fewer.
        rows: The last query rows, random ones by seed, or the rows themselves.
        num_rows: Number of rows for ``"last"`` and ``"random"``.
        seed: Seed of the choice.
        name: Name of the ensemble.

    Returns:
        Fields [min(windows, B), ..., rows, T]; strength sqrt(T · mean J²) over the pairs.

    Raises:
        ValueError: If the fields have fewer than three axes or a row does not exist.
    """
    if fields.ndim < 3:
        raise ArgumentError("fields", f"expected shape [windows, ..., T, T], got {list(fields.shape)}.")
    generator = torch.Generator().manual_seed(seed)
    picked = torch.randperm(fields.shape[0], generator=generator)[:windows].sort().values.to(fields.device)
    kept = _rows(rows, num_rows, fields.shape[-2], generator).to(fields.device)

    def choose(value: Tensor | None, trailing: int) -> Tensor | None:
        """Index the window axis and the row axis where they are not broadcast."""
        if value is None:
            return None
        value = value.detach().reshape((1,) * (fields.ndim - 1 + trailing - value.ndim) + tuple(value.shape))
        row = fields.ndim - 2
        value = value if value.shape[row] == 1 else value.index_select(row, kept)
        return value if value.shape[0] == 1 else value.index_select(0, picked)

    h = choose(fields, 1)
    assert h is not None
    J, K = choose(couplings, 2), choose(three_body, 3)
    return Ensemble(name, coupling_strength(J), Ising(h, J, choose(visible, 1), K))


def _rows(rows: str | Sequence[int], num_rows: int, total: int, generator: torch.Generator) -> Tensor:
    if rows == "last":
        return torch.arange(max(0, total - num_rows), total)
    if rows == "random":
        return torch.randperm(total, generator=generator)[:num_rows].sort().values
    if isinstance(rows, str):
        raise ArgumentError("rows", f"expected 'last', 'random' or row numbers, got '{rows}'.")
    wrong = [row for row in rows if not 0 <= row < total]
    if wrong or not rows:
        raise ArgumentError("rows", f"expected at least one row between 0 and {total - 1}, got {list(rows)}.")
    return torch.tensor(list(rows))
