"""Compilation of the kernels with numba, and its notice; imported on first use.

Functions are compiled at the first call and cached on disk, once per machine and version.  Compile time grows with the
number of variants and call levels: numba compiles a function again for every literal argument, and LLVM optimises a
function together with all functions that it calls, at every level.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from diabat.compute.loading import collection_paused

with collection_paused():
    import numba
    from numba.core import event

F = TypeVar("F", bound=Callable[..., Any])

NOTICE = (
    "diabat compiles its kernels once per machine: about 3 to 8 s at the first use of each backend, "
    "a minute for all; 'diabat warm-up' compiles them in advance."
)


def jit(function: F, **options: Any) -> F:
    """Compile for calls from Python.

    Args:
        function: The function to compile.
        options: Further options of ``numba.njit``.
    """
    compiled: F = numba.njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True, **options)(
        function
    )
    return compiled


def inner(function: F, **options: Any) -> F:
    """Compile for calls from compiled functions only, without the wrapper for calls from Python."""
    return jit(function, no_cpython_wrapper=True, **options)


def inlined(function: F) -> F:
    """Inline the function into its callers: for large functions with one caller, which would be optimised twice."""
    return inner(function, inline="always")


class _Listener(event.Listener):  # type: ignore[misc]  # numba has no stubs
    """Counts compiled functions of diabat (not those loaded from disk), and logs the notice at the first one."""

    def __init__(self) -> None:
        self.count, self.silent = 0, False

    def on_start(self, event: Any) -> None:
        if not event.data["dispatcher"].py_func.__module__.startswith("diabat."):
            return
        self.count += 1
        if not self.silent:
            self.silent = True
            # Logged to stderr, unless the application has configured a handler.
            logging.getLogger("diabat").warning(NOTICE)

    def on_end(self, event: Any) -> None:
        pass


class _Pause(event.Listener):  # type: ignore[misc]  # numba has no stubs
    """Pauses Python's garbage collector while numba compiles, or loads compiled code: a tenth to a fifth of the time.

    Events are nested, and threads wait for each other inside them.
    """

    def __init__(self) -> None:
        self.depth, self.collecting, self.lock = 0, False, threading.Lock()

    def on_start(self, event: Any) -> None:
        with self.lock:
            if not self.depth:
                self.collecting = gc.isenabled()
                gc.disable()
            self.depth += 1

    def on_end(self, event: Any) -> None:
        with self.lock:
            self.depth -= 1
            if not self.depth and self.collecting:
                gc.enable()


_listener = _Listener()
event.register("numba:compile", _listener)
event.register("numba:compiler_lock", _Pause())


def compiled_functions() -> int:
    """Number of functions compiled by this process so far."""
    return _listener.count


@contextmanager
def unannounced() -> Iterator[None]:
    """Suppress the notice in the block."""
    before, _listener.silent = _listener.silent, True
    try:
        yield
    finally:
        _listener.silent = before
