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

from .conftest import Array, random_plan, random_problem

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
TOLERANCE = {"double": 1e-10, "single": 1e-5}
KINDS = ("shared", "per problem")


def make_batch(n: int, problems: int, kind: str, seed: int) -> Batch:
    fields, couplings = random_problem(n, problems, seed)
    own = [random_problem(n, 1, seed + 100 + q)[1] for q in range(problems)]
    return Batch(fields, couplings if kind == "shared" else np.array(own).reshape(problems, n, n))


def expected_probabilities(plan: TrotterPlan, batch: Batch) -> Array:
    if batch.shared:
        return reference_probabilities(plan, batch.fields, batch.couplings)
    rows = [
        reference_probabilities(plan, h[None], J) for h, J in zip(batch.fields, batch.couplings, strict=True)
    ]
    return np.concatenate(rows)


def check(engine: Engine, plan: TrotterPlan, batch: Batch, expected: Array, tolerance: float) -> None:
    found = engine.probabilities(plan, batch.fields, batch.couplings)
    assert found.dtype == np.float64
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
def test_native_equals_the_reference(n: int) -> None:
    """Blocks of 8 and 16 lanes, full and not; phase tables for every lane and shared; groups in and above a chunk."""
    problems = 19 if n <= 7 else 2
    for number, plan in enumerate(PLANS.values()):
        # Large sizes take turns: every plan is seen with either kind of couplings at some size.
        for kind in KINDS if n <= 8 else (KINDS[(number + n) % 2],):
            batch = make_batch(n, problems, kind, seed=n)
            expected = expected_probabilities(plan, batch)
            check(NativeEngine(), plan, batch, expected, TOLERANCE["double"])
            check(NativeEngine("single"), plan, batch, expected, TOLERANCE["single"])


def test_the_plans_of_this_file_flip_and_do_not_flip() -> None:
    flips = {name: native_plan(plan, np.float64).flip for name, plan in PLANS.items()}
    assert flips["odd number of flips"]
    assert not flips["even number of flips"]
    for plan in PLANS.values():
        assert np.abs(native_plan(plan, np.float64).table[2]).max() <= 1 + 1e-12
    assert (native_plan(PLANS["even number of flips"], np.float64).signs == -1).any()
    assert max(np.abs(plan.mixer_angles).max() for plan in PLANS.values()) > 2 * np.pi


@pytest.mark.parametrize("name", ["aer", "torch"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=list(PLANS))
def test_the_other_exact_engines_equal_it_too(plan: TrotterPlan, name: str) -> None:
    engine: Any = AerEngine() if name == "aer" else TorchEngine()
    for kind in KINDS:
        batch = make_batch(3, 2, kind, seed=5)
        check(engine, plan, batch, expected_probabilities(plan, batch), 1e-10)


def test_strong_problems_and_a_long_anneal() -> None:
    """Phases of hundreds of turns are reduced without loss: 200 steps of the kind that hardware runs."""
    plan = trotter_plan(linear_ramp(10.0, 15.0, 0.5), 5.0, 200)
    fields, couplings = random_problem(8, 3, seed=1, scale=40.0)
    expected = reference_probabilities(plan, fields, couplings)
    found = NativeEngine().probabilities(plan, fields, couplings)
    assert np.abs(found - expected).max() < TOLERANCE["double"]


@pytest.mark.parametrize("precision", ["double", "single"])
def test_single_is_single_and_double_is_double(precision: Any) -> None:
    plan, batch = PLANS["strang, uniform"], make_batch(5, 3, "shared", seed=1)
    error = np.abs(
        NativeEngine(precision).probabilities(plan, batch.fields, batch.couplings)
        - expected_probabilities(plan, batch)
    ).max()
    assert error < 1e-13 if precision == "double" else 1e-10 < error < 1e-5
