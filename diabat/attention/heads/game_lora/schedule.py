"""How the weights of the head losses change during training: three phases, and a running scale of a loss."""

from __future__ import annotations

from dataclasses import dataclass

from diabat.checks import ArgumentError, check_positive, is_number


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
