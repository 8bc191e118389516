"""The torch engine: batches, parts, memory, draws. Its numbers: test_engines_agree.py and test_gradient.py."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from diabat import circuits
from diabat.circuits import Batch
from diabat.circuits.engines.torch import adjoint as torch_adjoint
from diabat.circuits.engines.torch import engine as torch_engine_module
from diabat.circuits.engines.torch.engine import TorchEngine
from diabat.circuits.engines.torch.steps import TorchSteps

from .conftest import KINDS, expected_probabilities, make_batch, random_plan


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


def test_the_package_offers_the_engine_by_name() -> None:
    assert circuits.TorchEngine is TorchEngine
    assert TorchEngine.exact
    assert TorchEngine.differentiable
    with pytest.raises(AttributeError, match="no attribute 'TensorEngine'"):
        circuits.TensorEngine  # noqa: B018 - the access is the test
