"""Import, loading and compilation of kernels: without Python's garbage collector, and not on the clock of solvers."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from importlib import import_module
from typing import Any


class _Preparation:
    """A block that prepares kernels: the garbage collector is paused, and the time is added up.

    numba creates so many objects that the collector would scan all of torch several times.  Blocks are nested, and
    threads wait for each other inside them.

    Attributes:
        display: Makes what is shown from the first compilation to the end of the outermost block; None for a notice.
    """

    def __init__(self) -> None:
        self.display: Callable[[], AbstractContextManager[Any]] | None = None
        self._shown: AbstractContextManager[Any] | None = None
        self._lock = threading.Lock()
        self._depth, self._began, self._past, self._collecting = 0, 0.0, 0.0, False

    def __enter__(self) -> None:
        with self._lock:
            if not self._depth:
                self._began, self._collecting = time.perf_counter(), gc.isenabled()
                gc.disable()
            self._depth += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._depth -= 1
            if not self._depth:
                if self._shown is not None:
                    self._shown.__exit__(None, None, None)
                    self._shown = None
                if self._collecting:
                    gc.enable()
                self._past += time.perf_counter() - self._began

    def show(self) -> None:
        """Show that kernels are compiled, until the outermost block ends."""
        if self.display is not None and self._shown is None:
            self._shown = self.display()
            self._shown.__enter__()

    def clock(self) -> float:
        """Seconds of a clock that stands still while kernels are prepared; only differences have a meaning."""
        with self._lock:
            return (self._began if self._depth else time.perf_counter()) - self._past


preparing = _Preparation()
"""The blocks of this process."""


@cache
def loaded(name: str) -> Any:
    """The module of kernels of this name, imported at the first call.

    A statement ``from ... import ...`` inside a function takes 1 µs at every call, this a twentieth.

    Args:
        name: Full name of a module with compiled functions.
    """
    with preparing:
        return import_module(name)
