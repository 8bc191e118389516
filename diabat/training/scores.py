"""Scores of a classifier: accuracy, F1, precision and recall by class, calibration; and their figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.drawing import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


NUM_BINS = 15


@dataclass(frozen=True)
class ClassScores:
    """Scores of one class; a ratio whose denominator is zero is 0.

    Attributes:
        name: Name of the class.
        precision: Share of its predictions that are right.
        recall: Share of its examples that are found.
        f1: Harmonic mean of both.
        count: Examples.
    """

    name: str
    precision: float
    recall: float
    f1: float
    count: int


@dataclass(frozen=True)
class Bin:
    """Predictions whose confidence p lies in (low, high]; means are 0 in an empty bin."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Scores:
    """Scores of a classifier on a split.

    Attributes:
        count: Examples.
        loss: Mean cross-entropy in nats.
        accuracy: Share of examples whose most probable class is the label.
        macro_f1: Mean of F1 over the classes.
        classes: Scores by class.
        confusion: confusion[label][prediction], numbers of examples.
        calibration_error: Expected calibration error, Σ_b (n_b/N) |accuracy_b - confidence_b| over 15 equal bins of
            the probability of the predicted class.
        brier: Mean over examples of Σ_c (p_c - y_c)², in 0 .. 2.
        bins: The bins b.
    """

    count: int
    loss: float
    accuracy: float
    macro_f1: float
    classes: tuple[ClassScores, ...]
    confusion: tuple[tuple[int, ...], ...]
    calibration_error: float
    brier: float
    bins: tuple[Bin, ...]


def score(logits: Tensor, labels: Tensor, names: Sequence[str]) -> Scores:
    """Score logits [N, C] against labels (int64 [N]).

    Raises:
        ValueError: If the shapes do not fit, or there is no example.
    """
    if logits.ndim != 2 or logits.shape != (len(labels), len(names)) or not len(labels):
        raise ArgumentError(
            "logits", f"expected shape [{len(labels)}, {len(names)}] with N >= 1, got {list(logits.shape)}."
        )
    log_chances = logits.double().log_softmax(-1)
    chances, predicted = log_chances.exp(), logits.argmax(-1)
    C = len(names)
    confusion = torch.bincount(labels * C + predicted, minlength=C * C).view(C, C)
    classes = tuple(_class_scores(name, c, confusion) for c, name in enumerate(names))
    right = predicted == labels
    bins = _bins(chances.gather(1, predicted[:, None])[:, 0], right)
    truth = torch.nn.functional.one_hot(labels, C)
    return Scores(
        count=len(labels),
        loss=float(-log_chances.gather(1, labels[:, None]).mean()),
        accuracy=float(right.double().mean()),
        macro_f1=sum(c.f1 for c in classes) / C,
        classes=classes,
        confusion=tuple(tuple(row) for row in confusion.tolist()),
        calibration_error=sum(b.count * abs(b.accuracy - b.confidence) for b in bins) / len(labels),
        brier=float((chances - truth).square().sum(-1).mean()),
        bins=bins,
    )


def _class_scores(name: str, c: int, confusion: Tensor) -> ClassScores:
    hits, found, count = (int(n) for n in (confusion[c, c], confusion[:, c].sum(), confusion[c].sum()))
    return ClassScores(
        name=name,
        precision=hits / found if found else 0.0,
        recall=hits / count if count else 0.0,
        f1=2 * hits / (found + count) if found + count else 0.0,
        count=count,
    )


def _bins(confidence: Tensor, right: Tensor) -> tuple[Bin, ...]:
    place = (confidence * NUM_BINS).ceil().long().clamp(1, NUM_BINS) - 1
    bins = []
    for b in range(NUM_BINS):
        chosen = place == b
        count = int(chosen.sum())
        mean = float(confidence[chosen].mean()) if count else 0.0
        share = float(right[chosen].double().mean()) if count else 0.0
        bins.append(Bin(b / NUM_BINS, (b + 1) / NUM_BINS, count, mean, share))
    return tuple(bins)


_BLUE, _ORANGE = "#0072B2", "#D55E00"


def plot_scores(scores: Scores, path: str | Path) -> Path:
    """Draw numbers of examples by label and prediction, and accuracy against confidence.

    Args:
        scores: The scores.
        path: Output file; the suffix chooses the format (png, pdf, svg).

    Returns:
        The path.
    """
    figure = new_figure(9.6, 4.3)
    left, right = figure.subplots(1, 2)
    _confusion(left, scores)
    _reliability(right, scores)
    return save_figure(figure, path)


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
