"""How losses on heads are weighted: Nash bargaining on their gradients, a schedule in three phases, a running scale.

Source of the bargaining (Nash-MTL): Navon et al., "Multi-Task Learning as a Bargaining Game" (2022), claim 3.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from diabat.checks import ArgumentError, check_positive, is_number

_STEPS = 200
_TOLERANCE = 1e-12
# The optimum has |C a|_k = 1 / a_k; weights beyond this mean a combination of tasks that cancels.
_DIVERGED = 1e7


@dataclass(frozen=True)
class Bargain:
    """Nash weights of several tasks.

    Attributes:
        weights: α [K] float64; 0 for tasks without gradient.
        residual: Largest |α_k (G α)_k - 1| over tasks with a gradient; infinite if there is no agreement.
        steps: Newton steps.
        opposed: The two tasks with the most opposed gradients if there is no agreement, else None; the weights are
            then 1 / ‖g_0‖ for the first task with a gradient and 0 for the others.
    """

    weights: Tensor
    residual: float
    steps: int
    opposed: tuple[int, int] | None


def nash_weights(gramian: Tensor) -> Bargain:
    """The weights α > 0 with G α = 1 / α elementwise, which maximise Σ_k log(g_kᵀ Σ_l α_l g_l) up to scale.

    They minimise ½ αᵀ G α - Σ log α, a convex and self-concordant function: damped Newton steps on the cosine matrix
    converge from any start.  Multiplying g_k by c > 0 divides α_k by c, so that the update Σ α_k g_k does not depend
    on the scale of any loss.  At the solution its norm is √K.

    There is no solution if some combination of the gradients with weights >= 0 is zero, for example if two gradients
    are exactly opposed: no step then improves every task.  This is reported in ``opposed``.

    Args:
        gramian: G [K, K] with G_kl = ⟨g_k, g_l⟩, of K tasks.

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
    found, residual, steps = _solve((cosines + cosines.T) / 2)
    weights, opposed = np.zeros(len(matrix)), None
    if np.isfinite(residual):
        weights[active] = found / norms
    else:
        weights[active[0]] = 1 / norms[0]
        first, second = sorted(divmod(int(cosines.argmin()), len(active)))
        opposed = (int(active[first]), int(active[second]))
    return Bargain(torch.from_numpy(weights), residual, steps, opposed)


def _solve(cosines: np.ndarray) -> tuple[np.ndarray, float, int]:
    """Minimiser a > 0 of ½ aᵀ C a - Σ log a, the largest |a (C a) - 1|, and the number of steps."""
    a = np.ones(len(cosines))
    for step in range(_STEPS):
        gradient = cosines @ a - 1 / a
        residual = float(np.abs(a * gradient).max())
        if residual <= _TOLERANCE:
            return a, residual, step
        # In units of a, where the Hessian of the barrier is the identity.
        hessian = cosines * np.outer(a, a) + np.eye(len(a))
        move = np.linalg.solve(hessian, a * gradient)
        decrement = math.sqrt(max(float(move @ (a * gradient)), 0.0))
        # 1 / (1 + decrement) keeps a self-concordant function inside its domain; near the optimum full steps.
        a = a * (1 - (move if decrement < 0.25 else move / (1 + decrement)))
        if a.max() > _DIVERGED:
            return a, float("inf"), step + 1
    residual = float(np.abs(a * (cosines @ a) - 1).max())
    return a, residual if residual <= 1e-6 else float("inf"), _STEPS


def three_phases(progress: float, warmup: float = 0.02, cooldown: float = 0.879) -> float:
    """Factor of λ: from 0 to 1 until ``warmup``, 1 until ``cooldown``, from 1 to 0 until 1 (app. A.1).

    Args:
        progress: Share of the training that is done, 0 .. 1.
        warmup: Share at which the factor reaches 1.
        cooldown: Share from which it falls.

    Raises:
        ArgumentError: A share is outside 0 .. 1, or ``warmup`` is above ``cooldown``.
    """
    for name, value in (("progress", progress), ("warmup", warmup), ("cooldown", cooldown)):
        if not is_number(value) or not 0 <= value <= 1:
            raise ArgumentError(name, f"expected a number in 0 .. 1, got {value!r}.")
    if warmup > cooldown:
        raise ArgumentError("warmup", f"expected at most cooldown = {cooldown}, got {warmup}.")
    if progress < warmup:
        return progress / warmup
    if progress > cooldown:
        return (1 - progress) / (1 - cooldown)
    return 1.0


@dataclass
class RunningScale:
    """Normalisation of a loss by its running mean: L_t · target / ema_t (eq. 34 and below).

    ema_t = decay · L_t + (1 - decay) · ema_{t-1}, ema_0 = target; ema_t is a constant of the gradient.  Under
    gradient accumulation L_t is the mean of the micro-batches of the step so far.

    Attributes:
        decay: Share of the new value, in (0, 1].
        target: Value around which the normalised loss stays.
        ema: ema of the last completed step.
    """

    decay: float = 0.1
    target: float = 20.0
    ema: float = 20.0
    _sum: float = 0.0
    _count: int = 0

    def __post_init__(self) -> None:
        if not is_number(self.decay) or not 0 < self.decay <= 1:
            raise ArgumentError("ema_decay", f"expected a number in (0, 1], got {self.decay!r}.")
        check_positive("ema_target", self.target)

    def factor(self, loss: float) -> float:
        """Add the loss of a micro-batch to the running mean, and return target / ema_t.

        Raises:
            ArgumentError: The running mean would not be positive.
        """
        self._sum, self._count = self._sum + loss, self._count + 1
        mean = self._current()
        if not mean > 0:
            raise ArgumentError("loss", f"expected a positive running mean to divide by, got {mean}.")
        return self.target / mean

    def finish(self) -> None:
        """End the step: its losses become part of ``ema``."""
        if self._count:
            self.ema = self._current()
        self._sum, self._count = 0.0, 0

    def _current(self) -> float:
        return self.decay * self._sum / self._count + (1 - self.decay) * self.ema
