"""The metrics of a gradient report in words, and as a table in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

_OF = {"h": "dL/dh of all queries", "J": "dL/dJ, summed over the queries that share J"}
GRADIENT_DEFINITIONS = {
    "estimator": "gradient estimator; the loss is L = sum v P(s=+1) with v ~ N(0, 1), the exact gradient Boltzmann's",
    "num_reads": "reads per problem of one estimate; null where nothing is drawn",
    "repeats": "independent estimates",
    **{
        f"{name}_{key}": text.format(of=of)
        for name, of in _OF.items()
        for key, text in {
            "cosine": "cosine of one estimate with the exact {of}; mean over estimates",
            "bias": "|mean estimate - exact| / |exact| of {of}",
            "bias_floor": "what the noise of the mean alone contributes to it; null where nothing is drawn",
            "variance": "num_reads times the variance of one estimate / |exact|^2 of {of}: variance per read",
            "own_cosine": "cosine with the derivative of the backend's own law; null for Boltzmann backends",
        }.items()
    },
    "us_per_query": "wall time of one forward and backward pass divided by its problems, in microseconds",
}

# (key, header, format, key of the value in parentheses)
_COLUMNS: tuple[tuple[str, str, str, str | None], ...] = (
    ("h_cosine", "cos h", ".3f", None),
    ("h_bias", "bias h", ".3f", "h_bias_floor"),
    ("h_variance", "var h", ".3g", None),
    ("J_cosine", "cos J", ".3f", None),
    ("J_bias", "bias J", ".3f", "J_bias_floor"),
    ("J_variance", "var J", ".3g", None),
    ("h_own_cosine", "own h", ".3f", None),
    ("J_own_cosine", "own J", ".3f", None),
    ("us_per_query", "µs per\nquery", ".1f", None),
)
_NARROW = {"h_cosine", "h_bias", "J_cosine", "J_bias"}


def render_gradients(rows: Sequence[dict[str, Any]], *, narrow: bool = False) -> Table:
    """Build a rich table of the rows of a report; ``narrow`` fits on 80 characters."""
    from rich import box
    from rich.table import Table

    columns = [column for column in _COLUMNS if not narrow or column[0] in _NARROW]
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0) if narrow else (0, 1),
        pad_edge=False,
        title="Gradients against exact" if narrow else "Gradients against exact (floor: noise of the mean)",
        show_edge=False,
    )
    for header in ("ensemble", "g", "backend", "estimator"):
        table.add_column(header, no_wrap=True, justify="right" if header == "g" else "left")
    for _, header, _, _ in columns:
        table.add_column(header, no_wrap=True, justify="right")
    for index, row in enumerate(rows):
        following = rows[index + 1 : index + 2]
        last = not following or _place(following[0]) != _place(row)
        cells = [_cell(row, key, form, None if narrow else floor) for key, _, form, floor in columns]
        if row["refused"] is not None:
            cells = ["refused", *[""] * (len(columns) - 1)]
        names = (row["ensemble"], f"{row['strength']:.2g}", row["backend"], row["estimator"])
        table.add_row(*names, *cells, end_section=last)
    return table


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["ensemble"], row["strength"], row["backend"]


def _cell(row: dict[str, Any], key: str, form: str, floor: str | None) -> str:
    if row.get(key) is None:
        return "–"
    shown = format(row[key], form)
    return shown if floor is None or row.get(floor) is None else f"{shown} ({row[floor]:{form}})"
