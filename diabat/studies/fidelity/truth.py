"""The exact answer that backends are compared with."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from diabat.checks import ArgumentError
from diabat.ising import Ising
from diabat.samplers.answers import Moments
from diabat.samplers.base import Sampler, UnsupportedError
from diabat.samplers.registry import sampler
from diabat.studies.fidelity import metrics, states
from diabat.studies.fidelity.ensembles import Ensemble


class FidelityError(ArgumentError):
    """A comparison that cannot be made, because the exact answer is out of reach."""


@dataclass(frozen=True, eq=False)
class Truth:
    """What backends are compared with.

    Attributes:
        moments: Exact moments with pair correlations, float64.
        states: Exact distribution over states, float64 [*batch, 2^n], None above 16 spins.
        independent_error: Mean error of marginals of the J = 0 answer.
        mean_field_error: The same of naive mean field.
    """

    moments: Moments
    states: Tensor | None
    independent_error: float
    mean_field_error: float


def find_truth(ensemble: Ensemble, reference: Sampler | None = None) -> Truth:
    """Solve an ensemble exactly in float64.

    Args:
        ensemble: The problems.
        reference: An exact backend; None means ``exact``.

    Raises:
        FidelityError: If the exact backend refuses the problems.
        ValueError: If the reference is not exact.
    """
    reference = sampler("exact") if reference is None else reference
    if not reference.capabilities.exact:
        raise ArgumentError("reference", f"expected an exact sampler, got '{reference.name}'.")
    ising = _as_double(ensemble.ising)
    try:
        moments = reference.moments(ising, correlations=True)
    except UnsupportedError as refusal:
        raise FidelityError(
            "ensembles",
            f"'{ensemble.name}' at strength {ensemble.strength:g} with {ising.num_spins} spins "
            f"has no exact answer to compare with ({refusal})",
        ) from refusal
    exact, seen = moments.probability, ising.visible_mask
    table = None
    if states.countable(ising) and isinstance(reference, states.StateBackend):
        table = states.states_of(reference, ising)
    independent = metrics.marginal_errors(metrics.independent_probability(ising), exact, seen)[1]
    return Truth(moments, table, independent, _mean_field_error(ising, exact))


def _mean_field_error(ising: Ising, exact: Tensor) -> float:
    naive = sampler("mean_field").moments(ising).probability.detach()
    return metrics.marginal_errors(naive, exact, ising.visible_mask)[1]


def _as_double(ising: Ising) -> Ising:
    J, K = (None if t is None else t.detach().double() for t in (ising.couplings, ising.three_body))
    return Ising(ising.fields.detach().double(), J, ising.visible, K, check=False)
