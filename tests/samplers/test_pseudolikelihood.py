"""The fit of inverse temperatures on samplers whose scales are known, and what its intervals cover."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import dimod
import pytest
import torch
from dwave.system.temperatures import maximum_pseudolikelihood
from fakes import scaled
from problems import ALPHA
from scipy import stats
from torch import Tensor

from diabat.ising import Ising, pack_couplings
from diabat.lab.studies.ensembles import sk
from diabat.samplers import conditionals, pseudolikelihood
from diabat.samplers.pseudolikelihood import BetaFit, Term, calibration_error, fit_betas
from diabat.testing import ReferenceSampler, brute_force_states, state_table
from diabat.testing.problems import Lead, causal_problem, make_problem, with_visible


def fit_states(ising: Ising, probabilities: Tensor, **options: Any) -> BetaFit:
    """The fit to the probabilities [*batch, 2^n] of all states."""
    weights = probabilities.movedim(-1, 0)
    return fit_betas(ising, state_table(ising.num_spins), weights, sampled=False, **options)


@pytest.mark.parametrize("lead", ["shared", "heads", "per_problem"])
@pytest.mark.parametrize("three_body", [0.0, 0.3])
def test_scales_are_recovered_from_state_probabilities(lead: Lead, three_body: float) -> None:
    problem = make_problem((3, 2), 5, lead=lead, seed=1, three_body=three_body)
    fit = fit_states(problem, brute_force_states(scaled(problem, 0.8, 1.3)))
    assert (fit.field, fit.coupling) == pytest.approx((0.8, 1.3), abs=1e-8)
    assert fit.three_body == (pytest.approx(1.3, abs=1e-8) if three_body else None)
    assert fit.field_error == fit.coupling_error == 0
    assert fit.interval("coupling") == (fit.coupling, fit.coupling)
    assert fit.groups is None


def test_only_visible_spins_are_seen() -> None:
    problem = causal_problem(5, seed=2)
    fit = fit_states(problem, brute_force_states(scaled(problem, 0.8, 1.3)))
    assert (fit.field, fit.coupling) == pytest.approx((0.8, 1.3), abs=1e-8)
    # Three-body terms and one J for each problem, through a random mask.
    mask = torch.rand(4, 5, generator=torch.Generator().manual_seed(3)) > 0.3
    problem = with_visible(make_problem((4,), 5, lead="per_problem", seed=3, three_body=0.4), mask)
    fit = fit_states(problem, brute_force_states(scaled(problem, 0.8, 1.3)))
    assert fit.scales == pytest.approx((0.8, 1.3, 1.3), abs=1e-8)


@pytest.mark.parametrize("beta", [(300.0, 280.0), (-0.5, 0.01)])
def test_scales_far_from_one(beta: tuple[float, float]) -> None:
    """An anneal without calibration comes out at beta of order 100 for fields of order 1/100."""
    size = 0.6 / max(map(abs, beta))
    problem = make_problem((4,), 5, seed=4, fields=size, couplings=size)
    fit = fit_states(problem, brute_force_states(scaled(problem, *beta)))
    assert fit.scales[:2] == pytest.approx(beta, rel=1e-8)


def test_reads_that_a_full_newton_step_overshoots() -> None:
    """Coin flips under strong fields and couplings; from beta = 1 the log-likelihood is nearly straight."""
    problem = make_problem((32,), 8, seed=1)
    spins = torch.randint(0, 2, (1000, 32, 8), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    fit = fit_betas(problem, 2 * spins - 1, torch.full((1000, 32), 1e-3))
    assert fit.exists
    assert abs(fit.scales[0]) < 5 * (fit.field_error or 0)


def test_newton_steps_that_go_too_far_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """-log cosh 3(b - 2) is nearly straight at 0, where Newton's step is 13,000 long."""

    def straight(data: Any, b: Tensor) -> tuple[float, Tensor, Tensor]:
        x = 3 * (b - 2)
        return -float(x.abs() + torch.log1p(torch.exp(-2 * x.abs()))), -3 * x.tanh(), 9 / x.cosh()[None] ** 2

    class Data(list[Any]):
        kinds = (0,)

    monkeypatch.setattr(pseudolikelihood, "derivatives", straight)
    chunk = conditionals.Chunk(torch.zeros(1, 1), torch.ones(1), torch.ones(1, 1))
    data: Any = Data([chunk])
    found = pseudolikelihood.maximise(data)
    assert float(found[0]) == pytest.approx(2, abs=1e-9)


