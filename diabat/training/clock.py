"""How long a run takes, on the wall and on the processor, over all its sessions."""

from __future__ import annotations

import time

from diabat.training.state import TrainState


class Clock:
    """Goes on from the times that a state holds.

    Processor time is that of this process with all its threads, user and system; processes that a sampler starts are
    not in it.
    """

    def __init__(self, state: TrainState) -> None:
        self._wall, self._cpu = time.monotonic(), time.process_time()
        self._before = state.seconds, state.cpu_seconds

    def read(self, state: TrainState) -> None:
        """Put the times so far into a state."""
        seconds, cpu_seconds = self._before
        state.seconds = seconds + time.monotonic() - self._wall
        if cpu_seconds is not None:
            state.cpu_seconds = cpu_seconds + time.process_time() - self._cpu
