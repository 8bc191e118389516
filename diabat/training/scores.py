"""Scores of a classifier: accuracy, F1, precision and recall by class, calibration; and their figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.plots import COLOURS, new_figure, save_figure, tidy

NUM_BINS = 15


@dataclass(frozen=True)
class ClassScores:
    """Precision, recall, their harmonic mean F1 and examples of one class; a ratio with denominator 0 is 0."""

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
        count: Examples N.
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
    N, C = len(labels), len(names)
    if logits.shape != (N, C) or not N:
        raise ArgumentError("logits", f"expected shape [{N}, {C}] with N >= 1, got {list(logits.shape)}.")
    log_p = logits.double().log_softmax(-1)
    p, predicted = log_p.exp(), logits.argmax(-1)
    confusion = torch.bincount(labels * C + predicted, minlength=C * C).view(C, C)
    hits, taken, there = confusion.diagonal(), confusion.sum(0), confusion.sum(1)
    by_class = (_ratio(hits, taken), _ratio(hits, there), _ratio(2 * hits, taken + there), there)
    classes = [ClassScores(*c) for c in zip(names, *(values.tolist() for values in by_class), strict=True)]
    bins = _bins(p.gather(1, predicted[:, None])[:, 0], (predicted == labels).double())
    return Scores(
        count=N,
        loss=float(-log_p.gather(1, labels[:, None]).mean()),
        accuracy=int(hits.sum()) / N,
        macro_f1=sum(c.f1 for c in classes) / C,
        classes=tuple(classes),
        confusion=tuple(tuple(row) for row in confusion.tolist()),
        calibration_error=sum(b.count * abs(b.accuracy - b.confidence) for b in bins) / N,
        brier=float((p - torch.nn.functional.one_hot(labels, C)).square().sum(-1).mean()),
        bins=bins,
    )


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    return (part.double() / whole.double()).nan_to_num(0.0)


def _bins(confidence: Tensor, right: Tensor) -> tuple[Bin, ...]:
    place = (confidence * NUM_BINS).ceil().long().clamp(1, NUM_BINS) - 1
    count, *sums = (torch.bincount(place, weights, NUM_BINS) for weights in (None, confidence, right))
    columns = zip(count.tolist(), *(_ratio(total, count).tolist() for total in sums), strict=True)
    return tuple(Bin(b / NUM_BINS, (b + 1) / NUM_BINS, *values) for b, values in enumerate(columns))


def plot_scores(scores: Scores, path: str | Path) -> Path:
    """Draw numbers of examples by label and prediction, and accuracy against confidence, as png, pdf or svg."""
    figure = new_figure(9.6, 4.3)
    left, right = figure.subplots(1, 2)
    counts = torch.tensor(scores.confusion)
    shares = _ratio(counts, counts.sum(1, keepdim=True))
    left.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
    names, places = [c.name for c in scores.classes], range(len(scores.classes))
    left.set_xticks(places, names)
    left.set_yticks(places, names, rotation=90, va="center")
    left.set(xlabel="predicted", ylabel="label")
    for label in places:
        for prediction in places:
            share = float(shares[label, prediction])
            text = f"{scores.confusion[label][prediction]:,}\n{share:.1%}"
            colour = "white" if share > 0.5 else "black"
            left.text(prediction, label, text, ha="center", va="center", color=colour)
    left.set_title(f"accuracy {scores.accuracy:.2%}, macro F1 {scores.macro_f1:.2%}", fontsize=11)
    bins = [b for b in scores.bins if b.count]
    right.plot([0, 1], [0, 1], color="0.45", linestyle="--", linewidth=1.3, label="perfect")
    parts = [b.count / scores.count for b in bins]
    style = {"width": 1 / NUM_BINS, "align": "edge", "color": "0.88"}
    right.bar([b.low for b in bins], parts, **style, label="share of predictions")
    means = ([b.confidence for b in bins], [b.accuracy for b in bins])
    right.plot(*means, color=COLOURS[0], marker="o", label="accuracy")
    right.set(xlim=(0, 1), ylim=(0, 1), xlabel="probability of the predicted class", ylabel="accuracy")
    right.legend(frameon=False, loc="upper left")
    tidy(right, grid=None)
    title = f"calibration error {scores.calibration_error:.3f}, Brier score {scores.brier:.3f}"
    right.set_title(title, fontsize=11)
    return save_figure(figure, path)
