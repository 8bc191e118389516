"""``DQASampler.adjoint`` and learnable angles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from diabat.circuits import TrotterPlan, plan_betas
from diabat.ising import Ising, pack_couplings
from diabat.samplers.dqa import DQASampler
from diabat.testing.problems import make_problem, with_visible

F64 = torch.float64
B, C, A = np.random.default_rng(3).normal(size=(3, 4))
PLAN = TrotterPlan(B, C, A, "mine")


def quick(**options: Any) -> DQASampler:
    """A short anneal: 2 ns need more than 46 steps."""
    return DQASampler(**({"annealing_time_ns": 2.0, "steps": 60} | options))


def masked(lead: Any) -> Ising:
    """Causal windows of two heads, one sequence with padding."""
    base = make_problem((3, 2, 4), 4, lead=lead, seed=1)
    padding = torch.tensor([[False] * 4, [False, False, True, True], [True, False, False, False]])
    return with_visible(base, torch.ones(4, 4, dtype=torch.bool).tril() & ~padding[:, None, None])


def slope(function: Any) -> float:
    """Central differences of fourth order; the step suits derivatives of order 1."""
    e = 1e-3
    return float((8 * (function(e) - function(-e)) - (function(2 * e) - function(-2 * e))) / (12 * e))


def loss(sampler: DQASampler, ising: Ising, v: Tensor, seed: int = 0) -> Tensor:
    return (v * sampler.moments(ising, seed=seed).probability).sum()


@pytest.mark.parametrize("options", [{}, {"calibration": "fitted"}, {"betas": (7.0, 13.0)}, {"calibration": "none"},
                                     {"field_noise": 0.05, "coupling_noise": 0.05}],
                         ids=["predicted", "fitted", "given", "none", "noise"])  # fmt: skip
@pytest.mark.parametrize("lead", ["none", "shared", "heads", "per_problem"])
def test_adjoint_equals_differences_of_the_moments(lead: Any, options: dict[str, Any]) -> None:
    """Inverse temperatures and noise are held constant; every place of J holds half of its pair's derivative."""
    sampler, ising = quick(**options), masked(lead)
    v = torch.randn(ising.fields.shape, dtype=F64)
    gradient = sampler.adjoint(ising, v, seed=4)
    assert gradient.fields.shape == ising.fields.shape
    assert gradient.parameters == ()
    assert not gradient.fields[~ising.visible_mask].any()
    direction = torch.randn(ising.fields.shape, dtype=F64)

    def along_fields(e: float) -> Tensor:
        return loss(sampler, Ising(ising.fields + e * direction, ising.couplings, ising.visible), v, seed=4)

    assert float((gradient.fields * direction).sum()) == pytest.approx(
        slope(along_fields), rel=1e-6, abs=1e-8
    )
    if ising.couplings is None:
        assert gradient.couplings is None
        return
    J = ising.couplings
    assert gradient.couplings.shape == J.shape
    assert torch.equal(gradient.couplings, gradient.couplings.mT)
    turn = pack_couplings(torch.randn(*J.shape[:-2], 6, dtype=F64), 4)

    def along_couplings(e: float) -> Tensor:
        return loss(sampler, Ising(ising.fields, J + e * turn, ising.visible), v, seed=4)

    assert float((gradient.couplings * turn).sum()) == pytest.approx(
        slope(along_couplings), rel=1e-6, abs=1e-8
    )


def test_engines_agree_on_the_adjoint() -> None:
    ising = masked("heads")
    v = torch.randn(ising.fields.shape, dtype=F64)
    native, other = (quick(engine=engine).adjoint(ising, v, seed=0) for engine in ("native", "torch"))
    single = quick(precision="single").adjoint(ising, v, seed=0)
    assert (native.fields - other.fields).abs().max() < 1e-10
    assert (single.fields - native.fields).abs().max() < 1e-4
    assert (native.couplings - other.couplings).abs().max() < 1e-10


def test_adjoint_keeps_the_dtype_of_the_problem() -> None:
    ising = make_problem((2, 3), 4, lead="heads", seed=1, dtype=torch.float32)
    gradient = quick().adjoint(ising, torch.ones(2, 3, 4), seed=0)
    assert (gradient.fields.dtype, gradient.couplings.dtype) == (torch.float32, torch.float32)


