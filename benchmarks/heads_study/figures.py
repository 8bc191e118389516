"""The figures of the study: accuracy by α and β, and the salient group among random ones."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from benchmarks.heads_study.core import ALPHAS, BETAS, EVERY, REACHES, TARGETS
from benchmarks.heads_study.decoder import TASKS
from benchmarks.heads_study.tables import grid_changes, tested
from diabat.drawing import COLOURS, new_figure, save_figure, tidy


def draw(folder: Path, seeds: int) -> None:
    """Write heat-map.png and groups.png into the folder."""
    heat_map(folder, seeds)
    groups(folder, seeds)


def heat_map(folder: Path, seeds: int) -> None:
    """Change of accuracy by α and β: salient group of one layer (mean), of all layers, and no group in all layers."""
    figure = new_figure(9.5, 11.0)
    rows = [(task, reach) for task in TASKS for reach in REACHES]
    columns = (
        ("one layer, salient", "salient", TARGETS[:-1]), ("all layers, salient", "salient", (EVERY,)),
        ("all layers, no group", "no group", (EVERY,)),
    )  # fmt: skip
    axes = figure.subplots(len(rows), len(columns), squeeze=False)
    maps = [
        [grid_changes(folder, seeds, task, reach, kind, targets) for _, kind, targets in columns]
        for task, reach in rows
    ]
    for (task, reach), line, changes in zip(rows, axes, maps, strict=True):
        for (title, _, _), axis, cells in zip(columns, line, changes, strict=True):
            values = [[fmean(cells[alpha, beta]) for beta in BETAS] for alpha in ALPHAS]
            most = max(1.0, max(abs(value) for row in values for value in row))
            axis.imshow(values, cmap="PuOr", vmin=-most, vmax=most, aspect="auto")
            for i, row in enumerate(values):
                for j, value in enumerate(row):
                    colour = "white" if abs(value) > 0.6 * most else "black"
                    axis.text(j, i, f"{value:+.1f}", ha="center", va="center", fontsize=8, color=colour)
            axis.set_xticks(range(len(BETAS)), BETAS)
            axis.set_yticks(range(len(ALPHAS)), ALPHAS)
            axis.set_title(f"{task}, {reach}: {title}", fontsize=9)
            axis.set_xlabel("β", labelpad=1)
            axis.set_ylabel("α", labelpad=1)
    figure.suptitle("Change of accuracy on validation questions [points], mean of the seeds")
    save_figure(figure, folder / "heat-map.png")


def groups(folder: Path, seeds: int) -> None:
    """Change of v at α = β = 0.1: the salient group, no group, and random groups, by layer."""
    figure = new_figure(9.5, 7.0)
    axes = figure.subplots(2, 2, squeeze=False)
    places = [(task, reach, axis) for task, line in zip(TASKS, axes, strict=True)
              for reach, axis in zip(REACHES, line, strict=True)]  # fmt: skip
    for task, reach, axis in places:
        for column, target in enumerate(TARGETS):
            for seed in range(seeds):
                x = column + 0.22 * (seed - (seeds - 1) / 2)
                for kind, look in (
                    ("random", {"color": "0.6", "marker": "o", "s": 10}),
                    ("no group", {"color": COLOURS[1], "marker": "x", "s": 26}),
                    ("salient", {"color": COLOURS[0], "marker": "D", "s": 22}),
                ):
                    found = tested(folder, seed, task, target, reach=reach, setting="paper", kind=kind)
                    label = kind if column == seed == 0 else None
                    axis.scatter([x] * len(found), [row["v change"] for row in found], label=label, **look)
        axis.axhline(0, color="0.3", linewidth=0.8)
        axis.set_xticks(range(len(TARGETS)), TARGETS)
        axis.set_title(f"{task}, {reach} lengths")
        axis.set_xlabel("layer")
        axis.set_ylabel("change of mean v")
        tidy(axis, "y")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    save_figure(figure, folder / "groups.png")
