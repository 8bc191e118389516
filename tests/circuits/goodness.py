"""Goodness of fit of reads against tables of state probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from .conftest import Array

# Type I error of one test. With N = 4000 reads a law off by a total variation of 0.1 is refused all but surely.
ALPHA = 1e-6


def p_value(spins: NDArray[np.int8], probabilities: Array) -> float:
    """Pearson's chi-square of the states of reads [N, Q, n] against [Q, 2^n], pooled over the problems."""
    states = (spins > 0) @ (1 << np.arange(spins.shape[-1]))
    statistic, freedom = 0.0, 0
    for q, law in enumerate(probabilities):
        counts, expected = np.bincount(states[:, q], minlength=len(law)), len(spins) * law
        # Rare states share a cell: the limit law needs expectations of several reads.
        rare = expected < 10
        cells = np.append(expected[~rare], expected[rare].sum())
        seen = np.append(counts[~rare], counts[rare].sum())
        seen, cells = seen[cells > 1e-9], cells[cells > 1e-9]
        statistic += float(((seen - cells) ** 2 / cells).sum())
        freedom += len(cells) - 1
    return float(chi2.sf(statistic, freedom))
