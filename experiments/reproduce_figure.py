"""Figure of a reproduced table: learning curves, mean couplings by distance, means by the window T."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from diabat.models import Transformer
from diabat.plots import Line, Panel, lines
from diabat.runs import load_run
from experiments.reproduce import Experiment, Outcome, decay_at, fit_decay, means_by_window


def draw(experiment: Experiment, outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw the finished runs; curves and couplings are means over the seeds of the rows with the largest window."""
    done = {one.row: experiment.entries[one.row].window or 0 for one in outcomes}
    curves, couplings, means = list[Line](), list[Line](), list[Line]()
    for look, row in enumerate(row for row in experiment.entries if done.get(row) == max(done.values())):
        folders = [one.folder for one in outcomes if one.row == row]
        seeds = [learning_curve(folder) for folder in folders]
        mean = [fmean(values) for values in zip(*seeds, strict=False)]  # it ends with the first
        curves.append(Line(range(1, len(mean) + 1), mean, row, look))
        found = [J for folder in folders for J in couplings_by_distance(folder)]
        if any(map(any, found)):
            couplings.append(
                Line(range(1, len(found[0]) + 1), [*map(fmean, zip(*found, strict=True))], row, look)
            )
    for look, ((arm, whose), values) in enumerate(means_by_window(experiment, outcomes).items()):
        means.append(Line([*values], [*values.values()], f"{arm}, {whose}", look))
        if (fit := fit_decay(values)) is not None:
            grid = np.linspace(min(values), max(values))
            means.append(
                Line(grid, decay_at(grid, fit["a"], fit["b"], fit["c"]), style={"color": "0.6", "marker": ""})
            )
    panels = (
        Panel(curves, settings={"title": "validation, mean of seeds", "xlabel": "epoch"}),
        Panel(couplings, settings={"title": "mean J by distance", "xlabel": "distance |j - k|"}),
        Panel(means, settings={"title": "means by T", "xlabel": "window T"}),
    )
    lines([[panel for panel in panels if panel.lines]], path, title=experiment.title, share_y=False)


def learning_curve(folder: Path) -> list[float]:
    """Perplexity or accuracy on the validation set after every epoch."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    return [row.get("accuracy", row.get("perplexity")) for row in rows if row["event"] == "epoch"]


def couplings_by_distance(folder: Path) -> list[list[float]]:
    """Mean of J_jk over layers and heads for |j - k| = 1, 2, ...; empty without couplings."""
    model = load_run(folder).model
    assert isinstance(model, Transformer)
    found = [J.detach() for layer in model.attention_layers() if (J := layer.couplings()) is not None]
    if not found:
        return []
    J = torch.cat(found)
    return [[float(J.diagonal(d, dim1=-2, dim2=-1).mean()) for d in range(1, J.shape[-1])]]