def learned(**options: Any) -> DQASampler:
    previous = torch.get_default_dtype()
    torch.set_default_dtype(F64)
    try:
        return DQASampler(schedule=PLAN, learn_schedule=True, **options)
    finally:
        torch.set_default_dtype(previous)


def angles_of(sampler: DQASampler) -> nn.Parameter:
    assert sampler.schedule_angles is not None
    return sampler.schedule_angles


def test_angles_are_parameters_that_start_from_the_plan() -> None:
    sampler = learned()
    (angles,) = sampler.parameters()
    assert isinstance(angles, nn.Parameter)
    assert angles.shape == (3, 4)
    want = np.stack((PLAN.field_angles, PLAN.coupling_angles, PLAN.mixer_angles))
    assert np.array_equal(angles.detach().numpy(), want)
    assert sampler.plan.label == "mine"
    (default,) = quick(learn_schedule=True).parameters()
    assert default.dtype == torch.float32
    assert default.shape == (3, 60)
    assert list(quick().parameters()) == []


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_gradient_of_the_angles_equals_differences(engine: str) -> None:
    sampler, ising = learned(engine=engine), masked("heads")
    v = torch.randn(ising.fields.shape, dtype=F64)
    gradient = sampler.adjoint(ising, v, seed=0)
    (angles,), (found,) = sampler.parameters(), gradient.parameters
    start = angles.detach().clone()
    for kind, step in ((0, 0), (0, 3), (1, 1), (1, 2), (2, 0), (2, 3)):

        def at(e: float, kind: int = kind, step: int = step) -> Tensor:
            with torch.no_grad():
                angles.copy_(start)
                angles[kind, step] += e
            return loss(sampler, ising, v)

        assert float(found[kind, step]) == pytest.approx(slope(at), rel=1e-7, abs=1e-9)
    with torch.no_grad():
        angles.copy_(start)


def test_moments_samples_and_predictions_follow_the_angles() -> None:
    sampler, ising = learned(), make_problem((3,), 4, seed=1)
    before, betas = sampler.moments(ising), sampler.predicted_betas
    assert betas == plan_betas(PLAN)
    with torch.no_grad():
        angles_of(sampler)[2] *= 0.5
    halved = TrotterPlan(PLAN.field_angles, PLAN.coupling_angles, PLAN.mixer_angles / 2)
    fixed = DQASampler(schedule=halved)
    after = sampler.moments(ising)
    assert (after.probability - fixed.moments(ising).probability).abs().max() < 1e-12
    assert (after.probability - before.probability).abs().max() > 1e-3
    assert tuple(sampler.predicted_betas) == pytest.approx(tuple(plan_betas(halved)))
    assert after.info["beta_h"] == pytest.approx(plan_betas(halved).beta_h)
    assert torch.equal(sampler.sample(ising, 9, seed=1).spins, fixed.sample(ising, 9, seed=1).spins)
    assert (sampler.state_probabilities(ising) - fixed.state_probabilities(ising)).abs().max() < 1e-12


def test_a_calibrated_anneal_stays_divided_by_the_betas_it_began_with() -> None:
    """Else the angles would move h and J as well."""
    sampler, ising = learned(calibration="predicted"), make_problem((3,), 4, seed=1)
    betas = sampler.betas
    with torch.no_grad():
        angles_of(sampler)[0] *= 2
    info = sampler.moments(ising).info
    assert sampler.betas == betas == plan_betas(PLAN)
    assert info["programmed_with"] == tuple(betas)
    assert info["effective_beta"][0] == pytest.approx(2.0)


def test_copies_have_parameters_of_their_own() -> None:
    sampler = learned()
    copies: Any = [sampler.with_own_parameters() for _ in range(2)]
    with torch.no_grad():
        angles_of(copies[0])[0, 0] = 7.0
    assert copies[0].plan.field_angles[0] == 7.0
    assert copies[1].plan.field_angles[0] == sampler.plan.field_angles[0] == PLAN.field_angles[0]
    fixed = quick()
    assert fixed.with_own_parameters() is fixed
