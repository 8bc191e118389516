"""Gaps between two arms of a table: our difference with Welch's t test, beside the published difference."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diabat.runs.experiments import Experiment, Outcome


@dataclass(frozen=True)
class Gap:
    """Difference of the means of two rows, first minus second.

    Attributes:
        first: Row of the first arm.
        second: Row of the second arm.
        counts: Number of our runs of each.
        difference: Ours; None if a row has no run.
        p: Two-sided p of Welch's t test; None with fewer than two runs of a row, or if neither row varies.
        published: The published difference; None if a mean is not published.
        exceeds: Whether the published difference is larger than the sum of the two published standard deviations; None
            if one is not published.
        same_winner: Whether ours has the sign of the published one; None if one of the two is unknown or 0.
    """

    first: str
    second: str
    counts: tuple[int, int]
    difference: float | None
    p: float | None
    published: float | None
    exceeds: bool | None
    same_winner: bool | None


def gaps_of(experiment: Experiment, outcomes: Sequence[Outcome]) -> list[Gap]:
    """Gaps of an experiment of which at least one row has a run, in the order of the experiment."""
    metrics = {row: [o.metric for o in outcomes if o.value == row] for row in experiment.published}
    return [
        _gap(experiment, first, second, metrics[first], metrics[second])
        for first, second in experiment.compared
        if metrics[first] or metrics[second]
    ]


def welch(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Two-sided p of Welch's t test for a difference of two means; the variances may differ.

    Returns:
        p; None with fewer than two numbers on a side, or if neither side varies.
    """
    if min(len(first), len(second)) < 2 or len({*first}) == len({*second}) == 1:
        return None
    from scipy.stats import ttest_ind

    with warnings.catch_warnings():  # of equal numbers on one side, for example 100 % with every seed
        warnings.simplefilter("ignore", RuntimeWarning)
        return float(ttest_ind(first, second, equal_var=False).pvalue)


def _gap(
    experiment: Experiment, first: str, second: str, ours: Sequence[float], others: Sequence[float]
) -> Gap:
    difference = statistics.fmean(ours) - statistics.fmean(others) if ours and others else None
    a, b = (experiment.published[row] for row in (first, second))
    deviations = [experiment.published_std.get(row) for row in (first, second)]
    # Rounded: the difference of two numbers with four decimals is not of more.
    published = None if a is None or b is None else round(a - b, 6)
    known = published is not None and None not in deviations
    return Gap(
        first,
        second,
        (len(ours), len(others)),
        difference,
        welch(ours, others),
        published,
        abs(published or 0.0) > sum(d or 0.0 for d in deviations) if known else None,
        (difference > 0) == (published > 0) if difference and published else None,
    )
