"""All exact engines against the reference simulation on every kind of plan, and what is asked of each alike."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from diabat import circuits
from diabat.circuits import (
    AerEngine,
    Batch,
    Engine,
    NativeEngine,
    PrimitiveEngine,
    TorchEngine,
    TrotterPlan,
    linear_ramp,
    reference_probabilities,
    spin_table,
    trotter_plan,
)
from diabat.circuits.engines.native.engine import MAX_SPINS
from diabat.circuits.engines.native.kernel_inputs import native_plan
from diabat.circuits.engines.torch import adjoint as torch_adjoint
from diabat.circuits.engines.torch import engine as torch_engine_module
from diabat.circuits.engines.torch.steps import TorchSteps

from .conftest import (
    KINDS,
    Array,
    assert_reads_follow,
    expected_probabilities,
    make_batch,
    random_plan,
    random_problem,
    turning,
)

RAMP = linear_ramp(2.0, 3.0, 0.1)
PLANS = {
    **{
        f"{order}, {grid}": trotter_plan(RAMP, 1.0, 10, order, grid)
        for order in ("first", "strang")
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
                if n in (1, 2, 3, 6, 10):  # the torch engine has neither blocks nor groups
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


EXACT = [NativeEngine(), TorchEngine(), AerEngine()]


@pytest.mark.parametrize("engine", [*EXACT, PrimitiveEngine()], ids=lambda engine: engine.name)
@pytest.mark.parametrize("plan", [random_plan(3, seed=4), turning(5, 0, seed=6), turning(5, 1, seed=6)])
def test_reads_follow_the_reference_and_no_mistake(engine: Engine, plan: TrotterPlan) -> None:
    """G-test, N = 20,000 reads (4000 of the primitive) of each of 3 problems with 16 states; mistakes fail by far."""
    fields, couplings = random_problem(4, 3, seed=4)
    reads = 20_000 if engine.exact else 4000
    (spins,) = engine.sample(plan, [Batch(fields, couplings)], reads, np.random.default_rng(1))
    assert spins.shape == (reads, 3, 4)
    assert spins.dtype == np.int8
    assert_reads_follow(spins, plan, fields, couplings)


@pytest.mark.parametrize(
    "engines",
    [(AerEngine(), AerEngine(threads=1, batch_size=2)), (TorchEngine(), TorchEngine())],
    ids=["aer", "torch"],
)
def test_same_seed_same_draw_whatever_the_batches_and_threads(engines: tuple[Engine, Engine]) -> None:
    plan, batch = random_plan(5, seed=5), make_batch(3, 7, "shared", seed=5)
    first, again, other = (
        engine.sample(plan, [batch], 50, np.random.default_rng(seed))[0]
        for engine, seed in zip((*engines, engines[0]), (3, 3, 4), strict=True)
    )
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize("engine", EXACT, ids=lambda engine: engine.name)
@pytest.mark.parametrize("n", [1, 3, 8])
@pytest.mark.parametrize("own", [False, True])
def test_no_problems_give_empty_results_of_the_right_shape(engine: Engine, n: int, own: bool) -> None:
    plan, batch = random_plan(3, seed=1), Batch(np.zeros((0, n)), np.zeros((0, n, n) if own else (n, n)))
    assert engine.probabilities(plan, batch.fields, batch.couplings).shape == (0, 2**n)
    (moments,) = engine.moments(plan, [batch], correlations=engine.differentiable)
    assert moments.probability.shape == (0, n)
    assert not engine.differentiable or moments.correlation.shape == (0, n, n)
    (spins,) = engine.sample(plan, [batch], 5, np.random.default_rng(1))
    assert spins.shape == (5, 0, n)
    if engine.differentiable:
        gradient = engine.gradient(plan, [batch], [np.zeros((0, n))], [np.zeros((0, n, n))])
        assert gradient.batches[0].fields.shape == (0, n)
        assert gradient.batches[0].couplings.shape == batch.couplings.shape
        assert not gradient.mixer_angles.any()


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


def test_batches_of_several_sizes_and_the_empty_one() -> None:
    plan, engine = random_plan(4, seed=1), TorchEngine()
    batches = [make_batch(n, problems, "shared", seed=n) for n, problems in ((1, 2), (3, 0), (4, 5))]
    found = engine.moments(plan, batches)
    assert [m.probability.shape for m in found] == [(2, 1), (0, 3), (5, 4)]
    assert all(m.correlation is None for m in found)
    for batch, moments in zip(batches, found, strict=True):
        table = expected_probabilities(plan, batch) if batch.num_problems else np.zeros((0, 8))
        up = table @ (circuits.spin_table(batch.num_spins) > 0)
        assert np.abs(moments.probability - up).max(initial=0.0) < 1e-12
    gradient = engine.gradient(plan, batches, [np.ones_like(b.fields) for b in batches])
    assert [g.fields.shape for g in gradient.batches] == [(2, 1), (0, 3), (5, 4)]


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_batch_add_up(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, batch, engine = random_plan(5, seed=2), make_batch(3, 7, kind, seed=2), TorchEngine()
    v, w = batch.fields, batch.fields[:, :, None] + batch.fields[:, None]
    whole, table = (
        engine.gradient(plan, [batch], [v], [w]),
        engine.moments(plan, [batch], correlations=True)[0],
    )
    sizes = []
    original = torch_adjoint.part_gradient

    def recorded(steps: TorchSteps, operator: Tensor, **options: Any) -> Any:
        sizes.append(steps.num_problems)
        return original(steps, operator, **options)

    monkeypatch.setattr(torch_engine_module, "part_gradient", recorded)
    monkeypatch.setattr(torch_engine_module, "_PART_CPU", 2 << 3)
    parts, part_table = (
        engine.gradient(plan, [batch], [v], [w]),
        engine.moments(plan, [batch], correlations=True)[0],
    )
    assert sizes == [2, 2, 2, 1]
    for key in ("field_angles", "coupling_angles", "mixer_angles"):
        assert getattr(parts, key) == pytest.approx(getattr(whole, key), abs=1e-13)
    for key in ("fields", "couplings"):
        assert np.abs(getattr(parts.batches[0], key) - getattr(whole.batches[0], key)).max() < 1e-13
    assert np.abs(part_table.probability - table.probability).max() < 1e-14
    assert np.abs(part_table.correlation - table.correlation).max() < 1e-14


def test_memory_of_torch_does_not_grow_with_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """States alive while the last steps are undone: as many bytes after 3 steps as after 30."""
    batch = make_batch(6, 40, "per problem", seed=1)
    state_bytes = 16 * 40 * 2**6

    def alive() -> dict[int, int]:
        tensors = [x for x in gc.get_objects() if type(x) is Tensor and x.layout is torch.strided]
        tensors = [x for x in tensors if not torch._is_functional_tensor(x)]  # of a graph of another test
        storages = [x.untyped_storage() for x in tensors]
        return {s.data_ptr(): s.nbytes() for s in storages if s.nbytes() >= state_bytes // 2}

    def peak(steps: int) -> int:
        seen, before = [], alive()
        original = TorchSteps.turn

        def watched(self: TorchSteps, step: int, state: Tensor, sign: int = 1) -> None:
            if sign < 0 and step == 0:
                seen.append(sum(size for place, size in alive().items() if place not in before))
            original(self, step, state, sign)

        with monkeypatch.context() as patch:
            patch.setattr(TorchSteps, "turn", watched)
            TorchEngine().gradient(random_plan(steps, seed=1), [batch], [np.ones_like(batch.fields)])
        return max(seen)

    few = peak(3)
    assert 4 * state_bytes <= few <= 7 * state_bytes
    assert peak(30) == few


def test_the_package_offers_the_engine_by_name() -> None:
    assert circuits.TorchEngine is TorchEngine
    assert TorchEngine.exact
    assert TorchEngine.differentiable
    assert not PrimitiveEngine.exact
    assert (TorchEngine(memory_gib=1.0).max_spins, NativeEngine().max_spins) == (22, MAX_SPINS)
    with pytest.raises(AttributeError, match="no attribute 'TensorEngine'"):
        circuits.TensorEngine  # noqa: B018 - the access is the test
