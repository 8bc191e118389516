"""The torch engine against the reference simulation, finite differences and torch's own autograd."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from diabat import circuits
from diabat.circuits import Batch, TrotterPlan, linear_ramp, reference_probabilities, trotter_plan
from diabat.circuits.engines.torch import adjoint as torch_adjoint
from diabat.circuits.engines.torch import engine as torch_engine_module
from diabat.circuits.engines.torch.engine import TorchEngine
from diabat.circuits.engines.torch.steps import TorchSteps

from .conftest import Array, random_plan, random_problem

PLANS = {
    "anneal, first order": trotter_plan(linear_ramp(2.0, 3.0, 0.1), 1.0, 8, "first"),
    "anneal, Strang": trotter_plan(linear_ramp(2.0, 3.0, 0.1), 1.0, 8, "strang"),
    "angles apart, both signs": random_plan(7, seed=3),
}
TOLERANCE = {"double": 1e-10, "single": 1e-5}
KINDS = ("shared", "per problem")


def stacked(n: int, problems: int, seed: int) -> Array:
    """Couplings [problems, n, n], all different."""
    return np.stack([random_problem(n, 1, seed + q)[1] for q in range(problems)])


def make_batch(n: int, problems: int, kind: str, seed: int) -> Batch:
    fields, couplings = random_problem(n, problems, seed)
    return Batch(fields, couplings if kind == "shared" else stacked(n, problems, seed))


def expected_probabilities(plan: TrotterPlan, batch: Batch) -> Array:
    matrices = np.broadcast_to(batch.couplings, (batch.num_problems, *batch.couplings.shape[-2:]))
    return np.concatenate(
        [reference_probabilities(plan, batch.fields[q : q + 1], J) for q, J in enumerate(matrices)]
    )


@pytest.mark.parametrize("precision", ["double", "single"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=list(PLANS))
@pytest.mark.parametrize("n", [*range(1, 9), 10])
def test_probabilities_and_moments_equal_the_reference(n: int, plan: TrotterPlan, precision: Any) -> None:
    engine = TorchEngine(precision=precision)
    spins = circuits.spin_table(n).astype(np.float64)
    for kind in KINDS:
        batch = make_batch(n, 3, kind, seed=n)
        expected = expected_probabilities(plan, batch)
        found = engine.probabilities(plan, batch.fields, batch.couplings)
        assert found.dtype == np.float64
        assert np.abs(found - expected).max() < TOLERANCE[precision]
        assert np.abs(found.sum(axis=1) - 1).max() < 1e-12
        (moments,) = engine.moments(plan, [batch], correlations=True)
        pairs = np.einsum("qx,xi,xj->qij", expected, spins, spins)
        assert np.abs(moments.probability - expected @ (spins > 0)).max() < TOLERANCE[precision]
        assert np.abs(moments.correlation - pairs).max() < TOLERANCE[precision]


def test_single_precision_is_single() -> None:
    batch = make_batch(5, 3, "shared", seed=1)
    found = TorchEngine(precision="single").probabilities(
        PLANS["anneal, Strang"], batch.fields, batch.couplings
    )
    assert np.abs(found - expected_probabilities(PLANS["anneal, Strang"], batch)).max() > 1e-11


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


def test_a_small_probability_keeps_its_digits() -> None:
    """(m + 1)/2 of a magnetisation next to -1 would leave rounding only."""
    plan = TrotterPlan(np.array([1.0]), np.array([0.0]), np.array([np.pi / 2]))
    tilt = 1e-9  # P(+1) = sin²(tilt/2), b h a quarter turn less the tilt
    (moments,) = TorchEngine().moments(plan, [Batch(np.array([[tilt - np.pi / 2]]), np.zeros((1, 1)))])
    assert moments.probability[0, 0] == pytest.approx(np.sin(tilt / 2) ** 2, rel=1e-5)


def loss_of(plan: TrotterPlan, batch: Batch, v: Array, w: Array | None) -> float:
    (moments,) = TorchEngine().moments(plan, [batch], correlations=True)
    assert moments.correlation is not None
    return float((v * moments.probability).sum() + (0.0 if w is None else (w * moments.correlation).sum()))


def slope(function: Callable[[float], float]) -> float:
    """Central differences of fourth order; with steps of 1e-3 both errors are near 1e-11."""
    e = 1e-3
    return (8 * (function(e) - function(-e)) - (function(2 * e) - function(-2 * e))) / (12 * e)


def cotangents(batch: Batch, with_pairs: bool) -> tuple[Array, Array | None]:
    random = np.random.default_rng(5)
    v = random.normal(size=batch.fields.shape)
    w = random.normal(size=(*batch.fields.shape, batch.num_spins))
    return v, (w + w.swapaxes(1, 2) if with_pairs else None)


@pytest.mark.parametrize("with_pairs", [False, True], ids=["marginals", "pairs too"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_equals_central_differences(kind: str, with_pairs: bool) -> None:
    n, problems = 4, 3
    plan, batch = random_plan(4, seed=8), make_batch(n, problems, kind, seed=8)
    v, w = cotangents(batch, with_pairs)
    gradient = TorchEngine().gradient(plan, [batch], [v], None if w is None else [w])
    (found,) = gradient.batches

    for at in np.ndindex(batch.fields.shape):
        unit = np.zeros(batch.fields.shape)
        unit[at] = 1
        numeric = slope(lambda e, u=unit: loss_of(plan, Batch(batch.fields + e * u, batch.couplings), v, w))  # type: ignore[misc]  # a default binds u
        assert found.fields[at] == pytest.approx(numeric, rel=1e-7, abs=1e-9)

    assert found.couplings.shape == batch.couplings.shape
    assert (found.couplings == found.couplings.swapaxes(-1, -2)).all()
    assert not np.diagonal(found.couplings, axis1=-2, axis2=-1).any()
    for *lead, i, j in np.argwhere(np.triu(np.ones(batch.couplings.shape), 1)):
        unit = np.zeros(batch.couplings.shape)
        unit[(*lead, i, j)] = unit[(*lead, j, i)] = 1  # a coupling stands in the matrix twice
        numeric = slope(lambda e, u=unit: loss_of(plan, Batch(batch.fields, batch.couplings + e * u), v, w))  # type: ignore[misc]  # a default binds u
        assert 2 * found.couplings[(*lead, i, j)] == pytest.approx(numeric, rel=1e-7, abs=1e-9)

    kinds = ("field_angles", "coupling_angles", "mixer_angles")
    angles = {key: getattr(plan, key) for key in kinds}
    for key in kinds:
        for step in range(plan.steps):
            unit = np.eye(plan.steps)[step]
            numeric = slope(
                lambda e, k=key, u=unit: loss_of(
                    TrotterPlan(**(angles | {k: angles[k] + e * u})), batch, v, w
                )  # type: ignore[misc]  # defaults bind k, u
            )
            assert getattr(gradient, key)[step] == pytest.approx(numeric, rel=1e-7, abs=1e-9)


def autograd_loss(h: Tensor, J: Tensor, angles: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """An independent simulation: dense matrices exp(i a/2 ΣX), full spin tables, J used as ½ Σ_{j≠k}."""
    n = h.shape[1]
    spins = torch.tensor([[1.0 if x >> j & 1 else -1.0 for j in range(n)] for x in range(2**n)]).double()
    flips = torch.tensor([[float((x ^ y).bit_count() == 1) for x in range(2**n)] for y in range(2**n)])
    flips = flips.to(torch.complex128)
    off_diagonal = J * (1 - torch.eye(n, dtype=torch.float64))
    pair_energy = torch.einsum("xi,qij,xj->qx", spins, off_diagonal.expand(len(h), n, n), spins) / 2
    psi = torch.full((len(h), 2**n), 2 ** (-n / 2), dtype=torch.complex128)
    for b, c, a in angles.T:
        psi = psi * torch.exp(0.5j * (b * h @ spins.T + c * pair_energy))
        psi = psi @ torch.linalg.matrix_exp(0.5j * a * flips).T
    p = psi.abs() ** 2
    pairs = torch.einsum("qx,xi,xj->qij", p, spins, spins)
    return (v * (p @ (spins > 0).double())).sum() + (w * pairs).sum()


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_equals_autograd(kind: str, n: int) -> None:
    plan, batch = random_plan(6, seed=n), make_batch(n, 4, kind, seed=n)
    v, w = cotangents(batch, with_pairs=True)
    assert w is not None
    angles = np.stack([plan.field_angles, plan.coupling_angles, plan.mixer_angles])
    h, J, turns = (torch.tensor(x, requires_grad=True) for x in (batch.fields, batch.couplings, angles))
    loss = autograd_loss(h, J, turns, torch.tensor(v), torch.tensor(w))
    expected = [gradient.numpy() for gradient in torch.autograd.grad(loss, (h, J, turns))]
    for precision, tolerance in (("double", 1e-11), ("single", 3e-5)):
        found = TorchEngine(precision=precision).gradient(plan, [batch], [v], [w])
        assert np.abs(found.batches[0].fields - expected[0]).max() < tolerance
        assert np.abs(found.batches[0].couplings - expected[1]).max() < tolerance
        by_angle = np.stack([found.field_angles, found.coupling_angles, found.mixer_angles])
        assert np.abs(by_angle - expected[2]).max() < tolerance


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_batch_add_up(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, batch, engine = random_plan(5, seed=2), make_batch(3, 7, kind, seed=2), TorchEngine()
    v, w = cotangents(batch, with_pairs=True)
    assert w is not None
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
    assert table.correlation is not None
    assert np.abs(part_table.correlation - table.correlation).max() < 1e-14


def test_angles_are_left_out_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, batch, engine = random_plan(5, seed=2), make_batch(3, 4, "shared", seed=2), TorchEngine()
    whole = engine.gradient(plan, [batch], [batch.fields])
    monkeypatch.delattr(TorchSteps, "mixer_slope")  # the work is not done either
    part = engine.gradient(plan, [batch], [batch.fields], angles=False)
    assert (part.batches[0].fields == whole.batches[0].fields).all()
    assert (part.batches[0].couplings == whole.batches[0].couplings).all()
    assert not part.field_angles.any()
    assert not part.coupling_angles.any()
    assert not part.mixer_angles.any()
    assert whole.mixer_angles.any()


def test_memory_does_not_grow_with_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """States alive while the last steps are undone: as many bytes after 3 steps as after 30."""
    batch = make_batch(6, 40, "per problem", seed=1)
    state_bytes = 16 * 40 * 2**6

    def alive() -> dict[int, int]:
        tensors = [x for x in gc.get_objects() if type(x) is Tensor and x.layout is torch.strided]
        storages = [x.untyped_storage() for x in tensors]
        return {s.data_ptr(): s.nbytes() for s in storages if s.nbytes() >= state_bytes // 2}

    def peak(steps: int) -> int:
        seen, before = [], alive()
        original = TorchSteps.turn

        def watched(self: TorchSteps, step: int, state: Tensor, sign: int = 1) -> None:
            if sign < 0 and step < 2:
                seen.append(sum(size for place, size in alive().items() if place not in before))
            original(self, step, state, sign)

        with monkeypatch.context() as patch:
            patch.setattr(TorchSteps, "turn", watched)
            TorchEngine().gradient(random_plan(steps, seed=1), [batch], [np.ones_like(batch.fields)])
        return max(seen)

    few = peak(3)
    assert 4 * state_bytes <= few <= 7 * state_bytes
    assert peak(30) == few


def test_same_generator_same_draw() -> None:
    plan, batch = random_plan(5, seed=5), make_batch(3, 4, "shared", seed=5)
    first, again, other = (
        TorchEngine().sample(plan, [batch], 50, np.random.default_rng(seed))[0] for seed in (3, 3, 4)
    )
    assert first.shape == (50, 4, 3)
    assert first.dtype == np.int8
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": "half"}, "precision: expected 'double' or 'single', got 'half'"),
        ({"device": "abacus"}, "device: expected a torch device with float64, got 'abacus'"),
        ({"device": "cpu:x"}, "device: expected a torch device with float64, got 'cpu:x'"),
        ({"device": "meta"}, "device: expected a torch device with float64, got 'meta'"),
        ({"memory_gib": 0}, "memory_gib: expected a positive number of GiB, got 0"),
    ],
)
def test_bad_engines_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TorchEngine(**arguments)


def test_too_many_spins_are_refused_with_the_memory_they_need() -> None:
    plan, engine = random_plan(2, seed=1), TorchEngine(memory_gib=1.0)
    assert engine.max_spins == 22
    batch = Batch(np.zeros((1, 30)), np.zeros((30, 30)))
    message = "expected at most 22 spins, got 30, whose states need 160 GiB in double precision"
    for call in (
        lambda: engine.probabilities(plan, batch.fields, batch.couplings),
        lambda: engine.moments(plan, [batch]),
        lambda: engine.gradient(plan, [batch], [batch.fields]),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_bad_calls_are_refused() -> None:
    plan, engine, batch = random_plan(2, seed=1), TorchEngine(), make_batch(3, 2, "shared", seed=1)
    with pytest.raises(ValueError, match=r"fields: expected shape \[Q, n\] with n >= 1, got \(3,\)"):
        engine.probabilities(plan, np.zeros(3), np.zeros((3, 3)))
    with pytest.raises(ValueError, match=r"cotangents: expected one array per batch \(1\), got 0 and 1"):
        engine.gradient(plan, [batch], [])
    with pytest.raises(ValueError, match=r"cotangents: expected shape \(2, 3\), got \(3,\)"):
        engine.gradient(plan, [batch], [np.zeros(3)])
    with pytest.raises(ValueError, match=r"pair_cotangents: expected shape \(2, 3, 3\), got \(3, 3\)"):
        engine.gradient(plan, [batch], [batch.fields], [np.zeros((3, 3))])


def test_the_package_offers_the_engine_by_name() -> None:
    assert circuits.TorchEngine is TorchEngine
    assert TorchEngine.exact
    assert TorchEngine.differentiable
    with pytest.raises(AttributeError, match="no attribute 'TensorEngine'"):
        circuits.TensorEngine  # noqa: B018 - the access is the test
