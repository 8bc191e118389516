r"""One sampler on one batch of problems: fitted inverse temperatures, goodness of fit, and gain of the correction.

With ℓ(β) the mean of log P(s_j | rest) over reads and visible spins, in nats,

    pseudo R²  = 1 - ℓ(β̂)/ℓ(0),   ℓ(0) = -log 2                         (McFadden 1974)
    explained  = (ℓ(β̂) - ℓ(0))/(ℓ_q - ℓ(0)),   ℓ_q = Σ_s q(s) log q(s_j | rest), the sampler's own conditionals

The first measures the distance from random spins, and is small for weak problems even if the fit is good.
The second is the goodness of fit: 1 if and only if the conditionals are those of the fitted Boltzmann law.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.ising import Ising
from diabat.samplers.base import Sampler, UnsupportedError
from diabat.samplers.pseudolikelihood import BetaFit, fit_betas, fit_state_betas, log_pseudolikelihood
from diabat.samplers.registry import sampler
from diabat.studies.fidelity import states


@dataclass(frozen=True)
class Goodness:
    """Goodness of a fit; means over problems.

    Attributes:
        log_pseudolikelihood: ℓ(β̂), nats per visible spin and read.
        pseudo_r2: 1 - ℓ(β̂)/ℓ(0): 0 for random spins, 1 if each spin is determined by the others.
        explained: Explained deviance; 1 for a Boltzmann law, below for another.  None without the sampler's law.
        tv: Total variation between the sampler's law and Boltzmann at β̂; None without the law.
        kl: KL(sampler ‖ Boltzmann at β̂) in nats.
        tv_at_one: Total variation between the sampler's law and Boltzmann at β = 1.
        kl_at_one: KL(sampler ‖ Boltzmann at β = 1) in nats.
    """

    log_pseudolikelihood: float
    pseudo_r2: float
    explained: float | None = None
    tv: float | None = None
    kl: float | None = None
    tv_at_one: float | None = None
    kl_at_one: float | None = None


def goodness(
    ising: Ising, fit: BetaFit, spins: Tensor, weights: Tensor, *, law: Tensor | None = None
) -> Goodness | None:
    """Compute the goodness of a fit from its reads, or from its states and their probabilities.

    Args:
        ising: The target problems, fields [*batch, n].
        fit: From :func:`diabat.samplers.pseudolikelihood.fit_betas`.
        spins: ±1, [reads, *batch, n], or [2^n, n] for a table shared by all problems.
        weights: [reads, *batch], summing to 1 along the first axis.
        law: Probability of every state under the sampler if known, [*batch, 2^n], n <= 16.

    Returns:
        The goodness; None without a fit.

    Raises:
        ValueError: If the shapes do not fit the problems.
    """
    if not fit.exists:
        return None
    value = log_pseudolikelihood(ising, spins, weights, fit.scales)
    r2 = 1 + value / math.log(2)
    if law is None:
        return Goodness(value, r2)
    q = law.detach().double().cpu()
    # The deviance belongs to the law itself, not to a sample of it.
    table = states.all_states(ising.num_spins)
    at_fit = log_pseudolikelihood(ising, table, q.movedim(-1, 0), fit.scales)
    gain = own_log_pseudolikelihood(ising, q) + math.log(2)
    explained = (at_fit + math.log(2)) / gain if gain > 0 else None
    fitted, plain = boltzmann(rescaled(ising, fit.scales)), boltzmann(ising)
    return Goodness(value, r2, explained, *_distances(q, fitted), *_distances(q, plain))


def rescaled(ising: Ising, scales: tuple[float, float, float]) -> Ising:
    """Multiply fields, couplings and three-body terms by (β_h, β_J, β_K)."""
    h, J, K = (
        None if term is None else factor * term.detach().double()
        for factor, term in zip(scales, (ising.fields, ising.couplings, ising.three_body), strict=True)
    )
    assert h is not None
    return Ising(h, J, ising.visible, K, check=False)


def boltzmann(ising: Ising) -> Tensor:
    """Exact probability of every state at β = 1, float64 [*batch, 2^n]."""
    exact = sampler("exact")
    assert isinstance(exact, states.StateBackend)
    return states.states_of(exact, rescaled(ising, (1.0, 1.0, 1.0)))


def own_log_pseudolikelihood(ising: Ising, q: Tensor) -> float:
    """ℓ_q: mean of log q(s_j | rest) over visible spins, in nats, for a law q over states [*batch, 2^n].

    Invisible spins are -1 in every state of q, and thus add log 1.
    """
    index, total = torch.arange(q.shape[-1]), 0.0
    for j in range(ising.num_spins):
        both = q + q[..., index ^ (1 << j)]
        log_p = torch.where(q > 0, q / both, 1.0).log()
        total += float((q * log_p).sum())
    return total / max(1, int(ising.visible_mask.sum()))


def _distances(q: Tensor, p: Tensor) -> tuple[float, float]:
    return float(states.total_variation(q, p).mean()), float(states.kl_divergence(q, p).mean())


@dataclass(frozen=True)
class Measurement:
    """Inverse temperatures of a sampler, relative to the target problems.

    Attributes:
        fit: Scales of fields and couplings; 1 is right.
        goodness: How well a Boltzmann law at these scales describes the sampler; None without a fit.
        tv_before: Total variation between sampler and target (β = 1), mean over problems; None if the sampler
            does not provide its state probabilities.
        tv_after: The same with h/β_h and J/β_J of the fit as fields and couplings.
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
    """Fit a sampler's inverse temperatures and measure the gain of the correction.

    Args:
        backend: Any sampler.  Distances to the target require a sampler with ``state_probabilities`` and n <= 16;
            they are those of the law itself, also if the fit is made from reads.
        ising: The problems, fields [*batch, n].
        num_reads: Reads per problem behind the fit; None fits the state probabilities.
        seed: Seed of the reads.
        groups: Problems that vary together; see :func:`diabat.samplers.pseudolikelihood.fit_betas`.

    Returns:
        The measurement.

    Raises:
        ValueError: If ``num_reads`` is None and the sampler has no state probabilities or the problems are too large.
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
            "num_reads", f"expected a number of reads, got none; {_why_no_law(backend, ising)}."
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
    except UnsupportedError:  # a processor provides only reads
        return None


def _why_no_law(backend: Sampler, ising: Ising) -> str:
    n, problems = ising.num_spins, ising.num_problems
    if n > states.MAX_SPINS:
        return f"without reads expected at most {states.MAX_SPINS} spins, got {n}"
    if not states.countable(ising):
        return (
            f"without reads expected fewer than {problems} problems of {n} spins, whose states are too many"
        )
    return f"sampler '{backend.name}' does not provide state probabilities"


def _distance(law: Tensor | None, target: Tensor) -> float | None:
    return None if law is None else float(states.total_variation(law, target).mean())
