"""The conformance suite passes what is right and refuses every mutant, for the reason it should."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from mutants import mutant, mutants
from scipy import stats
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers import Capabilities, Moments, Sampler, Samples
from diabat.samplers.capabilities import Law
from diabat.testing import (
    CHECKS,
    ConformanceError,
    ReferenceSampler,
    check_names,
    check_sampler,
    run_check,
    state_table,
)
from diabat.testing.problems import make_problem
from diabat.testing.statistics import exact_mean_variance

# alpha = 1e-6 per check, N = 4096 reads (the defaults): what each mistake is caught by, run alone.
CAUGHT_BY = {
    "aliased_buffer": "no_live_state", "beta_times_1.05": "state_distribution",
    "bits_for_spins": "shapes_and_dtypes", "cached_result": "no_live_state", "constant": "column_order",
    "double_counted_couplings": "state_distribution", "first_couplings_for_all": "marginals_and_pairs",
    "float_spins": "shapes_and_dtypes", "half_fields": "state_distribution", "identical_reads": "independent_reads",
    "ignored_couplings": "column_order", "ignored_seed": "seeds", "ignored_three_body": "three_body_law",
    "ignored_visibility": "invisible_spins", "mixed_temperatures": "state_distribution",
    "negated_couplings": "signs", "negated_fields": "signs", "one_read_short": "number_of_reads",
    "permuted_columns": "column_order", "sorted_reads": "independent_reads", "sticky_reads": "independent_reads",
    "swapped_problems": "marginals_and_pairs", "unseeded": "seeds", "via_magnetization": "small_probabilities",
}  # fmt: skip
# What must also show in analytic moments, where no sample is looked at.
CAUGHT_IN_MOMENTS = {
    "beta_times_1.05", "constant", "double_counted_couplings", "first_couplings_for_all", "half_fields",
    "ignored_couplings", "ignored_visibility", "negated_couplings", "negated_fields", "permuted_columns",
    "swapped_problems",
}  # fmt: skip
ANALYTIC = mutants(ReferenceSampler(analytic=True))


@pytest.mark.parametrize("analytic", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_reference_passes(analytic: bool, seed: int) -> None:
    names = check_sampler(ReferenceSampler(analytic=analytic), seed=seed)
    assert ("small_probabilities" in names) is analytic
    assert "field_response" not in names


@pytest.mark.parametrize("law", ["diabatic", "mean-field"])
def test_boltzmann_passes_the_looser_suite(law: Law) -> None:
    names = check_sampler(ReferenceSampler(), law=law)
    assert "field_response" in names
    assert "state_distribution" not in names


def test_every_mutant_is_listed() -> None:
    assert set(ANALYTIC) == set(CAUGHT_BY)
    assert set(mutants(ReferenceSampler())) == set(CAUGHT_BY) - {"via_magnetization"}


@pytest.mark.parametrize("name", sorted(CAUGHT_BY))
def test_mutant_fails_its_check(name: str) -> None:
    with pytest.raises(ConformanceError, match=r"expected .*\."):
        run_check(CAUGHT_BY[name], ANALYTIC[name])


@pytest.mark.parametrize("name", sorted(set(CAUGHT_BY) - {"via_magnetization"}))
def test_sampling_mutant_fails_the_suite(name: str) -> None:
    with pytest.raises(ConformanceError, match=f"^({name}|weighted) fails .*expected"):
        check_sampler(mutants(ReferenceSampler())[name])


@pytest.mark.parametrize("name", sorted(CAUGHT_IN_MOMENTS))
def test_mutant_fails_by_its_moments(name: str) -> None:
    with pytest.raises(ConformanceError, match="expected"):
        run_check("moments_law", ANALYTIC[name])


class _Careless(Sampler):
    """Answers everything, whatever it declares."""

    name = "careless"

    def __init__(self, **declared: object) -> None:
        self.declared = declared

    @property
    def capabilities(self) -> Capabilities:
        base = ReferenceSampler().capabilities
        return Capabilities(**({**base.__dict__, **self.declared}))

    def _require(self, ising: object) -> None:
        pass

    _sample = ReferenceSampler._sample

    def _moments(self, ising: Ising, correlations: bool, seed: int, log_partition: bool = False) -> Moments:
        return super()._moments(ising, correlations, seed)


@pytest.mark.parametrize(("declared", "name"), [
    ({"three_body": False}, "three_body_support"),
    ({"max_spins": 6}, "too_many_spins"),
    ({"exact": True, "law": "diabatic"}, "declared_capabilities"),
    ({"samples": False}, "declared_capabilities"),
    ({"gradients": ("adjoint",)}, "declared_capabilities"),
    ({"log_partition": True}, "shapes_and_dtypes"),
])  # fmt: skip
def test_support_matrix_is_walked(declared: dict[str, object], name: str) -> None:
    sampler = _Careless(**declared)
    assert name in check_names(sampler)
    with pytest.raises(ConformanceError, match="expected"):
        run_check(name, sampler)


def test_a_short_error_message_fails_the_suite() -> None:
    class Curt(ReferenceSampler):
        name = "curt"

        @property
        def capabilities(self) -> Capabilities:
            return Capabilities(**{**super().capabilities.__dict__, "three_body": False})

        def _require(self, ising: object) -> None:
            from diabat.samplers import UnsupportedError

            if getattr(ising, "three_body", None) is not None:
                raise UnsupportedError("no K")

    with pytest.raises(ConformanceError, match="full sentence, got 'no K'"):
        run_check("three_body_support", Curt())


def test_swallowed_three_body_is_caught() -> None:
    class Quadratic(ReferenceSampler):
        @property
        def capabilities(self) -> Capabilities:
            return Capabilities(**{**super().capabilities.__dict__, "three_body": False})

    found = mutants(Quadratic())
    assert "ignored_three_body" not in found
    with pytest.raises(ConformanceError, match="mean of this part of the exponent"):
        run_check("three_body_law", found["swallowed_three_body"])


def test_unknown_check_and_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"name: expected one of .*, got 'shape'"):
        run_check("shape", ReferenceSampler())
    with pytest.raises(ValueError, match="alpha: expected"):
        check_sampler(ReferenceSampler(), alpha=0.0)
    with pytest.raises(ValueError, match="num_reads: expected an integer >= 256, got 10"):
        check_sampler(ReferenceSampler(), num_reads=10)


def test_every_check_has_a_summary() -> None:
    assert all((check.run.__doc__ or "").splitlines()[0].endswith(".") for check in CHECKS.values())


def test_false_alarms_are_rare() -> None:
    # alpha = 0.01 per check, 11 statistical checks, 12 seeds: 1.3 refusals expected; 8 or more has p < 1e-4.
    names = [
        n
        for n in check_names(ReferenceSampler())
        if n.startswith(("state", "marg", "caus", "indep", "column"))
    ]
    refusals = 0
    for seed in range(100, 112):
        for name in names:
            try:
                run_check(name, ReferenceSampler(), alpha=0.01, num_reads=2048, seed=seed)
            except ConformanceError:
                refusals += 1
    assert refusals < 8


def test_mutant_without_change_passes() -> None:
    check_sampler(mutant(ReferenceSampler(), "unchanged"))


def test_power_against_a_beta_off_by_5_percent() -> None:
    # The mean exponent moves by 0.05 · variance: in errors of N = 4096 reads of 16 problems, less the
    # threshold at alpha = 1e-6 over 4 tests, more than 4.8 remain: power above 1 - 1e-6.
    problem = make_problem((16,), 5, seed=0)
    states = state_table(5)[:, None].expand(-1, 16, 5)
    exponent = -problem.energy(states).T
    variance = exact_mean_variance(problem, exponent)[1]
    shift = 0.05 * math.sqrt(4096 * float(variance.sum()))
    assert shift - stats.norm.isf(1e-6 / 8) > 4.8


@pytest.mark.parametrize("law", ["diabatic", "mean-field"])
def test_mixed_couplings_show_in_the_reads_of_an_own_law(law: Law) -> None:
    # Reads are held against those of the problem alone: 120 two-sample tests, N = 4096, alpha = 1e-6.
    mutant = mutants(ReferenceSampler())["first_couplings_for_all"]
    with pytest.raises(ConformanceError, match=r"against the problem alone.*N = 4096"):
        run_check("own_couplings", mutant, law=law)


def test_wrong_couplings_in_the_reads_alone_show_against_the_moments() -> None:
    class Divided(ReferenceSampler):
        """Right moments; reads of the first J for all."""

        def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
            return mutants(ReferenceSampler())["first_couplings_for_all"].sample(ising, num_reads, seed=seed)

    with pytest.raises(ConformanceError, match="samples against moments with J heads"):
        run_check("samples_agree_with_moments", Divided(analytic=True))


def test_an_aliased_buffer_shows_in_moments() -> None:
    class Buffered(ReferenceSampler):
        """Draws from its own memory each time, but gives all moments in one buffer."""

        buffer: Tensor | None = None

        def _moments(
            self, ising: Ising, correlations: bool, seed: int, log_partition: bool = False
        ) -> Moments:
            moments = super()._moments(ising, correlations, seed, log_partition)
            if self.buffer is None:
                self.buffer = moments.correlation
            return replace(moments, correlation=self.buffer.copy_(moments.correlation))

    with pytest.raises(ConformanceError, match="moments: expected a result that owns its memory"):
        run_check("no_live_state", Buffered(analytic=True))
