"""Import of compiled kernels at their first use, with Python's garbage collector paused."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the garbage collector: numba creates so many objects that it would scan all of torch several times."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@cache
def loaded(name: str) -> Any:
    """The module of kernels of this name, imported at the first call.

    A statement ``from ... import ...`` inside a function takes 1 µs at every call, this a twentieth.

    Args:
        name: Full name of a module with compiled functions.
    """
    with collection_paused():
        return import_module(name)
