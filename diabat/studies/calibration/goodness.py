r"""How well a Boltzmann law with fitted inverse temperatures describes what a sampler does.

With ℓ(β) the mean of log P(s_j | rest) over reads and visible spins, in nats,

    pseudo R²  = 1 - ℓ(β̂)/ℓ(0),   ℓ(0) = -log 2                         (McFadden 1974)
    explained  = (ℓ(β̂) - ℓ(0))/(ℓ_q - ℓ(0)),   ℓ_q = Σ_s q(s) log q(s_j | rest), the sampler's own conditionals

The first says how far the spins are from coin flips, and is small for weak problems however good the fit is.
The second is the goodness of fit: 1 if and only if the conditionals are those of the fitted Boltzmann law.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers.pseudolikelihood import BetaFit, log_pseudolikelihood
from diabat.samplers.registry import sampler
from diabat.studies.fidelity import states as tables


@dataclass(frozen=True)
class Goodness:
    """Goodness of a fit; means over problems.

    Attributes:
        log_pseudolikelihood: ℓ(β̂), nats per visible spin and read.
        pseudo_r2: 1 - ℓ(β̂)/ℓ(0): 0 for coin flips, 1 for spins that follow from the others.
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
    """Judge a fit by the reads, or the states and their probabilities, that it was made from.

    Args:
        ising: The problems that were asked for, fields [*batch, n].
        fit: From :func:`diabat.samplers.pseudolikelihood.fit_betas`.
        spins: ±1, [reads, *batch, n], or [2^n, n] for a table shared by all problems.
        weights: [reads, *batch], summing to 1 along the first axis.
        law: Probability of every state under the sampler where it is known, [*batch, 2^n], n <= 16.

    Returns:
        The goodness; None where there is no fit.

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
    table = tables.all_states(ising.num_spins)
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
    assert isinstance(exact, tables.StateBackend)
    return tables.states_of(exact, rescaled(ising, (1.0, 1.0, 1.0)))


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
    return float(tables.total_variation(q, p).mean()), float(tables.kl_divergence(q, p).mean())
