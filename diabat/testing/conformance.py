"""The whole suite: names of the checks, one check, all checks."""

from __future__ import annotations

from diabat.checks import check_choice, check_count, check_number
from diabat.samplers.base import Sampler
from diabat.samplers.capabilities import Law

# Importing these modules registers their checks.
from diabat.testing import boltzmann, draws, own_law, refusals, structure
from diabat.testing.core import CHECKS, DEFAULT_ALPHA, DEFAULT_NUM_READS, ConformanceError, Trial

# Form before law: a wrong shape should be reported as a wrong shape, not as wrong statistics.
_ORDER = [module.__name__ for module in (structure, draws, refusals, boltzmann, own_law)]
_FEWEST_READS = 256  # below which no test has power


def check_names(sampler: Sampler, *, law: Law | None = None) -> list[str]:
    """Names of the checks that apply to a sampler, in the order in which :func:`check_sampler` runs them."""
    trial = Trial(sampler, law=law or sampler.capabilities.law)
    ordered = sorted(CHECKS.values(), key=lambda item: _ORDER.index(item.run.__module__))
    return [item.name for item in ordered if item.applies(trial)]


def run_check(
    name: str, sampler: Sampler, *,
    alpha: float = DEFAULT_ALPHA, num_reads: int = DEFAULT_NUM_READS, seed: int = 0, law: Law | None = None,
) -> None:  # fmt: skip
    """Run one check by name; see :func:`check_sampler`.

    Raises:
        ConformanceError: If the sampler fails it.
        ValueError: If no check has this name, or an argument is out of range.
    """
    check_choice("name", name, CHECKS)
    check_number("alpha", alpha, "(0, 1)")
    num_reads = check_count("num_reads", num_reads, least=_FEWEST_READS)
    CHECKS[name].run(Trial(sampler, alpha, num_reads, seed, law or sampler.capabilities.law))


def check_sampler(
    sampler: Sampler, *,
    alpha: float = DEFAULT_ALPHA, num_reads: int = DEFAULT_NUM_READS, seed: int = 0, law: Law | None = None,
) -> list[str]:  # fmt: skip
    """Test a sampler against the contract of :class:`diabat.Sampler`.

    For pytest, one test per check::

        @pytest.mark.parametrize("name", check_names(MySampler()))
        def test_conformance(name):
            run_check(name, MySampler())

    Args:
        sampler: The sampler to test.
        alpha: Probability that one statistical check (of about ten) fails for a correct sampler.
        num_reads: Reads per problem of the statistical checks.  4096 reads of 16 problems detect a beta that is
            wrong by 5 % with a power above 1 - 1e-6.
        seed: Seed of problems and draws; the outcome is a function of it.
        law: The law that samples are compared with; None takes the declared one.  ``"boltzmann"`` requires
            agreement with enumeration; the other laws only agreement to first order at weak coupling.

    Returns:
        Names of the checks that were run.

    Raises:
        ConformanceError: At the first check that fails, in one sentence that starts with the check's name.
        ValueError: If alpha or num_reads is out of range.
    """
    for name in (names := check_names(sampler, law=law)):
        try:
            run_check(name, sampler, alpha=alpha, num_reads=num_reads, seed=seed, law=law)
        except ConformanceError as failure:
            raise ConformanceError(f"{sampler.name} fails {name}: {failure}") from failure
    return names
