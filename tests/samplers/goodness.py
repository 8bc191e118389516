"""Goodness of fit of reads against a table of state probabilities."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats
from torch import Tensor


def g_test(spins: Tensor, probabilities: Tensor) -> float:
    """p-value of the G statistic of the states of reads [N, problems, n] against [problems, 2^n], pooled."""
    n = spins.shape[-1]
    index = ((spins > 0).long() << torch.arange(n)).sum(-1)
    statistic, freedom = 0.0, 0
    for problem, p in enumerate(probabilities.numpy()):
        count = np.bincount(index[:, problem].numpy(), minlength=2**n)
        expected = len(spins) * p
        assert not count[expected == 0].any()
        # Rare states share a cell: the limit law of G needs expectations of several reads.
        rare = expected < 10
        cells = np.append(expected[~rare], expected[rare].sum())
        seen = np.append(count[~rare], count[rare].sum())
        cells, seen = cells[cells > 0], seen[cells > 0]
        statistic += 2 * float((seen * np.log(np.maximum(seen, 1) / cells)).sum())
        freedom += len(cells) - 1
    return float(stats.chi2.sf(statistic, freedom))
