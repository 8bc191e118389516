"""The figures of docs/dqa.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.dqa_fidelity import refinement, steps, strength
from benchmarks.dqa_fidelity.core import Row, label_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Tables = dict[str, list[Row]]

# Okabe and Ito's palette, told apart by colour-blind readers; markers tell lines apart in grey print.
_STYLES: dict[str, dict[str, Any]] = {
    "J = 0": {"color": "0.45", "marker": "", "linestyle": "--"},
    "mean field": {"color": "0.45", "marker": "x", "linestyle": ":"},
    f"{strength.READS} exact reads": {"color": "0.75", "linewidth": 4.0},
    "5 ns, one beta": {"color": "#E69F00", "marker": "v"},
    "5 ns, predicted": {"color": "#0072B2", "marker": "o"},
    "5 ns, fitted": {"color": "#56B4E9", "marker": "s"},
    "5 ns + refine 1": {"color": "#0072B2", "marker": "P", "linestyle": "--"},
    "5 ns + refine 4": {"color": "#0072B2", "marker": "X", "linestyle": ":"},
    "boltzmann-4": {"color": "#CC79A7", "marker": "^"},
    "boltzmann-8": {"color": "#D55E00", "marker": "D"},
    "boltzmann-16": {"color": "#009E73", "marker": "*"},
    "boltzmann-16-wide": {"color": "#009E73", "marker": "o", "linestyle": "--"},
    "boltzmann-8 + refine 1": {"color": "#D55E00", "marker": "P", "linestyle": "--"},
}
_BASES: dict[str, dict[str, Any]] = {
    "coin flips": {"color": "0.45", "marker": "x", "linestyle": ":"},
    "J = 0": {"color": "0.45", "marker": "+", "linestyle": "--"},
    "5 ns anneal": {"color": "#0072B2", "marker": "o"},
    "boltzmann-8": {"color": "#D55E00", "marker": "D"},
}
_ORDERS = {"first": ("#E69F00", "v"), "strang": ("#0072B2", "o"), "suzuki4": ("#009E73", "s")}


def draw(found: dict[str, Tables], folder: Path) -> None:
    """Draw the figures of the sections that were run, as PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    for section, painter in (("strength", _strength), ("steps", _steps), ("refine", _refine)):
        if section in found:
            figure = painter(found[section])
            figure.savefig(folder / f"dqa-{section}.png", dpi=160)


def _figure(panels: int, height: float) -> tuple[Figure, list[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, height), layout="constrained")
    FigureCanvasAgg(figure)  # a figure without pyplot leaves no global state behind
    return figure, list(figure.subplots(1, panels, sharey=True, squeeze=False)[0])


def _legend(figure: Figure, axis: Axes, columns: int) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def _strength(tables: Tables) -> Figure:
    figure, axes = _figure(len(strength.SIZES), 5.2)
    for axis, n in zip(axes, strength.SIZES, strict=True):
        rows = {row["method"]: row for row in tables[strength.ERROR] if row["n"] == n}
        for name, style in _STYLES.items():
            if name in rows:
                errors = [rows[name][label_of(g)] for g in strength.STRENGTHS]
                axis.loglog(strength.STRENGTHS, errors, label=name, **style)
        axis.set_ylim(1e-5, 0.4)
        _ticks(axis, strength.STRENGTHS)
        axis.set_title(f"n = {n}")
        axis.set_xlabel("coupling strength g")
    axes[0].set_ylabel("mean |error| of P(s = +1)")
    _legend(figure, axes[0], 4)
    return figure


def _steps(tables: Tables) -> Figure:
    figure, axes = _figure(2, 4.4)
    panels = (
        ("layers", "layers of the circuit", (50, 100, 200, 500, 1000, 4000)),
        ("µs per query", "CPU µs per query", (20, 50, 100, 200, 500, 1000)),
    )
    for axis, (key, label, ticks) in zip(axes, panels, strict=True):
        for grid, line in (("uniform", "-"), ("adaptive", "--")):
            for order, (colour, marker) in _ORDERS.items():
                rows = [
                    r
                    for r in tables[steps.TITLE]
                    if (r["order"], r["grid"], r["refused"]) == (order, grid, False)
                ]
                axis.loglog(
                    [r[key] for r in rows], [r["TV"] for r in rows],
                    label=f"{order}, {grid}", color=colour, marker=marker, linestyle=line,
                    markerfacecolor=colour if grid == "uniform" else "white",
                )  # fmt: skip
        axis.set_xlabel(label)
        _ticks(axis, ticks)
    axes[0].set_ylabel("TV to the converged anneal")
    _legend(figure, axes[0], 3)
    return figure


def _refine(tables: Tables) -> Figure:
    figure, axes = _figure(len(refinement.STRENGTHS), 4.0)
    for axis, g in zip(axes, refinement.STRENGTHS, strict=True):
        rows = {row["base"]: row for row in tables[refinement.DISTANCE] if row["g"] == g}
        for name, style in _BASES.items():
            if name in rows:
                axis.semilogy([rows[name][str(k)] for k in refinement.SWEEPS], label=name, **style)
        axis.set_ylim(1e-5, 1.2)
        _ticks(axis, range(len(refinement.SWEEPS)), refinement.SWEEPS)  # equal distances for 0, 1, 2, 4, ...
        axis.set_title(f"g = {g:g}")
        axis.set_xlabel("sweeps")
    axes[0].set_ylabel("TV to Boltzmann's law")
    _legend(figure, axes[0], 4)
    return figure


def _ticks(axis: Axes, places: Sequence[float], labels: Sequence[float] = ()) -> None:
    axis.set_xticks(places, [f"{label:g}" for label in labels or places])
    axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axis.grid(alpha=0.3)
