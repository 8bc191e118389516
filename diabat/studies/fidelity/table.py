"""The metrics of a report in words, and as a table in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

DEFINITIONS = {
    "marginal_max": "largest |P(s=+1) - exact| over visible spins of all problems",
    "marginal_mean": "mean of the same",
    "marginal_floor": "marginal_mean that independent exact reads would show at this number of reads",
    "pair_max": "largest |<s_j s_k> - exact| over visible pairs",
    "pair_mean": "mean of the same",
    "tv": "total variation to the exact distribution over states, mean over problems",
    "tv_base": "tv of the reads that refine started from, with the same floor; null for other backends",
    "kl": "KL(backend || exact) over states in nats, mean over problems",
    "tv_floor": "tv of independent exact reads at this number of reads (plug-in bias), simulated",
    "kl_floor": "kl of the same",
    "beta_h": "scale of the fields by maximum pseudo-likelihood; 1 is right",
    "beta_J": "scale of the couplings, fitted together with beta_h; 1 is right",
    "beta_K": "scale of the three-body terms",
    "ess": "effective sample size (sum w)^2 / sum w^2; the number of reads where they are not weighted",
    "attention_max": "largest error of the normalised attention weights",
    "attention_mean": "mean of the same",
    "independent_error": "marginal_mean of the J = 0 answer",
    "mean_field_error": "marginal_mean of naive mean field",
    "capture": "coupling capture 1 - marginal_mean/independent_error: 1 all, 0 none of the couplings' effect",
    "capture_ceiling": "capture that independent exact reads would show at this number of reads",
    "mean_field_capture": "coupling capture of naive mean field",
    "us_per_query": "wall time of one call divided by its problems, in microseconds",
}

# (keys, header, format); of two keys both are shown, or the first one in a narrow table.
_COLUMNS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("marginal_mean", "marginal_max"), "|ΔP|\nmean/max", ".4f"),
    (("pair_mean", "pair_max"), "|Δ⟨ss⟩|\nmean/max", ".4f"),
    (("tv", "tv_floor"), "TV\n(floor)", ".3f"),
    (("kl",), "KL\nnats", ".1e"),
    (("beta_h",), "β_h", ".3f"),
    (("beta_J",), "β_J", ".3f"),
    (("ess",), "ESS", ".0f"),
    (("attention_mean",), "α error\nmean", ".4f"),
    (("capture", "capture_ceiling"), "capture\n(ceiling)", "z.2f"),
    (("mean_field_capture",), "mean field\ncapture", "z.2f"),
    (("us_per_query",), "µs per\nquery", ".1f"),
)
_NARROW = {"marginal_mean", "tv", "beta_h", "beta_J", "capture", "us_per_query"}
# Key -> key of the value before the sweeps of ``refine``, shown in front of it.
_BEFORE = {"tv": "tv_base"}


def render(rows: Sequence[dict[str, Any]], *, narrow: bool = False) -> Table:
    """Build a rich table of the rows of a report; ``narrow`` fits on 80 characters."""
    from rich import box
    from rich.table import Table

    columns = _columns(rows)
    if narrow:
        columns = [
            ((n[0],), h.split("\n")[0].removesuffix(" per"), f) for n, h, f in columns if n[0] in _NARROW
        ]
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0) if narrow else (0, 1),
        pad_edge=False,
        title="Fidelity against exact",
        show_edge=False,
    )
    for header in ("ensemble", "g", "backend"):
        table.add_column(header, no_wrap=True, justify="right" if header == "g" else "left")
    for _, header, _ in columns:
        table.add_column(header, no_wrap=True, justify="right")
    for index, row in enumerate(rows):
        following = rows[index + 1 : index + 2]
        last = not following or _place(following[0]) != _place(row)
        cells = [_cell(row, names, form) for names, _, form in columns]
        if row["refused"] is not None:
            cells = ["refused", *[""] * (len(columns) - 1)]
        table.add_row(row["ensemble"], f"{row['strength']:.2g}", row["backend"], *cells, end_section=last)
    return table


def _columns(rows: Sequence[dict[str, Any]]) -> list[tuple[tuple[str, ...], str, str]]:
    """Columns of a wide table; a header says so where some cell shows a value of the base as well."""
    refined = {key for key, before in _BEFORE.items() if any(row.get(before) is not None for row in rows)}
    return [(names, f"base→{h}" if names[0] in refined else h, form) for names, h, form in _COLUMNS]


def _place(row: dict[str, Any]) -> tuple[Any, Any]:
    return row["ensemble"], row["strength"]


def _cell(row: dict[str, Any], names: tuple[str, ...], form: str) -> str:
    values = [row.get(name) for name in names]
    if values[0] is None:
        return "–"
    shown = [format(value, form) for value in values if value is not None]
    before = row.get(_BEFORE.get(names[0], ""))
    if before is not None:
        shown[0] = f"{before:{form}}→{shown[0]}"
    if names[-1].endswith(("floor", "ceiling")):
        return shown[0] if len(shown) == 1 else f"{shown[0]} ({shown[1]})"
    return "/".join(shown)
