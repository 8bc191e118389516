"""Scores against numbers worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from diabat.training.scores import NUM_BINS, plot_scores, score

NAMES = ("yes", "no", "maybe")
CHANCES = torch.tensor(
    [[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.3, 0.5, 0.2], [0.1, 0.8, 0.1], [0.5, 0.4, 0.1], [0.1, 0.1, 0.8]]
)
LABELS = torch.tensor([0, 0, 0, 1, 1, 0])  # predictions are 0, 0, 1, 1, 0, 2


def test_accuracy_f1_precision_and_recall() -> None:
    found = score(CHANCES.log(), LABELS, NAMES)
    assert found.count == 6
    assert found.accuracy == pytest.approx(3 / 6)
    assert found.confusion == ((2, 1, 1), (1, 1, 0), (0, 0, 0))
    yes, no, maybe = found.classes
    assert (yes.precision, yes.recall, yes.f1, yes.count) == pytest.approx((2 / 3, 2 / 4, 4 / 7, 4))
    assert (no.precision, no.recall, no.f1, no.count) == pytest.approx((1 / 2, 1 / 2, 1 / 2, 2))
    assert (maybe.precision, maybe.recall, maybe.f1, maybe.count) == (0.0, 0.0, 0.0, 0)
    assert found.macro_f1 == pytest.approx((4 / 7 + 1 / 2) / 3)


def test_loss_and_brier_score() -> None:
    found = score(CHANCES.log(), LABELS, NAMES)
    told = (0.7, 0.6, 0.3, 0.8, 0.4, 0.1)
    assert found.loss == pytest.approx(-sum(map(math.log, told)) / 6, rel=1e-6)
    squares = (0.09 + 0.04 + 0.01, 0.16 + 0.09 + 0.01, 0.49 + 0.25 + 0.04, 0.01 + 0.04 + 0.01, 0.25 + 0.36 + 0.01,
               0.81 + 0.01 + 0.64)  # fmt: skip
    assert found.brier == pytest.approx(sum(squares) / 6, rel=1e-6)


def test_calibration_error_over_fifteen_equal_bins() -> None:
    found = score(CHANCES.log(), LABELS, NAMES)
    assert len(found.bins) == NUM_BINS == 15
    # Confidences 0.7, 0.6, 0.5, 0.8, 0.5, 0.8 with the outcomes right, right, wrong, right, wrong, wrong.
    gaps = (1 - 0.7, 1 - 0.6, 2 * 0.5, abs(1 - 1.6))
    assert found.calibration_error == pytest.approx(sum(gaps) / 6, rel=1e-5)
    assert sum(b.count for b in found.bins) == 6
    for b in found.bins:
        if b.count:
            assert b.low < b.confidence <= b.high + 1e-6


def test_a_certain_and_right_classifier_is_perfect() -> None:
    found = score(torch.eye(3)[LABELS] * 100, LABELS, NAMES)
    assert (found.accuracy, found.calibration_error, found.brier) == pytest.approx((1.0, 0.0, 0.0), abs=1e-9)
    assert found.bins[-1].count == 6


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"logits: expected shape \[6, 3\] with N >= 1, got \[6, 2\]"):
        score(CHANCES[:, :2], LABELS, NAMES)
    with pytest.raises(ValueError, match="N >= 1"):
        score(CHANCES[:0], LABELS[:0], NAMES)


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    path = plot_scores(score(CHANCES.log(), LABELS, NAMES), tmp_path / "scores.svg")
    drawn = path.read_text()
    assert drawn.startswith("<?xml")
    assert path.stat().st_size > 10_000
