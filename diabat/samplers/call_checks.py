"""What every call of a backend checks: the problem, the memory for reads, and what the capabilities exclude."""

from __future__ import annotations

import sys
from typing import Any

import torch

from diabat.checks import ArgumentTypeError
from diabat.compute.memory import require_memory
from diabat.ising import Ising
from diabat.samplers.capabilities import Capabilities, UnsupportedError

# Analytic backends form sums of exponents in float64: in a sum of this size a term of size 1 keeps seven digits.
LARGEST = 1e9


def require_call(ising: Any) -> None:
    """Raise UnsupportedError in a trace, and TypeError for all but an Ising."""
    refuse_trace()
    if not isinstance(ising, Ising):
        fix = "; diabat.ising.from_bqm makes one of it" if hasattr(ising, "vartype") else ""  # of dimod
        raise ArgumentTypeError("ising", "a diabat.Ising", f"{type(ising).__name__}{fix}")


def refuse_trace() -> None:
    """Raise UnsupportedError under ``torch.jit.trace``, which would record results of samplers as constants."""
    if torch.jit.is_tracing():  # type: ignore[attr-defined]  # not exported by name
        reason = "cannot record layers and samplers, whose results would be constants of the trace"
        raise UnsupportedError("torch.jit.trace", f"{reason}; use torch.compile or torch.export.")


def require_room(ising: Ising, num_reads: int) -> None:
    """Refuse, by a ValueError, more reads than fit in memory: one byte per read, problem and spin."""
    what = f"{num_reads} reads of {ising.num_problems} problems"
    require_memory(num_reads * ising.fields.numel(), what, "num_reads")


def expanded(ising: Ising, able: Capabilities) -> Ising:
    """The problem in the form that a backend takes: edges become a matrix if it takes none, or beside K."""
    if ising.edges is None or (able.edges and ising.three_body is None):
        return ising
    return ising.dense()


def not_analytic(name: str) -> UnsupportedError:
    """The refusal of gradients ``exact`` of a backend without derivatives."""
    reason = f"'exact' expects a diabat.samplers.AnalyticSampler, got sampler '{name}', which is none."
    return UnsupportedError("gradient", reason)


def require_terms(name: str, able: Capabilities, ising: Ising) -> None:
    """Refuse numbers and terms that the capabilities exclude at any number of spins."""
    if "exact" in able.gradients:
        ising.check_size(LARGEST)
    elif not ising.check:
        ising.check_size(sys.float_info.max)
    if ising.three_body is not None and not able.three_body:
        fix = "use 'exact', 'tempering' or 'mean_field' for three-body terms"
        raise UnsupportedError("three_body", f"sampler '{name}' accepts fields and couplings only; {fix}.")


def require_supported(name: str, able: Capabilities, ising: Ising) -> None:
    """Refuse problems that the capabilities exclude."""
    require_terms(name, able, ising)
    visible = ising.num_spins
    if able.max_spins is None or visible <= able.max_spins:
        return
    if ising.visible is not None:
        visible = int(ising.visible_mask.sum(-1).max())
    if visible > able.max_spins:
        expected = f"sampler '{name}' accepts at most {able.max_spins} visible spins"
        raise UnsupportedError("fields", f"{expected}, got {visible}.")
