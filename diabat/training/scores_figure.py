"""The picture of a classifier's scores: confusion matrix and reliability diagram."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from diabat.files import naming
from diabat.training.scores import Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _ORANGE = "#0072B2", "#D55E00"


def plot_scores(scores: Scores, path: str | Path) -> Path:
    """Draw numbers of examples by label and prediction, and accuracy against confidence.

    Args:
        scores: The scores.
        path: Output file; the suffix chooses the format (png, pdf, svg).

    Returns:
        The path.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 4.3), layout="constrained")
    FigureCanvasAgg(figure)  # a figure without pyplot leaves no global state behind
    left, right = figure.subplots(1, 2)
    _confusion(left, scores)
    _reliability(right, scores)
    with naming(Path(path)):
        figure.savefig(path, dpi=160)
    return Path(path)


def _confusion(axis: Axes, scores: Scores) -> None:
    counts = np.array(scores.confusion)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    names = [c.name for c in scores.classes]
    axis.set_xticks(range(len(names)), names)
    axis.set_yticks(range(len(names)), names, rotation=90, va="center")
    axis.set_xlabel("predicted")
    axis.set_ylabel("label")
    for (row, column), count in np.ndenumerate(counts):
        share = shares[row, column]
        text = f"{count:,}\n{share:.1%}"
        axis.text(column, row, text, ha="center", va="center", color="white" if share > 0.5 else "black")
    axis.set_title(f"accuracy {scores.accuracy:.2%}, macro F1 {scores.macro_f1:.2%}", fontsize=11)


def _reliability(axis: Axes, scores: Scores) -> None:
    bins = [b for b in scores.bins if b.count]
    axis.plot([0, 1], [0, 1], color="0.45", linestyle="--", linewidth=1.3, label="perfect")
    axis.bar(
        [b.low for b in bins],
        [b.count / scores.count for b in bins],
        width=[b.high - b.low for b in bins],
        align="edge",
        color="0.88",
        label="share of predictions",
    )
    axis.plot(
        [b.confidence for b in bins], [b.accuracy for b in bins], color=_BLUE, marker="o", label="accuracy"
    )
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1)
    axis.set_xlabel("probability of the predicted class")
    axis.set_ylabel("accuracy")
    axis.legend(frameon=False, loc="upper left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title(
        f"calibration error {scores.calibration_error:.3f}, Brier score {scores.brier:.3f}", fontsize=11
    )
