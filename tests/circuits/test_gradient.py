"""The native adjoint gradient three ways: differences of the reference, torch's autograd, the torch engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from diabat.circuits import (
    Batch,
    NativeEngine,
    PlanGradient,
    TorchEngine,
    TrotterPlan,
    linear_ramp,
    reference_probabilities,
    spin_table,
    trotter_plan,
)

from .conftest import Array, random_plan, random_problem

ANGLES = ("field_angles", "coupling_angles", "mixer_angles")
KINDS = ("shared", "per problem")


def turning(steps: int, parity: int, seed: int) -> TrotterPlan:
    """Mixers beyond ±π that flip all spins an even (0) or odd (1) number of times."""
    plan = random_plan(steps, seed)
    mixers = np.clip(plan.mixer_angles, -1.0, 1.0)
    mixers[0] += np.pi  # the steps between see the signs of the fields turned
    mixers[-1] -= (2 + (parity + 1) % 2) * np.pi
    return TrotterPlan(plan.field_angles, plan.coupling_angles, mixers)


def make_batch(n: int, problems: int, kind: str, seed: int) -> Batch:
    fields, couplings = random_problem(n, problems, seed)
    own = [random_problem(n, 1, seed + 100 + q)[1] for q in range(problems)]
    return Batch(fields, couplings if kind == "shared" else np.stack(own))


def cotangents(batch: Batch, with_pairs: bool, seed: int = 5) -> tuple[Array, Array | None]:
    random = np.random.default_rng(seed)
    v = random.normal(size=batch.fields.shape)
    w = random.normal(size=(*batch.fields.shape, batch.num_spins))
    return v, (w + w.swapaxes(1, 2) if with_pairs else None)


def gradient_of(engine: Any, plan: TrotterPlan, batch: Batch, v: Array, w: Array | None) -> PlanGradient:
    found: PlanGradient = engine.gradient(plan, [batch], [v], None if w is None else [w])
    return found


def flat(gradient: PlanGradient) -> Array:
    """All derivatives in one row."""
    parts = [x.ravel() for g in gradient.batches for x in (g.fields, g.couplings)]
    return np.concatenate([*parts, *(getattr(gradient, key) for key in ANGLES)])


def reference_loss(plan: TrotterPlan, batch: Batch, v: Array, w: Array | None) -> float:
    spins, total = spin_table(batch.num_spins).astype(np.float64), 0.0
    for q, h in enumerate(batch.fields):
        J = batch.couplings if batch.shared else batch.couplings[q]
        p = reference_probabilities(plan, h[None], J)[0]
        total += float(v[q] @ (p @ (spins > 0)))
        if w is not None:
            total += float((w[q] * np.einsum("x,xi,xj->ij", p, spins, spins)).sum())
    return total


def slope(function: Callable[[float], float]) -> float:
    """Central differences of fourth order; with steps of 1e-3 both errors are near 1e-11."""
    e = 1e-3
    return (8 * (function(e) - function(-e)) - (function(2 * e) - function(-2 * e))) / (12 * e)


@pytest.mark.parametrize("parity", [0, 1], ids=["even flips", "odd flips"])
@pytest.mark.parametrize("with_pairs", [False, True], ids=["marginals", "pairs too"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_equals_central_differences(kind: str, with_pairs: bool, parity: int) -> None:
    plan, batch = turning(3, parity, seed=8), make_batch(3, 2, kind, seed=8)
    v, w = cotangents(batch, with_pairs)
    gradient = gradient_of(NativeEngine(), plan, batch, v, w)
    (found,) = gradient.batches
    want, got = [], []
    for at in np.ndindex(batch.fields.shape):
        unit = np.zeros(batch.fields.shape)
        unit[at] = 1
        want.append(
            slope(lambda e, u=unit: reference_loss(plan, Batch(batch.fields + e * u, batch.couplings), v, w))  # type: ignore[misc]  # a default binds u
        )
        got.append(found.fields[at])
    assert found.couplings.shape == batch.couplings.shape
    assert (found.couplings == found.couplings.swapaxes(-1, -2)).all()
    assert not np.diagonal(found.couplings, axis1=-2, axis2=-1).any()
    for *lead, i, j in np.argwhere(np.triu(np.ones(batch.couplings.shape), 1)):
        unit = np.zeros(batch.couplings.shape)
        unit[(*lead, i, j)] = unit[(*lead, j, i)] = 1  # a coupling stands in the matrix twice
        want.append(
            slope(lambda e, u=unit: reference_loss(plan, Batch(batch.fields, batch.couplings + e * u), v, w))  # type: ignore[misc]  # a default binds u
        )
        got.append(2 * found.couplings[(*lead, i, j)])
    angles = {key: getattr(plan, key) for key in ANGLES}
    for key in ANGLES:
        for step in range(plan.steps):
            unit = np.eye(plan.steps)[step]
            want.append(
                slope(
                    lambda e, k=key, u=unit: reference_loss(
                        TrotterPlan(**(angles | {k: angles[k] + e * u})), batch, v, w
                    )  # type: ignore[misc]  # defaults bind k, u
                )
            )
            got.append(getattr(gradient, key)[step])
    assert np.abs(want).min() > 1e-6
    assert got == pytest.approx(want, rel=1e-7, abs=1e-9)


def simulated_loss(h: Tensor, J: Tensor, angles: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """Another simulation: a tensor with one axis per spin, pair phases one by one, a 2x2 matrix on each axis."""
    problems, n = h.shape
    psi = torch.full((problems, *(2,) * n), 2 ** (-n / 2), dtype=torch.complex128)
    s = [
        torch.tensor([-1.0, 1.0]).double().reshape(1, *(2 if k == j else 1 for k in range(n)))
        for j in range(n)
    ]

    def per_problem(x: Tensor) -> Tensor:
        return x.expand(problems).reshape(problems, *(1,) * n)

    for b, c, a in angles.T:
        for j in range(n):
            psi = psi * torch.exp(0.5j * b * per_problem(h[:, j]) * s[j])
            for i in range(j):
                coupling = (J[..., i, j] + J[..., j, i]) / 2
                psi = psi * torch.exp(0.5j * c * per_problem(coupling) * s[i] * s[j])
        turn = torch.stack([torch.cos(a / 2), 1j * torch.sin(a / 2)])
        for j in range(n):
            psi = turn[0] * psi + turn[1] * psi.flip(j + 1)
    p = psi.abs() ** 2
    axes = tuple(range(1, n + 1))
    loss = sum((v[:, j] * (p * (s[j] > 0)).sum(axes)).sum() for j in range(n))
    pairs = sum(
        (w[:, i, j] * (p * s[i] * s[j]).sum(axes)).sum() for i in range(n) for j in range(n) if i != j
    )
    return torch.as_tensor(loss + pairs)


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_equals_autograd(kind: str, n: int) -> None:
    for parity in (0, 1):
        plan, batch = turning(5, parity, seed=n), make_batch(n, 3, kind, seed=n)
        v, w = cotangents(batch, with_pairs=True)
        assert w is not None
        angles = np.stack([getattr(plan, key) for key in ANGLES])
        h, J, turns = (torch.tensor(x, requires_grad=True) for x in (batch.fields, batch.couplings, angles))
        loss = simulated_loss(h, J, turns, torch.tensor(v), torch.tensor(w))
        dh, dJ, da = torch.autograd.grad(loss, (h, J, turns), allow_unused=True, materialize_grads=True)
        want = np.concatenate([x.numpy().ravel() for x in (dh, dJ, da)])
        # The convention of J: half of the pair's derivative at each of its two places.
        assert flat(gradient_of(NativeEngine(), plan, batch, v, w)) == pytest.approx(want, abs=1e-11)


PLANS = {
    "strang": trotter_plan(linear_ramp(2.0, 3.0, 0.1), 1.0, 12),
    "suzuki4": trotter_plan(linear_ramp(2.0, 3.0, 0.1), 1.0, 6, "suzuki4"),
    "angles apart": random_plan(6, seed=1),
    "even flips": turning(6, 0, seed=2),
    "odd flips": turning(6, 1, seed=3),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=list(PLANS))
def test_gradient_equals_that_of_the_torch_engine(plan: TrotterPlan) -> None:
    """Sizes on both sides of a chunk and of shared phase tables, blocks full and not."""
    for n, problems in ((1, 9), (2, 3), (5, 17), (6, 2), (7, 17), (8, 3), (9, 2)):
        for kind in KINDS:
            batch = make_batch(n, problems, kind, seed=n)
            for with_pairs in (False, True):
                v, w = cotangents(batch, with_pairs)
                want = flat(gradient_of(TorchEngine(), plan, batch, v, w))
                double = flat(gradient_of(NativeEngine(), plan, batch, v, w))
                assert np.abs(double - want).max() < 1e-10
                single = flat(gradient_of(NativeEngine("single"), plan, batch, v, w))
                # Rounding of 6e-8 in each of up to 30 steps, relative to the largest derivative.
                error = np.abs(single - want).max() / np.abs(want).max()
                assert 1e-10 < error < 1e-4


@pytest.mark.parametrize("n", [3, 4, 9, 10, 11, 12, 13])
def test_gradient_with_groups_of_every_size_within_and_above_a_chunk(n: int) -> None:
    plan, batch = turning(3, n % 2, seed=n), make_batch(n, 2, KINDS[n // 2 % 2], seed=n)
    v, w = cotangents(batch, n % 3 == 0)
    want = flat(gradient_of(TorchEngine(), plan, batch, v, w))
    assert np.abs(flat(gradient_of(NativeEngine(), plan, batch, v, w)) - want).max() < 1e-10
    single = flat(gradient_of(NativeEngine("single"), plan, batch, v, w))
    assert np.abs(single - want).max() < 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("precision", ["double", "single"])
def test_batches_of_several_sizes_add_up(precision: Any) -> None:
    """Fields and couplings of each batch as alone, bit for bit; angles are sums over the batches."""
    plan, engine = turning(4, 1, seed=4), NativeEngine(precision)
    sizes = ((4, 17, "shared"), (1, 2, "shared"), (7, 9, "per problem"), (8, 20, "shared"))
    batches = [make_batch(*size, seed=k) for k, size in enumerate(sizes)]
    pairs = [cotangents(batch, True, seed=k) for k, batch in enumerate(batches)]
    v, w = [p[0] for p in pairs], [p[1] for p in pairs if p[1] is not None]
    together = engine.gradient(plan, batches, v, w)
    alone = [engine.gradient(plan, [b], [a], [c]) for b, a, c in zip(batches, v, w, strict=True)]
    for found, part in zip(together.batches, alone, strict=True):
        assert (found.fields == part.batches[0].fields).all()
        assert (found.couplings == part.batches[0].couplings).all()
    for key in ANGLES:
        want = sum(getattr(part, key) for part in alone)
        assert getattr(together, key) == pytest.approx(want, abs=1e-12 if precision == "double" else 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_problem_does_not_depend_on_the_batch_around_it(kind: str) -> None:
    plan, batch, engine = turning(4, 0, seed=4), make_batch(5, 21, kind, seed=3), NativeEngine()
    v, w = cotangents(batch, True)
    whole = gradient_of(engine, plan, batch, v, w).batches[0]
    for rows in (np.arange(21)[::-1], np.array([20]), np.array([3, 11])):
        J = batch.couplings if batch.shared else batch.couplings[rows]
        part = gradient_of(engine, plan, Batch(batch.fields[rows], J), v[rows], w[rows]).batches[0]
        assert (part.fields == whole.fields[rows]).all()
        if not batch.shared:
            assert (part.couplings == whole.couplings[rows]).all()


def test_couplings_that_are_shared_get_the_sum() -> None:
    plan, batch = random_plan(4, seed=4), make_batch(4, 5, "shared", seed=3)
    v, w = cotangents(batch, True)
    own = Batch(batch.fields, np.stack([batch.couplings] * 5))
    shared = gradient_of(NativeEngine(), plan, batch, v, w).batches[0]
    each = gradient_of(NativeEngine(), plan, own, v, w).batches[0]
    assert shared.couplings == pytest.approx(each.couplings.sum(0), abs=1e-13)
    assert shared.fields == pytest.approx(each.fields, abs=1e-13)


@pytest.mark.parametrize("n", [4, 8])
def test_angles_are_left_out_on_request(n: int) -> None:
    plan, batch, engine = random_plan(5, seed=2), make_batch(n, 4, "shared", seed=2), NativeEngine()
    whole = engine.gradient(plan, [batch], [batch.fields])
    part = engine.gradient(plan, [batch], [batch.fields], angles=False)
    assert (part.batches[0].fields == whole.batches[0].fields).all()
    assert (part.batches[0].couplings == whole.batches[0].couplings).all()
    for key in ANGLES:
        assert not getattr(part, key).any()
        assert getattr(whole, key).any()


def test_memory_does_not_grow_with_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    from diabat.circuits.engines.native import engine as native

    asked: list[int] = []
    monkeypatch.setattr(native, "require_memory", lambda needed, what: asked.append(needed))
    batch = make_batch(6, 3, "shared", seed=1)
    for steps in (3, 300):
        NativeEngine().gradient(random_plan(steps, seed=1), [batch], [batch.fields], angles=False)
    assert asked[0] == asked[1] > 7 * 2**6 * 64
