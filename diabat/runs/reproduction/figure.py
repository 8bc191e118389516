"""Figure of an experiment: couplings, their distance profile, learning curves, decay with T, an example of brackets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.drawing import COLOURS, draw_line, legend_below, new_figure, save_figure, tidy
from diabat.runs.reproduction.decay import FEWEST, Decay, fits_of, means_of
from diabat.runs.reproduction.learned import (
    BracketExample,
    bracket_example,
    distance_profile,
    learned_couplings,
    learning_curve,
    stored_config,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from diabat.runs.experiments import Experiment, Outcome

Panel = Callable[["Axes"], None]
_COLUMNS = 3
_SMALL = 8


def plot_experiment(
    experiment: Experiment, folder: Path, outcomes: Sequence[Outcome], path: str | Path
) -> Path:
    """Draw the finished runs of an experiment.

    Couplings, learning curves and the example are those of the rows with the largest window.  The couplings are the
    mean over seeds of the first row that has some which are not 0.

    Args:
        experiment: The experiment.
        folder: Folder of its runs.
        outcomes: Its finished runs.
        path: Output file; the suffix chooses the format (png, pdf, svg).

    Returns:
        The path.

    Raises:
        ArgumentError: If there is no finished run.
    """
    if not outcomes:
        raise ArgumentError("outcomes", "expected at least one finished run, got none.")
    runs = {
        row: [folder / f"{row}-seed{o.seed}" for o in outcomes if o.value == row]
        for row in experiment.published
    }
    windows = {row: stored_config(folders[0]).task.window for row, folders in runs.items() if folders}
    widest = max(windows.values())
    shown = {row: runs[row] for row, window in windows.items() if window == widest}
    couplings = {row: J for row, folders in shown.items() if (J := _couplings(folders)) is not None}
    panels: list[Panel] = [lambda axis: _draw_curves(axis, shown)]
    if couplings:
        panels[:0] = [
            lambda axis: _draw_couplings(axis, *next(iter(couplings.items()))),
            lambda axis: _draw_profile(axis, couplings, list(shown)),
        ]
    if any(len(means_of(rows, outcomes)) > 1 for rows in experiment.series.values()):
        panels.append(lambda axis: _draw_decay(axis, experiment, outcomes))
    panels += _examples(shown, couplings)
    columns = 2 if len(panels) == 4 else min(_COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    figure = new_figure(1.0 + 4.0 * columns, 1.2 + 3.3 * lines)
    axes = figure.subplots(lines, columns, squeeze=False).flatten().tolist()
    for axis, panel in zip(axes, panels, strict=False):
        panel(axis)
        axis.tick_params(labelsize=_SMALL)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    legend_below(figure, axes[: len(panels)], 6)
    figure.suptitle(experiment.title, fontsize=10)
    return save_figure(figure, path)


def _couplings(folders: Sequence[Path]) -> Tensor | None:
    """J of every run of a row, [R, T, T]; None if the row has none, or none that was trained (mode J)."""
    found = [learned_couplings(folder) for folder in folders]
    known = [J for J in found if J is not None]
    return torch.stack(known) if any(bool(J.any()) for J in known) else None


def _draw_couplings(axis: Axes, row: str, couplings: Tensor) -> None:
    mean = couplings.mean(0)
    most = float(mean.abs().max()) or 1.0
    below = torch.ones_like(mean).tril(-1).bool()
    image = axis.imshow(mean.masked_fill(~below, float("nan")).numpy(), cmap="RdBu_r", vmin=-most, vmax=most)
    axis.figure.colorbar(image, ax=axis, pad=0.02).ax.tick_params(labelsize=_SMALL)
    axis.set_title(f"{row}: J, mean of {_seeds(len(couplings))}", fontsize=9)
    axis.set_xlabel("position k", fontsize=9)
    axis.set_ylabel("position j", fontsize=9)


def _draw_profile(axis: Axes, couplings: Mapping[str, Tensor], rows: Sequence[str]) -> None:
    for row, J in couplings.items():
        mean, deviation, size = distance_profile(J)
        distances, look = range(1, len(mean) + 1), rows.index(row)
        colour = COLOURS[look % len(COLOURS)]
        draw_line(axis, distances, mean, look, label=row)
        axis.fill_between(
            distances, mean - deviation, mean + deviation, color=colour, alpha=0.15, linewidth=0
        )
        axis.plot(distances, size, color=colour, linestyle="--", linewidth=1.2)
    axis.axhline(0, color="0.6", linewidth=0.8)
    axis.set_title("J by distance: mean ± σ, dashed mean |J|", fontsize=9)
    axis.set_xlabel("distance |j - k|", fontsize=9)
    tidy(axis)


def _draw_curves(axis: Axes, shown: Mapping[str, Sequence[Path]]) -> None:
    for look, (row, folders) in enumerate(shown.items()):
        found = [learning_curve(folder) for folder in folders]
        curves = [values for _, values in found if values]
        if not curves:
            continue
        colour = COLOURS[look % len(COLOURS)]
        for values in curves:
            axis.plot(range(1, len(values) + 1), values, color=colour, alpha=0.35, linewidth=0.7)
        # The mean is that of all seeds, so that it does not jump where one of them ends.
        together = [statistics.fmean(values) for values in zip(*curves, strict=False)]
        axis.plot(range(1, len(together) + 1), together, color=colour, linewidth=1.8, label=row)
        axis.set_ylabel(f"validation {found[0][0]}", fontsize=9)
        if found[0][0] == "perplexity":
            axis.set_yscale("log")
            axis.yaxis.set_minor_formatter("{x:g}")
            axis.tick_params(axis="y", which="minor", labelsize=_SMALL)
    axis.set_title("learning curves: every seed, and their mean", fontsize=9)
    axis.set_xlabel("epoch", fontsize=9)
    tidy(axis)


def _draw_decay(axis: Axes, experiment: Experiment, outcomes: Sequence[Outcome]) -> None:
    notes, fits = [], fits_of(experiment, outcomes)
    for look, (arm, rows) in enumerate(experiment.series.items()):
        ours = means_of(rows, outcomes)
        if not ours:
            continue
        colour = COLOURS[look % len(COLOURS)]
        draw_line(axis, [*ours], [*ours.values()], look, linestyle="", label=arm)
        values = {int(T): experiment.published[row] for T, row in rows.items()}
        published = {T: value for T, value in values.items() if value is not None}
        axis.plot([*published], [*published.values()], color=colour, marker="_", markersize=11, linestyle="")
        notes.append(_fitted(axis, arm, fits[arm], ours, colour))
    axis.set_title("\n".join(notes), fontsize=6.5)
    axis.set_xlabel("window T  (dashes: published)", fontsize=9)
    axis.set_ylabel("mean over seeds", fontsize=9)
    tidy(axis)


def _fitted(axis: Axes, arm: str, fit: Decay | None, means: Mapping[int, float], colour: str) -> str:
    """Draw the fit of an arm; return its numbers, or why there is none."""
    if len(means) < FEWEST:
        return f"{arm}: no fit, {FEWEST} windows needed, got {len(means)}"
    if fit is None:
        return f"{arm}: the means do not determine a decay"
    grid = torch.linspace(min(means), max(means), 100).tolist()
    axis.plot(grid, [fit.at(T) for T in grid], color=colour, linewidth=1.2)
    (_, rate, limit), b, c = fit.errors, fit.b, fit.c
    return f"{arm}: {fit.a:.2f} exp(-bT) + c, b = {b:.3f} ± {rate:.3f}, c = {c:.3f} ± {limit:.3f}"


def _examples(shown: Mapping[str, Sequence[Path]], couplings: Mapping[str, Tensor]) -> list[Panel]:
    """Panels of one word of brackets, by the first row and by the first one with couplings."""
    rows = dict.fromkeys((next(iter(shown)), next(iter(couplings), next(iter(shown)))))
    found = {row: bracket_example(shown[row][0]) for row in rows}
    return [_example_panel(row, example) for row, example in found.items() if example is not None]


def _example_panel(row: str, example: BracketExample) -> Panel:
    def draw(axis: Axes) -> None:
        right = example.correct
        count, window = example.probabilities.shape
        image = axis.imshow(example.probabilities.numpy(), cmap="Greys", vmin=0, vmax=1, aspect="auto")
        axis.figure.colorbar(image, ax=axis, pad=0.02).ax.tick_params(labelsize=_SMALL)
        axis.plot(example.targets, range(count), "s", mfc="none", mec=COLOURS[2], ms=9, label="match")
        wrong = (~right).nonzero()[:, 0]
        axis.plot(
            example.probabilities.argmax(-1)[wrong], wrong, "x", color=COLOURS[1], ms=7, label="wrong answer"
        )
        axis.set_xticks(range(window), example.symbols)
        axis.set_yticks(range(count), [f") at {place}" for place in example.closing.tolist()])
        axis.set_title(f"{row}: {int(right.sum())} of {count} brackets matched", fontsize=9)
        axis.set_xlabel("P(position of the opening bracket)", fontsize=9)

    return draw


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"
