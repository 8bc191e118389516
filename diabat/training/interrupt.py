"""Ctrl-C between two steps instead of in the middle of one."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class InterruptFlag:
    """Turns the first Ctrl-C into a request, granted when a step is complete; a second one is immediate.

    A step that stops half-way leaves some weights updated and others not, which no checkpoint should hold.

    Attributes:
        requested: Whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.requested = False
        # Signals reach the main thread only, and only it may set handlers.
        self._active = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        if self._active:
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._active:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
