"""Decay of a metric with the window: a exp(-b T) + c, fitted to the means of several windows."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diabat.checks import ArgumentError

if TYPE_CHECKING:
    from diabat.runs.experiments import Experiment, Outcome

FEWEST = 5
"""Fewest windows of a fit: three determine a, b and c exactly, and four leave one degree of freedom."""


@dataclass(frozen=True)
class Decay:
    """The fit a exp(-b T) + c.

    Attributes:
        a: Amplitude.
        b: Rate per position.
        c: Limit at long windows.
        errors: Standard errors of a, b and c, from the residuals of the fit.
        residual: Root mean square of the residuals.
    """

    a: float
    b: float
    c: float
    errors: tuple[float, float, float]
    residual: float

    def at(self, window: float) -> float:
        """Value at a window T."""
        return self.a * math.exp(-self.b * window) + self.c


def fit_decay(means: Mapping[int, float]) -> Decay:
    """Fit a exp(-b T) + c by least squares.

    Args:
        means: Metric by window T.

    Raises:
        ArgumentError: If there are fewer than five windows, or they do not determine a decay: the fit does not
            converge, or the standard error of b is larger than b.
    """
    if len(means) < FEWEST:
        raise ArgumentError(
            "means", f"expected at least {FEWEST} windows (three determine a, b and c), got {len(means)}."
        )
    import numpy as np
    from scipy.optimize import OptimizeWarning, curve_fit

    x = np.array(sorted(means), dtype=float)
    y = np.array([means[window] for window in sorted(means)])

    def model(T: np.ndarray, a: float, b: float, c: float) -> np.ndarray:
        return a * np.exp(-b * T) + c

    # The rate from where the metric has fallen to half of its range; the amplitude follows from it.
    rate = math.log(2) / max(float(np.interp(0.5 * (y[0] + y[-1]), y[::-1], x[::-1])) - x[0], 0.1)
    start = ((y[0] - y[-1]) * math.exp(rate * x[0]), rate, y[-1])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", OptimizeWarning)
            found, covariance = curve_fit(model, x, y, p0=start, maxfev=10_000)
    except (RuntimeError, OptimizeWarning) as error:
        raise _undetermined(y) from error
    a, b, c = (float(v) for v in found)
    e = [math.sqrt(v) for v in np.diag(covariance)]
    if not e[1] < b:
        raise _undetermined(y)
    residual = float(np.sqrt(np.mean((model(x, a, b, c) - y) ** 2)))
    return Decay(a, b, c, (e[0], e[1], e[2]), residual)


def fits_of(experiment: Experiment, outcomes: Sequence[Outcome]) -> dict[str, Decay | None]:
    """Fit of every arm of an experiment; None where its windows do not determine one."""
    fits: dict[str, Decay | None] = {}
    for arm, rows in experiment.series.items():
        try:
            fits[arm] = fit_decay(means_of(rows, outcomes))
        except ArgumentError:
            fits[arm] = None
    return fits


def means_of(rows: Mapping[str, str], outcomes: Sequence[Outcome]) -> dict[int, float]:
    """Mean over seeds by window, of the windows with finished runs; ``rows`` are those of an arm by window."""
    found = {int(T): [o.metric for o in outcomes if o.value == row] for T, row in rows.items()}
    return {T: statistics.fmean(metrics) for T, metrics in sorted(found.items()) if metrics}


def _undetermined(values: Any) -> ArgumentError:
    shown = ", ".join(f"{float(value):.4f}" for value in values)
    return ArgumentError("means", f"expected values that determine a decay with the window, got {shown}.")
