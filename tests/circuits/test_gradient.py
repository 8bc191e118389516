"""Adjoint gradients: torch's autograd of another simulation, and the native engine against the torch engine."""

from __future__ import annotations

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
    trotter_plan,
)
from diabat.circuits.engines.native import engine as native
from diabat.circuits.engines.torch.steps import TorchSteps

from .conftest import ANGLES, KINDS, Array, make_batch, random_plan, turning


def cotangents(batch: Batch, seed: int = 5) -> tuple[Array, Array]:
    """Of the marginals and of the pairs."""
    random = np.random.default_rng(seed)
    v = random.normal(size=batch.fields.shape)
    w = random.normal(size=(*batch.fields.shape, batch.num_spins))
    return v, w + w.swapaxes(1, 2)


def gradient_of(engine: Any, plan: TrotterPlan, batch: Batch, v: Array, w: Array | None) -> PlanGradient:
    found: PlanGradient = engine.gradient(plan, [batch], [v], None if w is None else [w])
    return found


def flat(gradient: PlanGradient) -> Array:
    """All derivatives in one row."""
    parts = [x.ravel() for g in gradient.batches for x in (g.fields, g.couplings)]
    return np.concatenate([*parts, *(getattr(gradient, key) for key in ANGLES)])


def simulated_loss(h: Tensor, J: Tensor, angles: Tensor, v: Tensor, w: Tensor) -> Tensor:
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


SIMULATED = {
    "even flips": turning(5, 0, seed=1),
    "odd flips": turning(5, 1, seed=2),
    "both signs": random_plan(6, seed=3),
}


@pytest.mark.parametrize("with_pairs", [False, True], ids=["marginals", "pairs too"])
@pytest.mark.parametrize("plan", SIMULATED.values(), ids=list(SIMULATED))
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_equals_autograd(kind: str, n: int, plan: TrotterPlan, with_pairs: bool) -> None:
    """The convention of J: half of the pair's derivative at each of its two places."""
    batch = make_batch(n, 4, kind, seed=n)
    v, w = cotangents(batch)
    angles = np.stack([getattr(plan, key) for key in ANGLES])
    h, J, turns = (torch.tensor(x, requires_grad=True) for x in (batch.fields, batch.couplings, angles))
    loss = simulated_loss(h, J, turns, torch.tensor(v), torch.tensor(w if with_pairs else 0 * w))
    want = np.concatenate([x.numpy().ravel() for x in torch.autograd.grad(loss, (h, J, turns))])
    for engine, tolerance in (
        (NativeEngine(), 1e-11),
        (TorchEngine(), 1e-11),
        (TorchEngine(precision="single"), 3e-5),
    ):
        found = gradient_of(engine, plan, batch, v, w if with_pairs else None)
        assert np.abs(flat(found) - want).max() < tolerance
        couplings = found.batches[0].couplings
        assert couplings.shape == batch.couplings.shape
        assert (couplings == couplings.swapaxes(-1, -2)).all()
        assert not np.diagonal(couplings, axis1=-2, axis2=-1).any()


PLANS = {
    "strang": trotter_plan(linear_ramp(2.0, 3.0, 0.1), 1.0, 12),
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
            v, pairs = cotangents(batch)
            for w in (None, pairs):
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
    v, pairs = cotangents(batch)
    w = pairs if n % 3 == 0 else None
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
    v, w = zip(*(cotangents(batch, seed=k) for k, batch in enumerate(batches)), strict=True)
    together = engine.gradient(plan, batches, v, w)
    alone = [engine.gradient(plan, [b], [a], [c]) for b, a, c in zip(batches, v, w, strict=True)]
    for found, part in zip(together.batches, alone, strict=True):
        assert (found.fields == part.batches[0].fields).all()
        assert (found.couplings == part.batches[0].couplings).all()
    for key in ANGLES:
        want = sum(getattr(part, key) for part in alone)
        assert getattr(together, key) == pytest.approx(want, abs=1e-12 if precision == "double" else 1e-5)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("precision", ["double", "single"])
def test_kept_states_give_the_same_bits(precision: Any, pairs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all sizes, of full blocks, and of few problems, whose states fill the lanes; the states stay as they are."""
    plan, engine = turning(4, 1, seed=4), NativeEngine(precision, threads=2)
    sizes = ((4, 17), (1, 2), (7, 9), (8, 20), (9, 2), (9, 4), (12, 1), (3, 0))
    batches = [make_batch(*size, KINDS[k % 2], seed=k) for k, size in enumerate(sizes)]
    v, w = zip(*(cotangents(batch, seed=k) for k, batch in enumerate(batches)), strict=True)
    for part in (slice(None), *(slice(k, k + 1) for k in range(len(batches)))):
        given = plan, batches[part], v[part], w[part] if pairs else None
        found, gradient = engine.moments_and_gradient(plan, batches[part], correlations=pairs)
        for one, two in zip(found, engine.moments(plan, batches[part], correlations=pairs), strict=True):
            assert np.array_equal(one.probability, two.probability)
        states = gradient.args[2]
        before, want = states.copy(), engine.gradient(*given)
        assert np.array_equal(flat(want), flat(gradient(*given[2:])))
        assert np.array_equal(states, before)
    for least, keeps in ((0, True), (1, False)):
        monkeypatch.setattr(native, "KEPT_BYTES", 2 * 2**12 * 64 - least)
        states = engine.moments_and_gradient(plan, batches[6:7])[1].args[2]
        assert (len(states) > 0) == keeps


@pytest.mark.parametrize("kind", KINDS)
def test_a_problem_does_not_depend_on_the_batch_around_it(kind: str) -> None:
    plan, batch, engine = turning(4, 0, seed=4), make_batch(5, 21, kind, seed=3), NativeEngine()
    v, w = cotangents(batch)
    whole = gradient_of(engine, plan, batch, v, w).batches[0]
    for rows in (np.arange(21)[::-1], np.array([20]), np.array([3, 11])):
        J = batch.couplings if batch.shared else batch.couplings[rows]
        part = gradient_of(engine, plan, Batch(batch.fields[rows], J), v[rows], w[rows]).batches[0]
        assert (part.fields == whole.fields[rows]).all()
        if not batch.shared:
            assert (part.couplings == whole.couplings[rows]).all()


@pytest.mark.parametrize(("engine", "n"), [(NativeEngine(), 4), (NativeEngine(), 8), (TorchEngine(), 3)])
def test_angles_are_left_out_on_request(engine: Any, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, batch = random_plan(5, seed=2), make_batch(n, 4, "shared", seed=2)
    whole = engine.gradient(plan, [batch], [batch.fields])
    monkeypatch.delattr(TorchSteps, "mixer_slope")  # the torch engine does not do the work either
    part = engine.gradient(plan, [batch], [batch.fields], angles=False)
    assert (part.batches[0].fields == whole.batches[0].fields).all()
    assert (part.batches[0].couplings == whole.batches[0].couplings).all()
    for key in ANGLES:
        assert not getattr(part, key).any()
        assert getattr(whole, key).any()


def test_memory_does_not_grow_with_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(native, "require_memory", lambda needed, what: asked.append(needed))
    batch = make_batch(6, 3, "shared", seed=1)
    for steps in (3, 300):
        NativeEngine().gradient(random_plan(steps, seed=1), [batch], [batch.fields], angles=False)
    assert asked[0] == asked[1] > 7 * 2**6 * 64
