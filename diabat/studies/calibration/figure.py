"""Figure of a calibration: inverse temperatures and distance to the target against annealing time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from diabat.drawing import new_figure, save_figure, tidy
from diabat.studies.calibration.report import CalibrationTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from diabat.studies.report import Row

# Okabe and Ito's palette, told apart by colour-blind readers; markers tell points apart in grey print.
# Term, label, colour, marker, its size and filling (the two fits nearly coincide), and shift in time of the ratios.
_TERMS = (
    ("J", "couplings $\\beta_J$", "#D55E00", {"marker": "s", "markersize": 8, "fillstyle": "none"}, 1.015),
    ("h", "fields $\\beta_h$", "#0072B2", {"marker": "o", "markersize": 4}, 0.985),
)
_DISTANCES = (
    ("tv_before", "to the target, predicted $\\beta$ programmed", "#0072B2", "o", "-"),
    ("tv_after", "to the target, fitted $\\beta$ programmed", "#D55E00", "s", "-"),
    ("tv_own", "to Boltzmann at its own fitted $\\beta$", "0.4", "^", ":"),
)


def plot_calibration(calibration: CalibrationTable, path: str | Path) -> Path:
    """Draw β_h and β_J against annealing time, their ratios to the prediction, and the distance to the target.

    Args:
        calibration: The table.
        path: Output file; the suffix chooses the format (png, pdf, svg).

    Returns:
        The path.
    """
    figure = new_figure(9.2, 4.8)
    panels: dict[str, Axes] = figure.subplot_mosaic(
        [["beta", "tv"], ["ratio", "tv"]], height_ratios=[2.2, 1], width_ratios=[1.1, 1]
    )
    _draw_betas(panels["beta"], calibration.rows)
    _draw_ratios(panels["ratio"], calibration.rows)
    _draw_distances(panels["tv"], calibration.rows)
    for name, axis in panels.items():
        _style(axis, [row["annealing_time_ns"] for row in calibration.rows], last=name != "beta")
    figure.suptitle(
        f"{calibration.label}; SK n = {calibration.num_spins}, "
        f"g = {calibration.strength:g}, {calibration.instances} × {calibration.queries} problems; "
        f"bars: {100 * calibration.level:g} % over instances",
        fontsize=10,
    )
    return save_figure(figure, path)


def _draw_betas(axis: Axes, rows: list[Row]) -> None:
    for term, label, colour, marker, shift in _TERMS:
        times = [row["annealing_time_ns"] for row in rows]
        predicted = [row[f"predicted_beta_{term}"] for row in rows]
        dash = "_" if len(rows) == 1 else ""  # one point makes no line
        axis.plot(
            times, predicted, dash, color=colour, linewidth=1.4, markersize=24, label=f"{label}, predicted"
        )
        _points(axis, rows, term, colour, marker, shift, f"{label}, fitted", relative=False)
    axis.set_yscale("log")
    _plain_numbers(axis.yaxis, [1, 2, 5])
    axis.set_ylabel("inverse temperature $\\beta$")
    axis.legend(frameon=False, fontsize=8.5)


def _draw_ratios(axis: Axes, rows: list[Row]) -> None:
    axis.axhline(1, color="0.4", linewidth=1)
    for term, label, colour, marker, shift in _TERMS:
        _points(axis, rows, term, colour, marker, shift, label, relative=True)
    axis.set_ylabel("fitted / predicted")


def _draw_distances(axis: Axes, rows: list[Row]) -> None:
    for key, label, colour, marker, style in _DISTANCES:
        points = [(row["annealing_time_ns"], row[key]) for row in rows if row[key] is not None]
        if points:
            x, y = zip(*points, strict=True)
            axis.plot(
                x, y, color=colour, marker=marker, linestyle=style, markersize=5, linewidth=1.4, label=label
            )
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=8.5, loc="lower right")
    axis.set_ylim(bottom=0)
    axis.set_ylabel("total variation, mean over problems")


def _points(
    axis: Axes,
    rows: list[Row],
    term: str,
    colour: str,
    marker: dict[str, Any],
    shift: float,
    label: str,
    *,
    relative: bool,
) -> None:
    """Fitted values with their intervals, the two terms shifted by 1.5 % in time so that both are visible."""
    x, y, bars = [], [], []
    for row in rows:
        value, high = row[f"fitted_beta_{term}"], row[f"fitted_beta_{term}_high"]
        if value is None:
            continue
        unit = row[f"predicted_beta_{term}"] if relative else 1.0
        x.append(row["annealing_time_ns"] * (shift if relative else 1.0))
        y.append(value / unit)
        bars.append(0.0 if high is None else (high - value) / unit)
    if x:
        axis.errorbar(x, y, bars, color=colour, **marker, linestyle="none", capsize=3, label=label)


def _style(axis: Axes, times: list[float], *, last: bool) -> None:
    from matplotlib.ticker import NullFormatter, NullLocator

    axis.set_xscale("log")
    axis.set_xlim(0.85 * times[0], 1.18 * times[-1])
    axis.set_xticks(times, [f"{time:g}" for time in times] if last else [])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_minor_formatter(NullFormatter())
    if last:
        axis.set_xlabel("annealing time $t_a$ (ns)")
    tidy(axis)


def _plain_numbers(axis: Any, digits: list[float]) -> None:
    """10, 20, 50 instead of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=digits))
    axis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
