"""The fit a exp(-bT) + c: known parameters, standard errors, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from diabat.checks import ArgumentError
from diabat.runs.experiments import Experiment, Outcome, load_experiment
from diabat.runs.reproduction.decay import fit_decay, fits_of

SIX = (4, 6, 8, 10, 12, 14)


def test_exact_values_give_their_parameters() -> None:
    fit = fit_decay({T: 4.1 * math.exp(-0.3 * T) + 5.5 for T in SIX})
    assert (fit.a, fit.b, fit.c) == pytest.approx((4.1, 0.3, 5.5), rel=1e-6)
    assert fit.residual < 1e-8
    assert fit.at(8) == pytest.approx(4.1 * math.exp(-2.4) + 5.5)


def test_standard_errors_are_those_of_repeated_fits() -> None:
    # 200 fits with noise of 0.01: the mean standard error of c is within 20 % of the spread of c.
    random = np.random.default_rng(0)
    clean = {T: 4.1 * math.exp(-0.3 * T) + 5.5 for T in SIX}
    fits = [fit_decay({T: v + 0.01 * random.standard_normal() for T, v in clean.items()}) for _ in range(200)]
    spread = np.std([fit.c for fit in fits])
    assert math.sqrt(np.mean([fit.errors[2] ** 2 for fit in fits])) == pytest.approx(spread, rel=0.2)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_fewer_than_five_windows_are_refused(count: int) -> None:
    values = {T: math.exp(-0.3 * T) for T in SIX[:count]}
    with pytest.raises(
        ArgumentError, match=rf"at least 5 windows \(three determine a, b and c\), got {count}"
    ):
        fit_decay(values)


@pytest.mark.parametrize("values", [[1.0] * 6, [6.5 - 0.1 * T for T in SIX], [6.0, 5.0, 6.0, 5.0, 6.0, 5.0]])
def test_values_that_do_not_decay_are_refused(values: list[float]) -> None:
    with pytest.raises(ArgumentError, match="expected values that determine a decay"):
        fit_decay(dict(zip(SIX, values, strict=True)))


def published_as_outcomes(experiment: Experiment) -> list[Outcome]:
    return [Outcome(row, 0, value, 1, 1.0) for row, value in experiment.published.items() if value]


def test_the_published_series_decays() -> None:
    experiment = load_experiment("table2-shakespeare")
    fits = fits_of(experiment, published_as_outcomes(experiment))
    assert list(fits) == ["softmax", "h+J", "h", "J"]
    assert fits["h"] is fits["J"] is None  # three windows each
    softmax, coupled = fits["softmax"], fits["h+J"]
    assert softmax is not None
    assert coupled is not None
    assert softmax.b == pytest.approx(0.296, abs=0.001)
    assert coupled.c < softmax.c
