"""What reaches the engine of ``dqa``: grouping, scales, control noise; and the gradient that comes back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from problems import ALPHA, F64, adjoint, padded_windows
from scipy import stats
from torch import Tensor, nn

from diabat.circuits import Betas, TrotterPlan, plan_betas
from diabat.ising import Ising, pack_couplings
from diabat.samplers.dqa import DQASampler
from diabat.samplers.programming import ControlNoise, to_hardware_units
from diabat.samplers.state import own_copy
from diabat.testing.problems import causal_problem, make_problem

from .fakes import Array, RecordingEngine, quick

BETAS = Betas(4.0, 5.0)
QUIET = ControlNoise()


@pytest.mark.parametrize("lead", ["none", "shared", "heads", "per_problem"])
def test_every_visible_spin_is_programmed_once_in_its_place(lead: Any) -> None:
    base = ising = padded_windows(lead)
    seen = ising.visible_mask.reshape(-1, 4)
    h, times = base.fields.reshape(-1, 4), torch.zeros(24, 4)
    J = torch.zeros(4, 4) if base.couplings is None else base.couplings
    J = J.expand(3, 2, 4, 4, 4).reshape(-1, 4, 4)
    programmed = to_hardware_units(ising, BETAS, QUIET, 0)
    for batch, group in zip(programmed.batches, programmed.flat.unpadded, strict=True):
        assert batch.fields.shape == group.members.shape
        for q, (row, spins) in enumerate(zip(group.rows, group.members, strict=True)):
            times[row, spins] += 1
            own = batch.couplings if batch.shared else batch.couplings[q]
            assert np.abs(batch.fields[q] - h[row, spins].numpy() / 4).max() < 1e-15
            assert np.abs(own - J[row][spins][:, spins].numpy() / 5).max() < 1e-15
    assert torch.equal(times, seen.float())


def test_couplings_are_shared_where_they_are_stacked_where_they_differ_and_float64_always() -> None:
    shared = to_hardware_units(make_problem((3, 2, 5), 4, lead="heads", seed=2), BETAS, QUIET, 0)
    assert [(batch.num_problems, batch.shared) for batch in shared.batches] == [(15, True)] * 2
    (own,) = to_hardware_units(make_problem((6,), 4, lead="per_problem", seed=2), BETAS, QUIET, 0).batches
    assert (own.num_problems, own.shared) == (6, False)
    ising = make_problem((3,), 4, seed=2, dtype=torch.float32)
    (batch,) = to_hardware_units(ising, BETAS, QUIET, 0).batches
    assert batch.fields.dtype == batch.couplings.dtype == np.float64
    assert (batch.fields == ising.fields.double().numpy() / 4).all()


def test_a_single_problem_has_no_phase_table_of_its_own_per_lane() -> None:
    """Its couplings are shared by the batch of one; the results are those of the same problem among others."""
    ising = make_problem((), 4, lead="per_problem", seed=2)
    for noise in (QUIET, ControlNoise(0.1, 0.1)):
        (batch,) = to_hardware_units(ising, BETAS, noise, 0).batches
        assert (batch.fields.shape, batch.couplings.shape) == ((1, 4), (4, 4))
    twice = Ising(ising.fields.expand(2, 4), ising.couplings.reshape(1, 4, 4).repeat(2, 1, 1))
    (own,) = to_hardware_units(twice, BETAS, QUIET, 0).batches
    assert not own.shared
    sampler, v = quick(engine=RecordingEngine()), torch.tensor([0.3, -1.0, 0.5, 2.0], dtype=torch.float64)
    one, two = (sampler.moments(problem, correlations=True) for problem in (ising, twice))
    assert (one.probability - two.probability[0]).abs().max() < 1e-12
    assert (one.correlation - two.correlation[0]).abs().max() < 1e-12
    gradient, among = adjoint(sampler, ising, v, seed=0), adjoint(sampler, twice, v.expand(2, 4), seed=0)
    assert gradient.couplings.shape == ising.couplings.shape
    assert (gradient.fields - among.fields[0]).abs().max() < 1e-12
    assert (gradient.couplings - among.couplings[0]).abs().max() < 1e-12


def errors(ising: Ising, noise: ControlNoise, seed: int) -> tuple[Array, Array]:
    """Errors of all programmed fields, and of all pairs of couplings, of problems of one size."""
    (clean,), (noisy,) = (to_hardware_units(ising, BETAS, chosen, seed).batches for chosen in (QUIET, noise))
    later, earlier = np.tril_indices(ising.num_spins, -1)
    J = noisy.couplings - clean.couplings
    assert (J.swapaxes(-1, -2) == J).all()
    assert not np.diagonal(J, axis1=-2, axis2=-1).any()
    return noisy.fields - clean.fields, J[..., later, earlier]


def test_the_noise_is_normal_with_the_deviations_stated() -> None:
    """Chi-square of the variance and Kolmogorov-Smirnov of the law, N = 3000 and 7500, alpha = 1e-6.

    A deviation 15 % off is refused all but surely.
    """
    ising = make_problem((500,), 6, seed=1)
    h, J = errors(ising, ControlNoise(0.02, 0.01), seed=3)
    assert (h.shape, J.shape) == ((500, 6), (500, 15))
    for values, sigma in ((h.ravel(), 0.02), (J.ravel(), 0.01)):
        for assumed, right in ((1.0, True), (1.15, False), (0.87, False)):
            statistic = float((values**2).sum() / (assumed * sigma) ** 2)
            tail = min(stats.chi2.sf(statistic, len(values)), stats.chi2.cdf(statistic, len(values)))
            assert (tail > ALPHA) == right
        assert stats.kstest(values, "norm", args=(0, sigma)).pvalue > ALPHA
    # Anew for every problem, spin and pair; fields and couplings apart.
    assert len(np.unique(h)) == h.size
    assert len(np.unique(J)) == J.size
    assert abs(np.corrcoef(h[:, 0], J[:, 0])[0, 1]) < 5 / 500**0.5


def test_each_kind_of_noise_leaves_the_other_alone_and_needs_no_couplings() -> None:
    ising = make_problem((20,), 4, seed=1)
    h, J = errors(ising, ControlNoise(fields=0.1), seed=3)
    assert h.all()
    assert J.shape == (6,)  # still shared by the problems
    assert not J.any()
    h, J = errors(ising, ControlNoise(couplings=0.1), seed=3)
    assert not h.any()
    assert J.shape == (20, 6)
    assert J.all()
    _, J = errors(make_problem((20,), 4, lead="none", seed=1), ControlNoise(couplings=0.1), seed=3)
    assert J.shape == (20, 6)
    assert J.all()


def test_same_seed_same_noise() -> None:
    ising, noise = make_problem((5, 2), 4, lead="heads", seed=1), ControlNoise(0.1, 0.1)
    first, again, other = (to_hardware_units(ising, BETAS, noise, seed).batches for seed in (3, 3, 4))
    for a, b, c in zip(first, again, other, strict=True):
        assert (a.fields == b.fields).all()
        assert (a.couplings == b.couplings).all()
        assert (a.fields != c.fields).all()
    # No two parts of a batch share their errors.
    clean = to_hardware_units(ising, BETAS, QUIET, 3).batches
    one, two = (first[k].fields - clean[k].fields for k in (0, 1))
    assert (one != two).all()


def test_moments_samples_and_gradients_with_one_seed_see_the_same_noise() -> None:
    engine, ising = RecordingEngine(), make_problem((4,), 3, seed=1)
    sampler = quick(engine=engine, noise=(0.02, 0.01))
    moments = sampler.moments(ising, seed=5)
    seen = engine.taken()
    assert (moments.info["seed"], moments.info["noise"]) == (5, (0.02, 0.01))
    sampler.sample(ising, 3, seed=5)
    adjoint(sampler, ising, torch.ones(4, 3), seed=5)
    for batch in engine.taken():
        assert (batch.fields == seen[0].fields).all()
        assert (batch.couplings == seen[0].couplings).all()
    assert torch.equal(sampler.moments(ising, seed=5).probability, moments.probability)
    # Without a seed one is drawn and reported.
    drawn = sampler.moments(ising)
    assert not torch.equal(drawn.probability, moments.probability)
    assert torch.equal(sampler.moments(ising, seed=drawn.info["seed"]).probability, drawn.probability)


def test_the_reads_do_not_use_the_random_numbers_of_the_noise() -> None:
    """The first uniform numbers of the reads, mapped to normal ones, are not the errors of the fields."""
    ising = make_problem((4,), 3, seed=1)
    h, _ = errors(ising, ControlNoise(fields=1.0), seed=5)
    reads = np.random.default_rng(5).standard_normal(h.shape)
    assert np.abs(h - reads).max() > 0.1


def test_noise_is_in_hardware_units_whatever_the_betas() -> None:
    engine, ising = RecordingEngine(), make_problem((4,), 3, seed=1)
    found = []
    for betas in ((1.0, 1.0), (10.0, 5.0)):
        for sigma in (0.0, 0.02):
            quick(engine=engine, betas=betas, noise=sigma).moments(ising, seed=5)
        clean, noisy = engine.taken()
        found.append((noisy.fields - clean.fields, noisy.couplings - clean.couplings))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-14)
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-14)


def test_zero_noise_changes_nothing() -> None:
    ising = causal_problem(4, seed=2)
    silent = quick(engine=RecordingEngine(), noise=(0.0, 0.0))
    plain = quick(engine=RecordingEngine())
    moments = silent.moments(ising, seed=7)
    assert torch.equal(moments.probability, plain.moments(ising).probability)
    assert torch.equal(silent.sample(ising, 9, seed=7).spins, plain.sample(ising, 9, seed=7).spins)
    assert "noise" not in moments.info


B, C, A = np.random.default_rng(3).normal(size=(3, 4))
PLAN = TrotterPlan(B, C, A, "mine")


def slope(function: Any) -> float:
    """Central differences of fourth order; the step suits derivatives of order 1."""
    e = 1e-3
    return float((8 * (function(e) - function(-e)) - (function(2 * e) - function(-2 * e))) / (12 * e))


def loss(sampler: DQASampler, ising: Ising, v: Tensor, seed: int = 0) -> Tensor:
    return (v * sampler.moments(ising, seed=seed).probability).sum()


@pytest.mark.parametrize("options", [{}, {"betas": (7.0, 13.0)}, {"calibration": "none"},
                                     {"noise": 0.05}],
                         ids=["predicted", "given", "none", "noise"])  # fmt: skip
@pytest.mark.parametrize("lead", ["none", "shared", "heads", "per_problem"])
def test_adjoint_equals_differences_of_the_moments(lead: Any, options: dict[str, Any]) -> None:
    """Inverse temperatures and noise are held constant; every place of J holds half of its pair's derivative."""
    sampler, ising = quick(**options), padded_windows(lead)
    v = torch.randn(ising.fields.shape, dtype=F64)
    gradient = adjoint(sampler, ising, v, seed=4)
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


