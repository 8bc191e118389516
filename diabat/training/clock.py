"""How long a run takes, on the wall and on the processor, over all its sessions."""

from __future__ import annotations

import time

from diabat.training.state import TrainState


class Clock:
    """Goes on from the times that a state holds; a clock that is set back stands still, so that no time ever falls.

    Processor time is that of this process with all its threads, user and system; processes that a sampler starts are
    not in it.
    """

    def __init__(self, state: TrainState) -> None:
        self._wall, self._cpu = time.monotonic(), time.process_time()
        self._seconds, self._cpu_seconds = state.seconds, state.cpu_seconds

    def read(self, state: TrainState) -> None:
        """Put the times so far into a state."""
        wall, cpu = time.monotonic(), time.process_time()
        self._seconds += max(0.0, wall - self._wall)
        if self._cpu_seconds is not None:
            self._cpu_seconds += max(0.0, cpu - self._cpu)
        self._wall, self._cpu = wall, cpu
        state.seconds, state.cpu_seconds = self._seconds, self._cpu_seconds