def test_chunks_and_kept_tables_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = with_visible(make_problem((3, 4), 4, lead="heads", seed=5), torch.rand(3, 4, 4) > 0.2)
    samples = ReferenceSampler().sample(problem, 50, seed=0)
    groups = torch.arange(4)
    arguments = (problem, samples.spins)
    whole, clustered = fit_betas(*arguments), fit_betas(*arguments, groups=groups)
    monkeypatch.setattr(conditionals, "_CHUNK", 500)  # two problems at a time
    monkeypatch.setattr(conditionals, "_KEEP", 0)
    parts, apart = fit_betas(*arguments), fit_betas(*arguments, groups=groups)
    for one, other in ((whole, parts), (clustered, apart)):
        assert (one.field, one.field_error) == pytest.approx((other.field, other.field_error), rel=1e-9)
        assert (one.coupling, one.coupling_error) == pytest.approx(
            (other.coupling, other.coupling_error), rel=1e-9
        )


def test_the_fit_is_the_maximum_of_the_mean_log_conditional() -> None:
    problem = make_problem((2,), 4, seed=6, three_body=0.3)
    p = brute_force_states(problem) + 0.05 * torch.rand(2, 16, generator=torch.Generator().manual_seed(0))
    p = p / p.sum(-1, keepdim=True)  # of no Boltzmann law

    def value(h: float, J: float, K: float) -> float:
        q = brute_force_states(Ising(h * problem.fields, J * problem.couplings, None, K * problem.three_body))
        others = [q[:, torch.arange(16) ^ (1 << j)] for j in range(4)]
        return sum(float((p * (q / (q + other)).log()).sum()) / 8 for other in others)

    fit = fit_states(problem, p)
    assert fit.log_pseudolikelihood == pytest.approx(value(*fit.scales), abs=1e-12)
    for j, step in ((0, 0.01), (1, -0.01), (2, 0.01)):
        h, J, K = (b + step * (i == j) for i, b in enumerate(fit.scales))
        assert value(h, J, K) < value(*fit.scales)


@pytest.mark.parametrize("reads", [40, 2000])
def test_the_fit_is_that_of_ocean(reads: int) -> None:
    problem = make_problem((), 6, seed=11)
    spins = ReferenceSampler().sample(problem, reads, seed=2).spins
    pairs = {(i, j): -float(problem.couplings[i, j]) for i, j in combinations(range(6), 2)}
    fields = dict(enumerate((-problem.fields).tolist()))
    models = [dimod.BQM(fields, {}, "SPIN"), dimod.BQM(dict.fromkeys(range(6), 0.0), pairs, "SPIN")]
    found, _ = maximum_pseudolikelihood(bqms=models, sampleset=(spins.numpy(), list(range(6))))
    fit = fit_betas(problem, spins)
    assert (fit.field, fit.coupling) == pytest.approx([-beta for beta in found], rel=1e-6)


def _coverage(fits: list[BetaFit], term: Term, truth: float) -> int:
    ends = [fit.interval(term) for fit in fits]
    return sum(low <= truth <= high for low, high in (e for e in ends if e is not None))


def test_intervals_of_reads_cover_as_often_as_they_say() -> None:
    # 200 replicates of N = 400 reads of 3 problems, level 95 %: coverage is binomial, bounds at alpha 1e-6 below
    # (171 of 200).  Power: errors half as large cover 67 %, 134 of 200.  Too large errors: the mean square of the
    # 200 z-scores is chi-square, alpha 1e-6 on each side; doubled errors give 0.25, 17 standard deviations away.
    problem = make_problem((3,), 4, seed=3)
    draw = ReferenceSampler().sample(scaled(problem, 0.8, 1.3), 400 * 200, seed=0)
    fits = [
        fit_betas(problem, draw.spins[400 * i : 400 * (i + 1)], torch.full((400, 3), 1 / 400))
        for i in range(200)
    ]
    terms: tuple[tuple[Term, float], ...] = (("field", 0.8), ("coupling", 1.3))
    for term, truth in terms:
        assert _coverage(fits, term, truth) >= stats.binom.ppf(ALPHA, 200, 0.95)
        z = [(getattr(fit, term) - truth) / getattr(fit, f"{term}_error") for fit in fits]
        low, high = stats.chi2.ppf([ALPHA, 1 - ALPHA], 200)
        # Near-normal z: the tails of the limit law are widened by a tenth.
        assert 0.9 * low < sum(value**2 for value in z) < 1.1 * high


def _mixed(seed: int, groups: int) -> tuple[Ising, Tensor]:
    """Problems whose own scales differ from group to group, N(1, 0.2): (ising, state probabilities)."""
    generator = torch.Generator().manual_seed(seed)
    h = 0.5 * torch.randn(groups, 2, 4, generator=generator, dtype=torch.float64)
    J = pack_couplings(0.3 * torch.randn(groups, 1, 6, generator=generator, dtype=torch.float64), 4)
    beta = 1 + 0.2 * torch.randn(groups, 1, 1, generator=generator, dtype=torch.float64)
    return Ising(h, J), brute_force_states(Ising(beta * h, beta[..., None] * J))


