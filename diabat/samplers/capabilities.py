"""What a backend supports, as data, and the refusal of everything else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from diabat.checks import ArgumentError

Law = Literal["boltzmann", "mean-field", "diabatic", "annealed"]
# Those but "exact" are the table of diabat/attention/estimators.py.
Estimator = Literal["exact", "straight_through", "linear_response", "covariance", "adjoint"]
FROM_MARGINALS: tuple[Estimator, ...] = ("straight_through", "linear_response")
FROM_READS: tuple[Estimator, ...] = (*FROM_MARGINALS, "covariance")


class UnsupportedError(ArgumentError):
    """The backend does not support the problem or the request; the message names an alternative where there is one."""


@dataclass(frozen=True)
class Capabilities:
    """What a backend supports; the defaults describe a Boltzmann sampler for fields and couplings.

    Attributes:
        exact: Moments are exact up to rounding.
        law: The law that is sampled: ``boltzmann``, or the backend's own (``mean-field``, ``diabatic``,
            ``annealed``).
        max_spins: Largest number of visible spins in one problem, None if unbounded.
        three_body: Accepts K.
        edges: Takes couplings as edges; else they are expanded, up to ``diabat.ising.edges.DENSE_SPINS`` spins.
        samples: Can draw samples.
        correlations: Can report pair correlations.
        log_partition: Reports log Z, if ``moments`` is asked for it.
        remembers: A result depends on earlier calls; asked of a composite and its bases by `state.remembers`.
        note: What beside the name decides what is supported, for refusals: " with engine 'aer'".
        gradients: Estimators that support it, best first (``gradient="auto"`` takes the first).  With ``adjoint``,
            :meth:`Sampler.solution` is an ``AdjointSolution``.
        max_states: Largest Σ 2^n that a layer may request in one call if every problem has a different J, when no work
            is shared; None if the backend does not enumerate.
    """

    exact: bool = False
    law: Law = "boltzmann"
    max_spins: int | None = None
    three_body: bool = False
    edges: bool = False
    samples: bool = True
    correlations: bool = True
    log_partition: bool = False
    remembers: bool = False
    note: str = ""
    gradients: tuple[Estimator, ...] = FROM_READS
    max_states: int | None = None
