"""Public conformance suite: test any sampler, also a third party's, against the contract.

    from diabat.testing import check_names, check_sampler, run_check

    check_sampler(MySampler())          # raises ConformanceError with one sentence

The suite compares with plain enumeration in float64, reports alpha and N in every statistical failure, and
includes mutants (samplers with one mistake each) that must fail it.
"""

from diabat.testing.conformance import check_names, check_sampler, run_check
from diabat.testing.core import CHECKS, Check, ConformanceError, Trial
from diabat.testing.fakes import Call, FIFOSampler, RecorderSampler, scaled
from diabat.testing.mutants import Mutant, mutants
from diabat.testing.oracle import ReferenceSampler, brute_force, brute_force_states, state_table

__all__ = [
    "CHECKS",
    "Call",
    "Check",
    "ConformanceError",
    "FIFOSampler",
    "Mutant",
    "RecorderSampler",
    "ReferenceSampler",
    "Trial",
    "brute_force",
    "brute_force_states",
    "check_names",
    "check_sampler",
    "mutants",
    "run_check",
    "scaled",
    "state_table",
]
