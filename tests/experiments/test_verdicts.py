"""``experiments.verdicts``: formulas beside scipy, by hand and by simulation; the words by their rule."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import combine_pvalues, ttest_ind, ttest_rel

from experiments.verdicts import Gap, combined, gap, holm, power, seeds_needed, verdict

UNIT = (-math.sqrt(0.5), math.sqrt(0.5))
"""Two numbers with variance 1."""


@pytest.mark.parametrize("paired", [False, True])
def test_gaps_are_those_of_scipy(paired: bool) -> None:
    random = np.random.default_rng(0)
    first, second = random.normal(1, 3, 6).tolist(), random.normal(0, 1, 6 if paired else 4).tolist()
    theirs = ttest_rel(first, second) if paired else ttest_ind(first, second, equal_var=False)
    found = gap(first, second, paired=paired)
    assert found is not None
    expected = (theirs.pvalue, theirs.df, *theirs.confidence_interval(0.95))
    assert (found.p, found.degrees, found.low, found.high) == pytest.approx(expected)
    assert found.difference / found.error == pytest.approx(theirs.statistic)


def test_what_does_not_vary_or_is_single_has_no_interval() -> None:
    assert gap([1.0, 1.0], [2.0, 2.0]) is None
    assert gap([1.0, 2.0], [2.0, 3.0], paired=True) is None
    assert gap([1.0], [2.0, 3.0]) is None
    assert power([1.0], [2.0, 3.0], 1.0) is None
    assert seeds_needed([1.0], [2.0, 3.0], 1.0) is None
    one_side = gap([1.0, 1.0, 1.0], [0.0, 0.5, 0.3])
    assert one_side is not None
    assert one_side.degrees == pytest.approx(2)


def test_power_of_half_a_standard_deviation() -> None:
    """Cohen's table 2.3.5: 64 in each of two groups find d = .5 with power .80, 26 find d = .8; of .2, 393.4 would."""
    assert power(UNIT, UNIT, -0.5, seeds=64) == pytest.approx(0.8015, abs=2e-4)
    assert [seeds_needed(UNIT, UNIT, d) for d in (0.5, 0.8, 0.2)] == [64, 26, 394]
    assert power(UNIT, UNIT, 0.0) == pytest.approx(0.025)
    assert power(UNIT, UNIT, 1e3, seeds=9) == 1
    assert seeds_needed(UNIT, UNIT, 0.0) is None


def test_power_by_simulation() -> None:
    """Share of "reproduced" in 20,000 experiments of 5 and 5 seeds, σ 1 and 2: 5 standard errors (alpha 6e-7) and .01
    for Welch's approximate t."""
    random, N = np.random.default_rng(1), 20_000
    first, second = random.normal(3, 1, (N, 5)), random.normal(0, 2, (N, 5))
    test = ttest_ind(first, second, axis=1, equal_var=False)
    seen = np.mean((test.pvalue < 0.05) & (test.statistic > 0))
    told = power(of_deviation(1), of_deviation(2), 3.0)
    assert told is not None
    assert abs(seen - told) < 5 * (told * (1 - told) / N) ** 0.5 + 0.01


def of_deviation(sigma: float) -> Sequence[float]:
    values = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    found: list[float] = (sigma * values / values.std(ddof=1)).tolist()
    return found


def test_holm_by_hand() -> None:
    # Sorted .005, .01, .03, .04 times 4, 3, 2, 1: .02, .03, .06, .04; the last is raised to .06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_combined_by_hand_and_beside_scipy() -> None:
    """Errors 1 and 2, known as good as exactly: weights 1 and 1/4."""
    parts = [Gap(1.0, 1.0, 1e9, 0, 0, 0.3), Gap(3.0, 2.0, 1e9, 0, 0, 0.1), Gap(-1.0, 1.0, 1e9, 0, 0, 0.2)]
    found = combined(parts[:2])
    assert (found.difference, found.error) == pytest.approx((1.4, 0.8**0.5))
    assert (found.low, found.high) == pytest.approx((1.4 - 1.959964 * 0.8**0.5, 1.4 + 1.959964 * 0.8**0.5))
    upper = combine_pvalues([0.15, 0.05, 0.9], method="stouffer").pvalue  # one-sided
    assert combined(parts).p == pytest.approx(2 * upper)
    # Eight degrees of freedom each, shares .8 and .2: 1 + 4 (.16 + .16)/8 and 1/(.64/8 + .04/8).
    few = combined([Gap(one.difference, one.error, 8, 0, 0, one.p) for one in parts[:2]])
    assert (few.error, few.degrees) == pytest.approx(((1.16 * 0.8) ** 0.5, 8 / 0.68))
    assert few.p == found.p


def test_the_combined_interval_holds_the_truth_as_often_as_it_says() -> None:
    """400 experiments of six windows, 5 seeds an arm: 95 % within 4.4 standard errors (alpha 1e-5).

    The plain error 1/sqrt(Σ w) with quantiles of the normal law has 87 %.
    """
    random, N, held, rejected = np.random.default_rng(2), 400, 0, 0
    for _ in range(N):
        draws = random.normal(size=(6, 2, 5)).tolist()
        found = combined([one for first, second in draws if (one := gap(first, second)) is not None])
        held, rejected = held + found.holds(0), rejected + (found.p < 0.05)
    assert abs(held / N - 0.95) < 4.4 * (0.95 * 0.05 / N) ** 0.5
    assert rejected / N < 0.05 + 4.4 * (0.95 * 0.05 / N) ** 0.5


@pytest.mark.parametrize(("low", "high", "published", "word"), [
    (1, 3, 2, "reproduced"), (1, 3, 4, "reproduced, smaller"), (1, 3, 0.5, "reproduced, larger"),
    (-3, -1, -4, "reproduced, smaller"), (1, 3, -2, "contradicted"), (1, 3, 0, "contradicted"),
    (-1, 3, 4, "contradicted"), (-1, 3, 2, "compatible"), (-1, 3, 0, "compatible"),
    (-1, 3, None, "cannot tell"), (1, 3, None, "above 0"), (-3, -1, None, "below 0"),
])  # fmt: skip
def test_words_by_rule(low: float, high: float, published: float | None, word: str) -> None:
    assert verdict(Gap((low + high) / 2, 1, 8, low, high, 0.5), published) == word


def test_without_an_interval_nothing_is_told() -> None:
    assert verdict(None, 1.0) == verdict(None, None) == "cannot tell"
