"""Maximum of a log pseudo-likelihood by Newton's method, and the covariance of its gradient there."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from diabat.samplers.conditionals import Conditionals, derivatives, scores

_ITERATIONS = 100
_CONVERGED = 1e-9
_ROUNDING = 1e-12


def maximise(data: Conditionals) -> tuple[Tensor, Tensor] | None:
    """Best scales [t] and the inverse of the negative Hessian [t, t] there; None if there is no maximum."""
    beta = torch.zeros(len(data.kinds), dtype=torch.float64)
    step, unit = torch.zeros_like(beta), torch.ones_like(beta)
    total, reached = 1.0, -math.inf
    for iteration in range(_ITERATIONS):
        value, gradient, hessian = derivatives(data, beta)
        if value < reached - _ROUNDING * abs(reached):
            step = step / 2  # the Newton step went too far; the function is concave, a shorter one is uphill
            beta = beta - step
            continue
        reached = value
        if iteration == 0:
            # Units in which the log-odds are of size 1, so that fields of 1e-6 are as good as fields of 1.
            total = float(sum(table.weights.sum() for table in data))
            unit = (4 * hessian.diagonal() / total).sqrt()
        if not bool(unit.isfinite().all() and (unit > 0).all()):
            return None
        curvature = hessian / (unit[:, None] * unit) / total
        if float(torch.linalg.eigvalsh(curvature)[0]) < _ROUNDING:
            return None  # terms that cannot be told apart, or reads that a larger beta fits ever better
        step = torch.linalg.solve(curvature, gradient / unit / total) / unit
        beta = beta + step
        if float((step * unit).abs().max()) < _CONVERGED:
            return beta, torch.linalg.inv(curvature) / (unit[:, None] * unit) / total
    return None


def score_covariance(data: Conditionals, beta: Tensor, labels: Tensor | None) -> Tensor:
    """Estimated covariance of the gradient at the maximum, [t, t], over reads or over groups of problems."""
    total = beta.new_zeros(len(beta), len(beta))
    if labels is None:
        for table in data:
            g, w = scores(table, beta), table.reads  # [t, P, R], [P, R]
            share = w.square().sum(-1, keepdim=True)  # 1/R for equal weights
            # R - 1 degrees of freedom; a single read has no mean of its own, and its gradient stands as it is.
            # So does that of reads that are all the same: they do not say how much others would differ.
            alone = (share > 1 - 1e-9) | (g == g[..., :1]).all(-1, keepdim=True).all(0)
            centred = torch.where(alone, g, g - (g * w).sum(-1, keepdim=True))
            spread = (centred * w / torch.where(alone, share, 1 - share).sqrt()).flatten(1)
            total += spread @ spread.T
        return total
    sums = [(scores(table, beta) * table.reads).sum(-1) for table in data]
    count = int(labels.max()) + 1
    # The sums add up to 0 at the maximum, hence count - 1 degrees of freedom.
    grouped = beta.new_zeros(len(beta), count).index_add(1, labels, torch.cat(sums, dim=1))
    return grouped @ grouped.T * count / max(1, count - 1)
