"""Statistics of two states on the same questions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def mean_and_error(values: Array) -> tuple[float, float | None]:
    """Mean of values [N] and its standard error s/√N; None with one value."""
    error = None if len(values) < 2 else float(values.std(ddof=1) / len(values) ** 0.5)
    return float(values.mean()), error


def mcnemar(before: Array, after: Array) -> float:
    """Exact two-sided p of McNemar's test that right answers are lost as often as they are won.

    With b questions right before only and c right after only: 2 P(X <= min(b, c)), X binomial with b + c and 1/2; 1 if
    b = c = 0.

    Args:
        before: 0 or 1 per question, [N].
        after: The same of the other state.
    """
    from scipy.stats import binomtest

    lost = int(((before == 1) & (after == 0)).sum())
    won = int(((before == 0) & (after == 1)).sum())
    return 1.0 if lost + won == 0 else float(binomtest(min(lost, won), lost + won, 0.5).pvalue)


def compared(name: str, before: Array, after: Array) -> dict[str, Any]:
    """Mean difference of paired values [N] and its standard error, as ``{name}_difference`` and ``.._error``."""
    difference, error = mean_and_error(after - before)
    return {f"{name}_difference": difference, f"{name}_difference_error": error}
