"""Gaps of a table: Welch's test against its definition, the published gap, missing runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest
from scipy.special import betainc

from diabat.runs.experiments import Experiment, Outcome
from diabat.runs.reproduction.gaps import Gap, gaps_of, welch

EXPERIMENT = Experiment(
    title="x",
    config="brackets-t8",
    vary="arm",
    published={"softmax": 5.551, "h+J": 5.493, "h": None},
    published_std={"softmax": 0.027, "h+J": 0.025},
)


def outcomes(row: str, metrics: Sequence[float]) -> list[Outcome]:
    return [Outcome(row, seed, metric, 1, 1.0) for seed, metric in enumerate(metrics)]


def test_welch_is_its_definition() -> None:
    a, b = [5.900, 5.866, 5.912, 5.873], [5.831, 5.866, 5.861]
    parts = [statistics.variance(x) / len(x) for x in (a, b)]
    t = (statistics.fmean(a) - statistics.fmean(b)) / math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / sum(p**2 / (len(x) - 1) for p, x in zip(parts, (a, b), strict=True))
    expected = betainc(freedom / 2, 0.5, freedom / (freedom + t * t))  # two-sided tail of Student's t
    assert welch(a, b) == pytest.approx(float(expected), rel=1e-10)
    assert welch(b, a) == welch(a, b)


def test_no_test_without_spread_or_with_one_run() -> None:
    assert welch([1.0], [0.9, 0.8]) is None
    assert welch([1.0, 1.0], [0.9, 0.9]) is None
    p = welch([1.0, 1.0, 1.0], [0.9, 0.92, 0.91])  # 100 % with every seed against a spread
    assert p is not None
    assert p < 0.01


def test_the_published_gap_and_its_winner() -> None:
    ours = [*outcomes("softmax", [5.56, 5.54]), *outcomes("h+J", [5.50, 5.52]), *outcomes("h", [5.7])]
    with_h_j, with_h = gaps_of(EXPERIMENT, ours)
    assert (with_h_j.first, with_h_j.second, with_h_j.counts) == ("h+J", "softmax", (2, 2))
    assert with_h_j.difference == pytest.approx(-0.04)
    assert with_h_j.published == pytest.approx(-0.058)
    assert (with_h_j.exceeds, with_h_j.same_winner) == (True, True)  # 0.058 > 0.027 + 0.025
    assert (with_h.published, with_h.exceeds, with_h.same_winner, with_h.p) == (None, None, None, None)
    assert with_h.difference == pytest.approx(0.15)
    closer = replace_published(softmax=5.540)
    assert gaps_of(closer, ours)[0].exceeds is False  # 0.047 < 0.052
    other = [*outcomes("softmax", [5.50]), *outcomes("h+J", [5.56])]
    assert gaps_of(EXPERIMENT, other)[0].same_winner is False


def replace_published(**published: float) -> Experiment:
    return EXPERIMENT.model_copy(update={"published": {**EXPERIMENT.published, **published}})


def test_missing_runs() -> None:
    assert gaps_of(EXPERIMENT, []) == []
    (gap, _) = gaps_of(EXPERIMENT, outcomes("softmax", [5.5, 5.6]))
    assert gap == replace(
        Gap("h+J", "softmax", (0, 2), None, None, None, True, None), published=gap.published
    )


def test_gaps_are_those_of_the_experiment() -> None:
    chosen = EXPERIMENT.model_copy(update={"gaps": (("h", "h+J"),)})
    ours = [*outcomes("h", [5.7]), *outcomes("h+J", [5.5])]
    assert [(gap.first, gap.second) for gap in gaps_of(chosen, ours)] == [("h", "h+J")]
