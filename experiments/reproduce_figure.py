"""Figure of a reproduced table: learning curves, couplings, their mean by distance, means by the window T."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

from diabat.models import Transformer
from diabat.runs import load_run
from experiments.reproduce import Experiment, Outcome, decay_at, fit_decay, means_by_window


def draw(experiment: Experiment, outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw the finished runs; curves and couplings are those of the rows with the largest window."""
    done = {one.row: experiment.entries[one.row].window or 0 for one in outcomes}
    rows = [row for row in experiment.entries if done.get(row) == max(done.values())]
    figure, axes = plt.subplots(2, 2, figsize=(10, 8), layout="constrained")
    drawn = False
    for look, row in enumerate(rows):
        folders = [one.folder for one in outcomes if one.row == row]
        curves = [learning_curve(folder) for folder in folders]
        for curve in curves:
            axes[0, 0].plot(curve, color=f"C{look}", alpha=0.3, linewidth=0.7)
        mean = [
            fmean(values) for values in zip(*curves, strict=False)
        ]  # of all seeds: it ends with the first
        axes[0, 0].plot(mean, color=f"C{look}", label=row)
        J = couplings_of(folders)
        if J is not None:
            places = range(1, J.shape[-1])
            by_distance = [J.diagonal(d, dim1=-2, dim2=-1) for d in places]
            axes[1, 0].plot(places, [float(x.mean()) for x in by_distance], "o-", color=f"C{look}")
            axes[1, 0].plot(places, [float(x.abs().mean()) for x in by_distance], "--", color=f"C{look}")
        if J is not None and not drawn:
            most, drawn = float(J.mean(0).abs().max()), True
            figure.colorbar(axes[0, 1].imshow(J.mean(0).tril().numpy(), cmap="RdBu_r", vmin=-most, vmax=most))
            axes[0, 1].set(
                title=f"{row}: J, mean of {len(J)} seeds", xlabel="position k", ylabel="position j"
            )
    for look, ((arm, whose), values) in enumerate(means_by_window(experiment, outcomes).items()):
        colour, fit = f"C{look // 2}", fit_decay(values)
        axes[1, 1].plot(values.keys(), values.values(), "ox"[whose == "published"], color=colour, label=arm)
        if fit is not None:
            grid = np.linspace(min(values), max(values))
            axes[1, 1].plot(grid, decay_at(grid, fit["a"], fit["b"], fit["c"]), color=colour, linewidth=0.8)
    axes[0, 0].set(title="validation: every seed, and their mean", xlabel="epoch")
    axes[1, 0].set(title="mean J by distance; dashed mean |J|", xlabel="distance |j - k|")
    axes[1, 1].set(title="means by T; crosses are published", xlabel="window T")
    axes[0, 0].legend(fontsize=8)
    figure.suptitle(experiment.title)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def learning_curve(folder: Path) -> list[float]:
    """Perplexity or accuracy on the validation set after every epoch."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    return [line.get("accuracy", line.get("perplexity")) for line in lines if line["event"] == "epoch"]


def couplings_of(folders: Sequence[Path]) -> Tensor | None:
    """J of every run, mean over layers and heads, [R, T, T]; None without couplings, or if none has left 0."""
    found = []
    for folder in folders:
        model = load_run(folder).model
        if isinstance(model, Transformer):
            layers = [J for layer in model.attention_layers() if (J := layer.couplings()) is not None]
            found += [torch.cat(layers)[:, 0].detach().mean(0)] if layers else []
    return torch.stack(found) if any(bool(J.any()) for J in found) else None
