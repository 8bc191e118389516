"""How compiled functions are compiled, and the line that says so; imported on first use.

Everything is compiled when it is first called and kept on disk, once per machine and version.  Time goes into the
number of versions and of levels: numba compiles a function anew for every literal that it is called with, and LLVM
optimises all that a function calls together with it, at every level of calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numba
from numba.core import event

F = TypeVar("F", bound=Callable[..., Any])

NOTICE = (
    "diabat compiles its kernels once per machine: some 3 to 8 s for each backend that is used for the first time, "
    "a minute for all; 'diabat warm-up' does it ahead."
)


def jit(function: F, **options: Any) -> F:
    """Compile for calls from Python.

    Args:
        function: What is compiled.
        options: Further options of ``numba.njit``.
    """
    compiled: F = numba.njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True, **options)(
        function
    )
    return compiled


def inner(function: F, **options: Any) -> F:
    """Compile for calls from compiled functions only: no code around it that unpacks Python's objects."""
    return jit(function, no_cpython_wrapper=True, **options)


def inlined(function: F) -> F:
    """Write the function into its callers: for large ones with one caller, which would be optimised twice."""
    return inner(function, inline="always")


class _Listener(event.Listener):  # type: ignore[misc]  # numba has no stubs
    """Counts the functions of diabat that are compiled (not those read from disk), and says so at the first."""

    def __init__(self) -> None:
        self.count, self.silent = 0, False

    def on_start(self, event: Any) -> None:
        if not event.data["dispatcher"].py_func.__module__.startswith("diabat."):
            return
        self.count += 1
        if not self.silent:
            self.silent = True
            # To stderr, unless the application has a handler of its own.
            logging.getLogger("diabat").warning(NOTICE)

    def on_end(self, event: Any) -> None:
        pass


_listener = _Listener()
event.register("numba:compile", _listener)


def compiled_functions() -> int:
    """Number of functions that this process has compiled so far."""
    return _listener.count


@contextmanager
def unannounced() -> Iterator[None]:
    """Compile without the line that says so."""
    before, _listener.silent = _listener.silent, True
    try:
        yield
    finally:
        _listener.silent = before