def test_a_solution_can_be_attached_to_autograd_and_has_no_log_odds() -> None:
    sampler, ising = quick(), padded_windows("heads")
    h, J, v = (
        ising.fields.clone().requires_grad_(),
        ising.couplings.clone().requires_grad_(),
        torch.randn(3, 2, 4, 4),
    )
    solution = sampler.solution(ising)
    result, log_z = solution.attached(Ising(h, J, ising.visible))
    assert torch.equal(result, sampler.moments(ising).probability)
    assert log_z is None
    want = adjoint(sampler, ising, v)
    found = torch.autograd.grad((v * result).sum(), (h, J))
    assert torch.equal(found[0], want.fields)
    assert torch.equal(found[1], want.couplings)
    assert sampler.solution(ising, odds=True) is None
    assert quick(engine="aer").solution(ising) is None


def test_engines_agree_on_the_adjoint_which_keeps_the_dtype() -> None:
    ising = padded_windows("heads")
    v = torch.randn(ising.fields.shape, dtype=F64)
    native, other = (adjoint(quick(engine=engine), ising, v, seed=0) for engine in ("native", "torch"))
    single = adjoint(quick(precision="single"), ising, v, seed=0)
    assert (native.fields - other.fields).abs().max() < 1e-10
    assert (single.fields - native.fields).abs().max() < 1e-4
    assert (native.couplings - other.couplings).abs().max() < 1e-10
    narrow = make_problem((2, 3), 4, lead="heads", seed=1, dtype=torch.float32)
    gradient = adjoint(quick(), narrow, torch.ones(2, 3, 4), seed=0)
    assert (gradient.fields.dtype, gradient.couplings.dtype) == (torch.float32, torch.float32)


def learned(**options: Any) -> DQASampler:
    """With angles in float64; the default dtype is put back."""
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
    sampler, ising = learned(engine=engine), padded_windows("heads")
    v = torch.randn(ising.fields.shape, dtype=F64)
    gradient = adjoint(sampler, ising, v, seed=0)
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
    copies: Any = [own_copy(sampler) for _ in range(2)]
    with torch.no_grad():
        angles_of(copies[0])[0, 0] = 7.0
    assert copies[0].plan.field_angles[0] == 7.0
    assert copies[1].plan.field_angles[0] == sampler.plan.field_angles[0] == PLAN.field_angles[0]
    fixed = quick()
    assert own_copy(fixed) is fixed


def test_asymmetric_couplings_that_nobody_checked_are_refused() -> None:
    ising = Ising(torch.zeros(2, dtype=F64), torch.tensor([[0.0, 0.25], [0.0, 0.0]], dtype=F64), check=False)
    with pytest.raises(ValueError, match="symmetric"):
        to_hardware_units(ising, Betas(1.0, 1.0), ControlNoise(), 0)
