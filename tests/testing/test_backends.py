"""Every built-in backend against the conformance suite, one test for each check."""

from __future__ import annotations

from functools import cache

import pytest

from diabat.samplers import Sampler, sampler
from diabat.testing import ConformanceError, Mutant, check_names, mutants, run_check, scaled

# alpha = 1e-6 per check, N = 4096 reads (the defaults).
BACKENDS = ("exact", "mean_field", "dqa")


@cache
def backend(name: str) -> Sampler:
    return sampler(name)


@pytest.mark.parametrize(
    ("name", "check"), [(name, check) for name in BACKENDS for check in check_names(backend(name))]
)
def test_backend_conforms(name: str, check: str) -> None:
    run_check(check, backend(name))


LOOSE = {
    "constant": "signs",
    "half_fields": "field_response",
    "ignored_couplings": "coupling_response",
    "negated_couplings": "signs",
    "negated_fields": "signs",
    "permuted_columns": "signs",
    "ignored_visibility": "invisible_spins",
}


@pytest.mark.parametrize("mutant", sorted(LOOSE))
def test_the_looser_suite_sees_gross_mistakes(mutant: str) -> None:
    with pytest.raises(ConformanceError, match="expected"):
        run_check(LOOSE[mutant], mutants(backend("mean_field"))[mutant])


def test_uncalibrated_scales_of_an_own_law_are_seen() -> None:
    # beta_h and beta_J mixed up shift one scale by about 9 %; a quarter is the least that the bounds exclude.
    weak = Mutant(backend("mean_field"), "weak", problem=lambda ising: scaled(ising, 0.75, 0.75))
    with pytest.raises(ConformanceError, match="slope 1"):
        run_check("field_response", weak)