def test_intervals_over_groups_cover_the_ensemble() -> None:
    # Exact laws, 10 groups of 2 problems, 200 replicates; truth from 4000 groups.  Coverage 171 of 200 at alpha
    # 1e-6.  Power: errors half as large cover 70 %; errors of the reads, 0 here, cover nothing.
    ising, law = _mixed(0, 4000)
    truth = fit_states(ising, law)
    fits = []
    for seed in range(200):
        ising, law = _mixed(1 + seed, 10)
        fits.append(fit_states(ising, law, groups=torch.arange(10)[:, None]))
    assert fits[0].groups == 10
    assert _coverage(fits, "field", truth.field) >= stats.binom.ppf(ALPHA, 200, 0.95)
    assert _coverage(fits, "coupling", truth.coupling) >= stats.binom.ppf(ALPHA, 200, 0.95)
    widths = [fit.field_error for fit in fits if fit.field_error is not None]
    spread = torch.tensor([fit.field for fit in fits]).std()
    # 200 draws fix a standard deviation to 5 %, and its estimates from 10 groups are low by about 5 %.
    assert sum(widths) / 200 == pytest.approx(float(spread), rel=0.3)


def test_groups_are_labels() -> None:
    ising, law = _mixed(7, 4)
    by_column = fit_states(ising, law, groups=torch.tensor([7, 7, 3, 12])[:, None])
    by_cell = fit_states(ising, law, groups=torch.tensor([[0, 0], [0, 0], [1, 1], [2, 2]]))
    assert by_column == by_cell
    assert by_column.groups == 3
    alone = fit_states(ising, law, groups=torch.tensor(0))
    assert alone.field is not None
    assert alone.field_error is None
    assert alone.interval("field") is None
    with pytest.raises(ValueError, match=r"groups: expected labels that broadcast to \[4, 2\], got \[3\]"):
        fit_states(ising, law, groups=torch.arange(3))


def test_errors_over_two_groups_by_hand() -> None:
    """Means m of a spin in the same field: β = artanh of their mean, with the error of a mean of two."""
    problem, m = Ising(torch.ones(4, 1, dtype=torch.float64)), torch.tensor([0.5, 0.7, 0.1, -0.1]).double()
    fit = fit_states(problem, torch.stack([1 - m, 1 + m], -1) / 2, groups=torch.tensor([3, 3, 8, 8]))
    of_groups, mean = (0.6, 0.0), 0.3
    beta, error = math.atanh(mean), (of_groups[0] - of_groups[1]) / 2 / (1 - mean**2)
    assert (fit.field, fit.field_error) == pytest.approx((beta, error))
    # Student's t with one degree of freedom, the law of Cauchy.
    assert fit.interval("field", 0.5) == pytest.approx((beta - error, beta + error))


def test_a_single_read_of_many_problems_has_an_error() -> None:
    # One read of each of 3000 problems at (0.8, 1.3): 4.9 standard errors, alpha 1e-6.
    problem = make_problem((3000,), 4, seed=8)
    samples = ReferenceSampler().sample(scaled(problem, 0.8, 1.3), 1, seed=0)
    fit = fit_betas(problem, samples.spins)
    assert 0 < (fit.field_error or 0) < 0.05
    assert fit.field == pytest.approx(0.8, abs=4.9 * (fit.field_error or 0))
    assert fit.coupling == pytest.approx(1.3, abs=4.9 * (fit.coupling_error or 0))


def test_reads_that_are_all_the_same_count_as_one() -> None:
    """They fix no β to nine digits: ten copies of a read know what one of them knows."""
    problem = make_problem((12,), 4, lead="per_problem", seed=3)
    spins = torch.where(torch.rand(1, 12, 4, generator=torch.Generator().manual_seed(1)) > 0.5, 1, -1)
    one = fit_betas(problem, spins, torch.ones(1, 12))
    ten = fit_betas(problem, spins.expand(10, -1, -1), torch.full((10, 12), 0.1))
    assert one.field_error > 0.01
    for name in ("field", "field_error", "coupling", "coupling_error"):
        assert getattr(ten, name) == pytest.approx(getattr(one, name), rel=1e-6)


def test_weighted_reads() -> None:
    # Reads at beta 0.7 with weights for beta 1, N = 20,000: 4.9 standard errors, alpha 1e-6.
    problem = make_problem((4,), 5, seed=4)
    drawn = ReferenceSampler().sample(scaled(problem, 0.7, 0.7), 20_000, seed=0)
    weights = torch.softmax(-0.3 * problem.energy(drawn.spins), 0)
    for given, truth in ((None, 0.7), (weights, 1.0)):
        fit = fit_betas(problem, drawn.spins, given)
        assert fit.field == pytest.approx(truth, abs=4.9 * (fit.field_error or 0))
        assert fit.coupling == pytest.approx(truth, abs=4.9 * (fit.coupling_error or 0))


