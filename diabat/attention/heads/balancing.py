"""Nash bargaining on the gradients of several losses.

Source (Nash-MTL): Navon et al., "Multi-Task Learning as a Bargaining Game" (2022), claim 3.1.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from diabat.checks import ArgumentError

_STEPS = 200
_TOLERANCE = 1e-12
# The optimum has |C a|_k = 1 / a_k; weights beyond this mean a combination of tasks that cancels.
_DIVERGED = 1e7


def nash_weights(gramian: Tensor) -> tuple[Tensor, tuple[int, int] | None]:
    """The weights α > 0 with G α = 1 / α elementwise, which maximise Σ_k log(g_kᵀ Σ_l α_l g_l) up to scale.

    They minimise ½ αᵀ G α - Σ log α, a convex and self-concordant function: damped Newton steps on the cosine matrix
    converge from any start.  Multiplying g_k by c > 0 divides α_k by c, so that the update Σ α_k g_k does not depend
    on the scale of any loss.  At the solution its norm is √K.

    There is no solution if some combination of the gradients with weights >= 0 is zero, for example if two gradients
    are exactly opposed: no step then improves every task.

    Args:
        gramian: G [K, K] with G_kl = ⟨g_k, g_l⟩, of K tasks.

    Returns:
        α [K] float64, 0 for tasks without gradient; and None.  If there is no solution, 1 / ‖g_0‖ for the first task
        with a gradient and 0 for the others; and the two tasks with the most opposed gradients.

    Raises:
        ArgumentError: G is not square, has a value that is not finite, or no task has a gradient.
    """
    if gramian.ndim != 2 or gramian.shape[0] != gramian.shape[1] or not len(gramian):
        raise ArgumentError("gramian", f"expected [K, K] with K >= 1, got {list(gramian.shape)}.")
    matrix = gramian.detach().double().cpu().numpy()
    if not np.isfinite(matrix).all():
        raise ArgumentError("gramian", "expected finite gradients of every task, got NaN or infinity.")
    active = np.flatnonzero(matrix.diagonal() > 0)
    if not len(active):
        raise ArgumentError("gramian", "expected a task with a gradient, got zero for all.")
    norms: np.ndarray = matrix.diagonal()[active] ** 0.5
    cosines: np.ndarray = matrix[np.ix_(active, active)] / np.outer(norms, norms)
    found, weights = _solve((cosines + cosines.T) / 2), np.zeros(len(matrix))
    if found is not None:
        weights[active] = found / norms
        return torch.from_numpy(weights), None
    weights[active[0]] = 1 / norms[0]
    first, second = sorted(divmod(int(cosines.argmin()), len(active)))
    return torch.from_numpy(weights), (int(active[first]), int(active[second]))


def _solve(cosines: np.ndarray) -> np.ndarray | None:
    """Minimiser a > 0 of ½ aᵀ C a - Σ log a; None if there is none."""
    a = np.ones(len(cosines))
    for _ in range(_STEPS):
        gradient = cosines @ a - 1 / a
        if np.abs(a * gradient).max() <= _TOLERANCE:
            return a
        # In units of a, where the Hessian of the barrier is the identity.
        hessian = cosines * np.outer(a, a) + np.eye(len(a))
        move = np.linalg.solve(hessian, a * gradient)
        decrement = math.sqrt(max(float(move @ (a * gradient)), 0.0))
        # 1 / (1 + decrement) keeps a self-concordant function inside its domain; near the optimum full steps.
        a = a * (1 - (move if decrement < 0.25 else move / (1 + decrement)))
        if a.max() > _DIVERGED:
            return None
    return a if np.abs(a * (cosines @ a) - 1).max() <= 1e-6 else None
