"""One sampler on one batch of problems: fitted inverse temperatures, and what correcting by them is worth."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.ising import Ising
from diabat.samplers.base import Sampler, UnsupportedError
from diabat.samplers.pseudolikelihood import BetaFit, fit_betas, fit_state_betas
from diabat.studies.calibration.goodness import Goodness, boltzmann, goodness, rescaled
from diabat.studies.fidelity import states


@dataclass(frozen=True)
class Measurement:
    """Inverse temperatures of a sampler, relative to the problems that it was asked for.

    Attributes:
        fit: Scales of fields and couplings; 1 is right.
        goodness: How well a Boltzmann law at these scales describes the sampler; None without a fit.
        tv_before: Total variation between sampler and target (β = 1), mean over problems; None if the sampler
            does not know its law.
        tv_after: The same when h/β_h and J/β_J of the fit are asked for instead.
    """

    fit: BetaFit
    goodness: Goodness | None
    tv_before: float | None
    tv_after: float | None


def measure(
    backend: Sampler,
    ising: Ising,
    *,
    num_reads: int | None = None,
    seed: int = 0,
    groups: Tensor | None = None,
) -> Measurement:
    """Fit a sampler's inverse temperatures and see what the correction brings.

    Args:
        backend: Any sampler.  Distances to the target need one that knows its law (``state_probabilities``), at
            n <= 16, and are those of the law itself also where the fit is made from reads.
        ising: The problems, fields [*batch, n].
        num_reads: Reads per problem behind the fit; None fits the state probabilities.
        seed: Seed of the reads.
        groups: Problems that vary together; see :func:`diabat.samplers.pseudolikelihood.fit_betas`.

    Returns:
        The measurement.

    Raises:
        ValueError: If ``num_reads`` is None and the sampler does not know its law or the problems are too large.
    """
    law = _law(backend, ising)
    if num_reads is not None:
        samples = backend.sample(ising, num_reads, seed=seed)
        spins, weights = samples.spins, samples.weights
        fit = fit_betas(ising, spins, weights, groups=groups)
    elif law is not None:
        spins, weights = states.all_states(ising.num_spins), law.movedim(-1, 0)
        fit = fit_state_betas(ising, law, groups=groups)
    else:
        raise ArgumentError(
            "num_reads", f"expected a number of reads, got None; {_why_no_law(backend, ising)}."
        )
    judged = goodness(ising, fit, spins, weights, law=law)
    if law is None:
        return Measurement(fit, judged, None, None)
    target = boltzmann(ising)
    after = None
    if fit.exists and all(scale != 0 for scale in fit.scales):
        h, J, K = (1 / scale for scale in fit.scales)
        after = _distance(_law(backend, rescaled(ising, (h, J, K))), target)
    return Measurement(fit, judged, _distance(law, target), after)


def _law(backend: Sampler, ising: Ising) -> Tensor | None:
    if not (isinstance(backend, states.StateBackend) and states.countable(ising)):
        return None
    try:
        with torch.no_grad():
            return states.states_of(backend, ising)
    except UnsupportedError:  # a processor knows reads only
        return None


def _why_no_law(backend: Sampler, ising: Ising) -> str:
    n, problems = ising.num_spins, ising.num_problems
    if n > states.MAX_SPINS:
        return f"without reads expected at most {states.MAX_SPINS} spins, got {n}"
    if not states.countable(ising):
        return (
            f"without reads expected fewer than {problems} problems of {n} spins, whose states are too many"
        )
    return f"sampler '{backend.name}' does not know its state probabilities"


def _distance(law: Tensor | None, target: Tensor) -> float | None:
    return None if law is None else float(states.total_variation(law, target).mean())
