"""Definition of a conformance check, and the registry of all checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers.answers import Moments, Samples
from diabat.samplers.base import Sampler
from diabat.samplers.capabilities import Capabilities, Law

DEFAULT_ALPHA = 1e-6
DEFAULT_NUM_READS = 4096


class ConformanceError(AssertionError):
    """A sampler that violates the contract; the message is one sentence."""


@dataclass(frozen=True)
class Trial:
    """One sampler under test.

    Attributes:
        sampler: The sampler under test.
        alpha: Of one statistical check, which divides it by its number of comparisons (Bonferroni).
        num_reads: Reads per problem of a statistical check.
        seed: Seed of the test problems and, shifted, of the sampler.
        law: The law that the samples are compared with.
    """

    sampler: Sampler
    alpha: float = DEFAULT_ALPHA
    num_reads: int = DEFAULT_NUM_READS
    seed: int = 0
    law: Law = "boltzmann"

    @property
    def able(self) -> Capabilities:
        """Capabilities of the sampler."""
        return self.sampler.capabilities

    def draw(self, ising: Ising, num_reads: int | None = None, *, shift: int = 0) -> Samples:
        """Draw with the trial's reads and seed + shift."""
        return self.sampler.sample(ising, num_reads or self.num_reads, seed=self.seed + shift)

    def moments(self, ising: Ising) -> Moments:
        """Compute all that the sampler reports."""
        pairs, log_z = self.able.correlations, self.able.log_partition
        return self.sampler.moments(ising, correlations=pairs, log_partition=log_z, seed=self.seed)

    def analytic_moments(self) -> bool:
        """Whether ``moments`` is computed rather than averaged over reads."""
        return self.sampler.moments(Ising(torch.full((1,), 0.1)), seed=self.seed).num_reads is None


Applies = Callable[[Trial], bool]
Run = Callable[[Trial], None]


@dataclass(frozen=True)
class Check:
    """One requirement by its name: ``run`` raises ConformanceError if it is not met, where it ``applies``."""

    name: str
    run: Run
    applies: Applies


CHECKS: dict[str, Check] = {}
"""All checks by name."""


def check(
    *,
    law: Literal["boltzmann", "own"] | None = None,
    samples: bool = False,
    when: Applies = lambda trial: True,
) -> Callable[[Run], Run]:
    """Register a function as a check under its name; the first line of its docstring is the requirement.

    It applies to samplers of the Boltzmann law or to those of another one, that draw if ``samples``, ``when`` it fits.
    """

    def applies(trial: Trial) -> bool:
        wrong_law = law is not None and (law == "boltzmann") != (trial.law == "boltzmann")
        return not wrong_law and (trial.able.samples or not samples) and when(trial)

    def register(run: Run) -> Run:
        CHECKS[run.__name__] = Check(run.__name__, run, applies)
        return run

    return register


def demand(condition: bool, sentence: str) -> None:
    """Raise ConformanceError with the sentence unless the condition is true."""
    if not condition:
        raise ConformanceError(sentence)


def demand_equal(got: Any, want: Any, what: str) -> None:
    """The same for two values that are to be equal; ``what`` names them."""
    demand(got == want, f"{what}: expected {want}, got {got}.")


def demand_below(error: Tensor, limit: float, expectation: str) -> None:
    """Raise ConformanceError if the largest error is above a limit (or NaN); ``expectation`` is the sentence before."""
    worst = float(error.detach().abs().max())
    demand(worst <= limit, f"{expectation} (within {limit:g}), got a difference of {worst:.3g}.")