def test_no_fit_without_terms_or_without_optimum() -> None:
    zeros = Ising(torch.zeros(2, 3), torch.zeros(3, 3))
    spins, weights = torch.ones(5, 2, 3, dtype=torch.int8), torch.full((5, 2), 0.2)
    # All reads equal and along the field: the likelihood grows without bound.
    aligned = Ising(torch.ones(2, 3), pack_couplings(torch.ones(3), 3))
    for problem in (zeros, aligned):
        fit = fit_betas(problem, spins, weights)
        assert fit == BetaFit()
        assert not fit.exists
        assert set(fit.scales) == {1.0}
        assert fit.interval("field") is None


def test_scales_of_fields_alone_and_of_strong_ensembles() -> None:
    problem = make_problem((6,), 3, lead="none", seed=9)
    fit = fit_states(problem, brute_force_states(scaled(problem, 0.8, 1.0)))
    assert fit.field == pytest.approx(0.8, abs=1e-8)
    assert fit.coupling is fit.coupling_error is None
    assert fit.interval("coupling") is None
    strong = sk([3.0], instances=3, queries=2)[0].ising
    fit = fit_states(strong, brute_force_states(strong))
    assert (fit.field, fit.coupling) == pytest.approx((1, 1), abs=1e-7)


def test_interval_by_hand() -> None:
    reads, clustered = BetaFit(1.0, 0.1), BetaFit(1.0, 0.1, groups=8)
    for found, half in (
        (reads.interval("field"), 0.1959964),
        (reads.interval("field", level=0.5), 0.0674490),
        (clustered.interval("field"), 0.2364624),  # t with 7 degrees
    ):
        assert found == pytest.approx((1 - half, 1 + half))


def test_pairs_of_terms_are_not_mixed_up() -> None:
    """Each of the three scales moves its own number only."""
    problem = make_problem((5,), 4, seed=10, three_body=0.4)
    assert problem.three_body is not None
    for a, b in combinations(range(3), 2):
        scales = [1.5 if i == a else 0.6 if i == b else 1.0 for i in range(3)]
        law = Ising(
            scales[0] * problem.fields, scales[1] * problem.couplings, None, scales[2] * problem.three_body
        )
        assert fit_states(problem, brute_force_states(law)).scales == pytest.approx(scales, abs=1e-8)


def test_reads_of_ones_own_are_arrays_without_weights() -> None:
    problem = make_problem((), 6, seed=5)
    samples = ReferenceSampler().sample(problem, 500, seed=1)
    equal = torch.full((500,), 1 / 500, dtype=torch.float64)
    assert fit_betas(problem, samples.spins.numpy()) == fit_betas(problem, samples.spins, equal)


def test_calibration_error_sees_a_law_without_a_temperature() -> None:
    """Reads of J -> -J fitted with J's own sign have conditionals that are off by tenths."""
    ising = with_visible(
        make_problem((8,), 4, seed=3, three_body=0.3), torch.tensor([True, True, True, False])
    )
    right = ReferenceSampler().sample(ising, 2000, seed=1)
    turned = Ising(ising.fields, -ising.couplings, ising.visible, ising.three_body)
    wrong = ReferenceSampler().sample(turned, 2000, seed=1)
    errors = [calibration_error(ising, s.spins, (1.0, 1.0, 1.0)) for s in (right, wrong)]
    assert errors[0] < 0.03 < 0.1 < errors[1]
    s = right.spins.double() * ising.visible_mask
    local = (
        ising.fields
        + (s @ ising.couplings.double())
        + torch.einsum("jkl,rbk,rbl->rbj", ising.three_body, s, s) / 2
    )
    p, up = torch.sigmoid(2 * local)[..., :3].flatten(), (s[..., :3] > 0).flatten().double()
    order = p.argsort(stable=True)
    gaps = [float((up - p)[part].mean().abs()) for part in order.chunk(10)]
    assert errors[0] == pytest.approx(max(gaps), abs=1e-3)


def test_calibration_error_does_not_depend_on_the_order_of_reads() -> None:
    """The rows of a histogram, repeated: all reads of a state follow each other."""
    problem = make_problem((), 4, seed=3)
    spins = ReferenceSampler().sample(problem, 4000, seed=1).spins
    ordered = spins[(spins @ torch.tensor([8, 4, 2, 1], dtype=torch.int8)).argsort()]
    assert max(calibration_error(problem, reads, (1.0, 1.0, 1.0)) for reads in (spins, ordered)) < 0.04
