"""Public conformance suite: test any sampler, also a third party's, against the contract.

    from diabat.testing import check_names, check_sampler, run_check

    check_sampler(MySampler())          # raises ConformanceError with one sentence

The suite compares with plain enumeration in float64, and reports alpha and N in every statistical failure.
"""

from diabat.testing.conformance import check_names, check_sampler, run_check
from diabat.testing.core import CHECKS, Check, ConformanceError, Trial
from diabat.testing.oracle import ReferenceSampler, brute_force, brute_force_states, state_table

__all__ = [
    "CHECKS",
    "Check",
    "ConformanceError",
    "ReferenceSampler",
    "Trial",
    "brute_force",
    "brute_force_states",
    "check_names",
    "check_sampler",
    "run_check",
    "state_table",
]
