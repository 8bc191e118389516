"""Exact tests of reads, at an alpha that holds for the whole campaign."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from diabat.samplers import Samples
from fuzz.outcome import demand

ALPHA, CASES = 1e-3, 100_000
"""Probability that a campaign of ``CASES`` statistical cases rejects a correct sampler."""


def check_reads(
    samples: Samples, probability: Tensor, correlation: Tensor, spare: Tensor | None = None
) -> None:
    """Binomial tests of every spin and every pair, with Bonferroni's correction over them and over the campaign.

    Args:
        samples: Reads of equal weight.
        probability: Exact P(s_j = +1), [*batch, n].
        correlation: Exact <s_j s_k>, [*batch, n, n].
        spare: bool [*batch], problems that are left out.
    """
    spins = samples.spins
    visible = samples.visible if spare is None else samples.visible & ~spare[..., None]
    n = spins.shape[-1]
    j, k = torch.triu_indices(n, n, offset=1)
    up = (spins > 0).sum(0)
    equal = (spins[..., j] == spins[..., k]).sum(0)
    counts = torch.cat([up, equal], -1)
    expected = torch.cat([probability, (1 + correlation[..., j, k]) / 2], -1).clamp(0, 1)
    used = torch.cat([visible, visible[..., j] & visible[..., k]], -1)
    if not bool(used.any()):
        return
    count, p = counts[used].numpy(), expected[used].detach().numpy()
    reads = samples.num_reads
    # Rounding of a certain event must not make a read impossible.
    p = np.clip(p, 1e-12, 1 - 1e-12)
    values = 2 * np.minimum(stats.binom.cdf(count, reads, p), stats.binom.sf(count - 1, reads, p))
    check_pvalues(values, f"{count} of {reads} reads where {p} are expected" if len(p) < 4 else "")


def check_pvalues(values: np.ndarray, subject: str) -> None:
    """Fail if the smallest of the p-values of one case is too small."""
    worst = float(np.min(values)) * np.size(values) if np.size(values) else 1.0
    demand(worst > ALPHA / CASES, f"statistics: p = {worst:.1e} over {np.size(values)} comparisons {subject}")
