"""All exact engines against the reference simulation, on every kind of plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from diabat.circuits import (
    AerEngine,
    Batch,
    Engine,
    NativeEngine,
    TorchEngine,
    TrotterPlan,
    linear_ramp,
    reference_probabilities,
    spin_table,
    trotter_plan,
)
from diabat.circuits.engines.native.kernel_inputs import native_plan

from .conftest import KINDS, Array, expected_probabilities, make_batch, random_plan, random_problem

RAMP = linear_ramp(2.0, 3.0, 0.1)


def turning(steps: int, parity: int, seed: int) -> TrotterPlan:
    """Mixers of several turns, both signs, that flip the spins an even (0) or odd (1) number of times in all."""
    random = np.random.default_rng(seed)
    mixers = random.uniform(-3 * np.pi, 3 * np.pi, steps)
    if np.rint(mixers / np.pi).sum() % 2 != parity:
        mixers[0] += np.pi
    fields, couplings = random.normal(size=(2, steps))
    return TrotterPlan(fields, couplings, mixers)


PLANS = {
    **{
        f"{order}, {grid}": trotter_plan(RAMP, 1.0, 10, order, grid)
        for order in ("first", "strang", "suzuki4")
        for grid in ("uniform", "adaptive")
    },
    "angles apart, both signs": random_plan(7, seed=3),
    "one step": random_plan(1, seed=4),
    "even number of flips": turning(6, 0, seed=1),
    "odd number of flips": turning(6, 1, seed=2),
    "quarter turns": TrotterPlan(np.ones(4), np.ones(4), np.pi / 2 * np.array([1.0, -1.0, 3.0, -5.0])),
    "no mixer": TrotterPlan(np.ones(2), np.ones(2), np.zeros(2)),
}
TOLERANCE: dict[Any, float] = {"double": 1e-10, "single": 1e-5}


def check(engine: Engine, plan: TrotterPlan, batch: Batch, expected: Array, tolerance: float) -> None:
    found = engine.probabilities(plan, batch.fields, batch.couplings)
    assert found.dtype == np.float64
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < tolerance
    assert np.abs(found.sum(axis=1) - 1).max() < 1e-12
    spins = spin_table(batch.num_spins).astype(np.float64)
    (moments,) = engine.moments(plan, [batch], correlations=True)
    (alone,) = engine.moments(plan, [batch])
    assert alone.correlation is None
    assert np.abs(moments.probability - expected @ (spins > 0)).max() < tolerance
    assert np.abs(alone.probability - moments.probability).max() < tolerance
    products = (spins[:, :, None] * spins[:, None, :]).reshape(len(spins), -1)
    pairs = (expected @ products).reshape(moments.correlation.shape)
    assert np.abs(moments.correlation - pairs).max() < tolerance
    assert np.abs(np.diagonal(moments.correlation, axis1=1, axis2=2) - 1).max() < tolerance


@pytest.mark.parametrize("n", range(1, 14))
def test_native_and_torch_equal_the_reference(n: int) -> None:
    """Blocks of 8 and 16 lanes, full and not; phase tables for every lane and shared; groups in and above a chunk."""
    problems = 19 if n <= 7 else 2
    for number, plan in enumerate(PLANS.values()):
        # Large sizes take turns: every plan is seen with either kind of couplings at some size.
        for kind in KINDS if n <= 8 else (KINDS[(number + n) % 2],):
            batch = make_batch(n, problems, kind, seed=n)
            expected = expected_probabilities(plan, batch)
            for precision, tolerance in TOLERANCE.items():
                check(NativeEngine(precision), plan, batch, expected, tolerance)
                if n <= 10:  # the torch engine has no groups
                    check(TorchEngine(precision=precision), plan, batch, expected, tolerance)


def test_the_plans_of_this_file_flip_and_do_not_flip() -> None:
    flips = {name: native_plan(plan, np.float64).flip for name, plan in PLANS.items()}
    assert flips["odd number of flips"]
    assert not flips["even number of flips"]
    for plan in PLANS.values():
        assert np.abs(native_plan(plan, np.float64).table[2]).max() <= 1 + 1e-12
    assert (native_plan(PLANS["even number of flips"], np.float64).signs == -1).any()
    assert max(np.abs(plan.mixer_angles).max() for plan in PLANS.values()) > 2 * np.pi


@pytest.mark.parametrize(
    ("n", "name"),
    [*((3, name) for name in PLANS), *((n, "angles apart, both signs") for n in (1, 2, 4, 5, 6))],
)
def test_aer_equals_the_reference(n: int, name: str) -> None:
    for kind in KINDS:
        batch = make_batch(n, 2, kind, seed=5)
        check(AerEngine(), PLANS[name], batch, expected_probabilities(PLANS[name], batch), 1e-10)


def test_strong_problems_and_a_long_anneal() -> None:
    """Phases of hundreds of turns are reduced without loss: 200 steps of the kind that hardware runs."""
    plan = trotter_plan(linear_ramp(10.0, 15.0, 0.5), 5.0, 200)
    fields, couplings = random_problem(8, 3, seed=1, scale=40.0)
    expected = reference_probabilities(plan, fields, couplings)
    found = NativeEngine().probabilities(plan, fields, couplings)
    assert np.abs(found - expected).max() < TOLERANCE["double"]


@pytest.mark.parametrize("engine", [NativeEngine, TorchEngine])
@pytest.mark.parametrize("precision", TOLERANCE)
def test_single_is_single_and_double_is_double(precision: str, engine: Any) -> None:
    plan, batch = PLANS["strang, uniform"], make_batch(5, 3, "shared", seed=1)
    found = engine(precision=precision).probabilities(plan, batch.fields, batch.couplings)
    error = np.abs(found - expected_probabilities(plan, batch)).max()
    assert error < 1e-13 if precision == "double" else 1e-10 < error < 1e-5


@pytest.mark.parametrize("engine", [NativeEngine(), TorchEngine()])
def test_a_small_probability_keeps_its_digits(engine: Engine) -> None:
    """(m + 1)/2 of a magnetisation next to -1 would leave rounding only."""
    plan = TrotterPlan(np.array([1.0]), np.array([0.0]), np.array([np.pi / 2]))
    tilt = 1e-9  # P(+1) = sin²(tilt/2), b h a quarter turn less the tilt
    (moments,) = engine.moments(plan, [Batch(np.array([[tilt - np.pi / 2]]), np.zeros((1, 1)))])
    assert moments.probability[0, 0] == pytest.approx(np.sin(tilt / 2) ** 2, rel=1e-5, abs=0)


@pytest.mark.parametrize("engine", [NativeEngine(), TorchEngine()])
def test_bad_calls_are_refused(engine: Engine) -> None:
    plan, batch = random_plan(2, seed=1), make_batch(3, 2, "shared", seed=1)
    with pytest.raises(ValueError, match=r"fields: expected shape \[Q, n\] with n >= 1, got \(3,\)"):
        engine.probabilities(plan, np.zeros(3), np.zeros((3, 3)))
    with pytest.raises(ValueError, match="fields"):
        engine.probabilities(plan, np.full((1, 3), np.nan), np.zeros((3, 3)))
    with pytest.raises(ValueError, match=r"cotangents: expected one array per batch \(1\), got 0 and 1"):
        engine.gradient(plan, [batch], [])
    with pytest.raises(ValueError, match=r"cotangents: expected shape \(2, 3\), got \(3,\)"):
        engine.gradient(plan, [batch], [np.zeros(3)])
    with pytest.raises(ValueError, match=r"pair_cotangents: expected shape \(2, 3, 3\), got \(3, 3\)"):
        engine.gradient(plan, [batch], [batch.fields], [np.zeros((3, 3))])
