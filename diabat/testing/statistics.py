"""Tests of a law: binomial tests of events, pooled z-tests of scales, Pearson's chi-square of states.

Every test reports alpha and N in its message.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers.answers import Samples
from diabat.testing.core import ConformanceError, Trial
from diabat.testing.oracle import brute_force, brute_force_states, state_table

Array = NDArray[np.float64]

# Cells with a smaller expected count are pooled: with 25, Pearson's sum has a chi-square tail down to 1e-8.
_MIN_EXPECTED = 25.0


def event_frequencies(events: Tensor) -> tuple[Tensor, Tensor]:
    """Frequencies x̄ of N events [N, *batch, M] and their variances x̄(1 - x̄)/N, float64 [*batch, M]."""
    mean = events.cpu().double().mean(0)
    return mean, mean * (1 - mean) / len(events)


def event_pvalues(events: Tensor, exact: Tensor) -> Array:
    """Two-sided binomial p-values [*batch, M] of events [reads, *batch, M] against exact probabilities [*batch, M].

    They are 1 where the exact probability is 0 or 1 and the frequency agrees.
    """
    p, n = np.clip(exact.cpu().numpy(), 0.0, 1.0), len(events)
    count = events.sum(0).cpu().numpy()
    lower, upper = stats.binom.cdf(count, n, p), stats.binom.sf(count - 1, n, p)
    return np.minimum(1.0, 2 * np.minimum(lower, upper))


def spin_and_pair_events(spins: Tensor) -> tuple[Tensor, Tensor]:
    """Events s_j = +1 [reads, *batch, n] and s_j = s_k for j < k [reads, *batch, n(n-1)/2]."""
    j, k = torch.triu_indices(spins.shape[-1], spins.shape[-1], offset=1)
    return spins > 0, spins[..., j] == spins[..., k]


def demand_events(trial: Trial, samples: Samples, ising: Ising, where: str) -> None:
    """Fail if marginals or pair correlations of samples are not those of the Boltzmann law."""
    exact = brute_force(ising)
    assert exact.correlation is not None
    up, equal = spin_and_pair_events(samples.spins)
    j, k = torch.triu_indices(ising.num_spins, ising.num_spins, offset=1)
    both = exact.visible[..., j] & exact.visible[..., k]
    for what, events, p, counts in (
        ("P(s = +1)", up, exact.probability, exact.visible),
        ("P(s_j = s_k)", equal, (1 + exact.correlation[..., j, k]) / 2, both),
    ):
        demand_frequencies(trial, events, p, f"{what} {where}", counts)


def demand_frequencies(
    trial: Trial, events: Tensor, exact: Tensor, what: str, counts: Tensor | None = None
) -> None:
    """Fail if frequencies of events [reads, *batch, M] are not the exact ones, where they count; None for all."""
    pvalues, frequency = event_pvalues(events, exact), event_frequencies(events)[0].numpy()
    pvalues = pvalues if counts is None else np.where(counts.numpy(), pvalues, 1.0)
    demand_all(trial, pvalues, frequency, exact.numpy(), what, len(events))


def demand_all(trial: Trial, pvalues: Array, got: Array, exact: Array, what: str, num_reads: int) -> None:
    """Fail if the smallest p-value is below alpha divided by the number of comparisons."""
    worst = np.unravel_index(int(np.argmin(pvalues)), pvalues.shape) if pvalues.size else None
    if worst is not None and pvalues[worst] * pvalues.size < trial.alpha:
        expected = f"{float(exact[worst]):.4f} at index {tuple(int(i) for i in worst)}"
        test = f"p = {float(pvalues[worst]):.1e}, alpha = {trial.alpha:g} over {pvalues.size} comparisons"
        frequency = f"{float(got[worst]):.4f} from N = {num_reads} reads ({test})"
        raise ConformanceError(f"{what}: expected {expected}, got {frequency}.")


def state_chi_square(samples: Samples, ising: Ising) -> tuple[float, int]:
    """Pearson's chi-square of all states of all problems, and its degrees of freedom."""
    n, reads = ising.num_spins, samples.num_reads
    bits = (samples.spins.cpu() > 0).long() << torch.arange(n)
    index = bits.sum(-1).reshape(reads, -1)  # [reads, problems]
    expected = reads * brute_force_states(ising).reshape(-1, 2**n).numpy()
    counts = np.stack([np.bincount(column, minlength=2**n) for column in index.T.numpy()])
    rare = expected < _MIN_EXPECTED
    cells, observed = (np.c_[np.where(rare, 0, e), np.where(rare, e, 0).sum(1)] for e in (expected, counts))
    full = cells > 0
    total = float(((observed - cells)[full] ** 2 / cells[full]).sum())
    return total, int((full.sum(1) - 1).clip(0).sum())


def exact_mean_variance(ising: Ising, values: Tensor) -> tuple[Tensor, Tensor]:
    """Exact mean and variance [*batch] of a statistic given on every state, [*batch, 2^n]."""
    p = brute_force_states(ising)
    mean = (p * values).sum(-1)
    return mean, (p * (values - mean[..., None]) ** 2).sum(-1)


def exponent_terms(ising: Ising, spins: Tensor) -> dict[str, Tensor]:
    """Σ h s, Σ_{j<k} J s s, Σ_{j<k<l} K s s s and their sum, each float64 [*sample, *batch]."""
    s = torch.where(ising.visible_mask.cpu(), spins.cpu().double(), 0.0)
    parts = {"fields": (ising.fields.cpu().double() * s).sum(-1)}
    if ising.couplings is not None:
        J = ising.couplings.cpu().double()
        parts["couplings"] = torch.einsum("...jk,...j,...k->...", J, s, s) / 2
    if ising.three_body is not None:
        K = ising.three_body.cpu().double()
        parts["three_body"] = torch.einsum("...jkl,...j,...k,...l->...", K, s, s, s) / 6
    # The whole exponent is most sensitive to a wrong beta; its parts show which single scale is wrong.
    return parts | {"temperature": sum(parts.values(), torch.zeros_like(parts["fields"]))}


def demand_scales(trial: Trial, samples: Samples, ising: Ising) -> None:
    """Fail if the mean Σ h s, Σ J s s or Σ K s s s of samples is wrong: the best test of a wrong scale."""
    states = state_table(ising.num_spins)
    table = states.reshape(len(states), *(1,) * len(ising.batch_shape), ising.num_spins)
    exact_terms = exponent_terms(ising, table.expand(-1, *ising.fields.shape))
    terms = exponent_terms(ising, samples.spins)
    for name, values in terms.items():
        mean, variance = exact_mean_variance(ising, exact_terms[name].movedim(0, -1))
        z = float((values.mean(0) - mean).sum() / (variance.sum() / samples.num_reads).sqrt())
        pvalue = 2 * stats.norm.sf(abs(z))
        if pvalue * len(terms) < trial.alpha:
            got = f"one too {'small' if z < 0 else 'large'} (z = {z:.1f}, N = {samples.num_reads} reads of "
            got += f"{ising.num_problems} problems, alpha = {trial.alpha:g})"
            expected = "the mean of this part of the exponent as at beta = 1"
            raise ConformanceError(f"{name}: expected {expected}, got {got}.")
