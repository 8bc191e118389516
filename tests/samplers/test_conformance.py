"""The public conformance suite over every built-in backend, and its mutants over the exact one.

alpha = 1e-6 per check; N = 4096 reads of 16 problems, 2048 for dqa, whose law is
its own and needs no chi-square.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fakes import scaled
from mutants import mutant, mutants

from diabat.lab.config.trust import LOCAL_BACKENDS
from diabat.samplers import Sampler, sampler
from diabat.samplers.registry import _BUILT_IN
from diabat.testing import ConformanceError, check_names, check_sampler, run_check

OPTIONS: dict[str, dict[str, Any]] = {
    "dqa": {"annealing_time_ns": 2.0, "steps": 60},
    "refine": {"sampler": "exact"},
    "tempering": {"num_replicas": 3, "burn_in": 32},
    "dimod": {
        "sampler": "dwave.samplers:SimulatedAnnealingSampler",
        "parameters": {"beta_schedule_type": "custom", "beta_schedule": [1.0] * 25},
        "beta": 1.0,
        "law": "boltzmann",
    },
    "distributed": {"sampler": "exact", "workers": 0, "chunk": 3},
}


@cache
def backend(name: str) -> Sampler:
    """A fifth of the usual annealing time: the second-order response is that of longer anneals."""
    return sampler(name, **OPTIONS.get(name, {}))


READS = dict.fromkeys(_BUILT_IN, 4096) | {"dqa": 2048}


@pytest.mark.parametrize(("name", "check"), [(b, c) for b in READS for c in check_names(backend(b))])
def test_backend_conforms(name: str, check: str) -> None:
    run_check(check, backend(name), num_reads=READS[name])


def test_what_is_built_in_is_installed_and_known_to_run_folders() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["entry-points"]["diabat.samplers"] == _BUILT_IN
    # dimod imports what it is told to, and distributed runs whatever base it is given
    assert set(_BUILT_IN) - {"dimod", "distributed"} == set(LOCAL_BACKENDS)


@pytest.mark.parametrize("name", mutants(sampler("exact")))
def test_every_mutant_of_the_exact_backend_is_refused(name: str) -> None:
    with pytest.raises(ConformanceError):
        check_sampler(mutants(sampler("exact"))[name])


# What an approximate law without samples promises; a beta 5 % off or (m + 1)/2 would need enumeration.
MEAN_FIELD_MUTANTS = {
    "constant": "signs",
    "double_counted_couplings": "coupling_response",
    "first_couplings_for_all": "own_couplings",
    "half_fields": "field_response",
    "ignored_couplings": "coupling_response",
    "ignored_visibility": "invisible_spins",
    "negated_couplings": "signs",
    "negated_fields": "signs",
    "permuted_columns": "signs",
    "swapped_problems": "own_couplings",
}


def test_uncalibrated_scales_of_an_own_law_are_seen() -> None:
    # beta_h and beta_J mixed up shift one scale by about 9 %; a quarter is the least that the bounds exclude.
    weak = mutant(backend("mean_field"), "weak", problem=lambda ising: scaled(ising, 0.75, 0.75))
    with pytest.raises(ConformanceError, match=r"slope 0\.85 to 1\.15"):
        run_check("field_response", weak)


# The check by which each is seen, run alone: the whole suite over a simulated anneal takes seconds.
DQA_MUTANTS = {
    "aliased_buffer": "no_live_state",
    "first_couplings_for_all": "own_couplings",
    "half_fields": "field_response",
    "negated_couplings": "signs",
    "double_counted_couplings": "pair_response",
    "permuted_columns": "signs",
    "ignored_seed": "seeds",
    "one_read_short": "number_of_reads",
    "sticky_reads": "independent_reads",
    "ignored_visibility": "invisible_spins",
}
# The whole suite passes over tempering, and each mistake is seen by the check whose subject it is.
TEMPERING_MUTANTS = {
    "aliased_buffer": "no_live_state",
    "cached_result": "no_live_state",
    "beta_times_1.05": "state_distribution",
    "bits_for_spins": "number_of_reads",
    "constant": "state_distribution",
    "double_counted_couplings": "state_distribution",
    "first_couplings_for_all": "marginals_and_pairs",
    "float_spins": "number_of_reads",
    "half_fields": "state_distribution",
    "identical_reads": "independent_reads",
    "ignored_couplings": "state_distribution",
    "ignored_seed": "seeds",
    "ignored_three_body": "three_body_law",
    "ignored_visibility": "causal_visibility",
    "mixed_temperatures": "state_distribution",
    "negated_couplings": "signs",
    "negated_fields": "signs",
    "one_read_short": "number_of_reads",
    "permuted_columns": "column_order",
    "sorted_reads": "independent_reads",
    "sticky_reads": "independent_reads",
    "swapped_problems": "marginals_and_pairs",
    "unseeded": "seeds",
}


def test_every_mistake_of_tempering_is_in_the_table() -> None:
    assert TEMPERING_MUTANTS.keys() == mutants(backend("tempering")).keys()


MUTANTS = {"mean_field": MEAN_FIELD_MUTANTS, "dqa": DQA_MUTANTS, "tempering": TEMPERING_MUTANTS}


@pytest.mark.parametrize(
    ("name", "mutant", "check"), [(b, *row) for b, rows in MUTANTS.items() for row in rows.items()]
)
def test_each_mistake_is_seen_by_the_check_whose_subject_it_is(name: str, mutant: str, check: str) -> None:
    wrong = mutants(backend(name))[mutant]
    assert check in check_names(wrong)
    with pytest.raises(ConformanceError, match="expected"):
        run_check(check, wrong, num_reads=READS[name])
