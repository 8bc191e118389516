"""Ctrl-C and the polite kill (SIGTERM) between two steps instead of in the middle of one."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptFlag:
    """Turns the first SIGINT or SIGTERM into a request, granted when a step is complete; a second one is immediate.

    A step that stops half-way leaves some weights updated and others not, which no checkpoint should hold.  SIGTERM is
    what job schedulers send before they kill.

    Attributes:
        requested: Whether one has come.
    """

    def __init__(self) -> None:
        self.requested = False
        # Signals reach the main thread only, and only it may set handlers.
        self._active = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        if self._active:
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._active:
            for number, handler in self._previous.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
