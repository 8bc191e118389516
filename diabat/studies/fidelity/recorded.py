"""The queries of trained attention as an ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.ising import Ising
from diabat.studies.fidelity.ensembles import Ensemble, coupling_strength


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
