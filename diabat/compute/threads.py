"""Division of work into ranges, and a thread pool that is kept between calls.

Compiled kernels release the GIL, and ranges are independent of each other: results are the same on any number of
threads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Part = TypeVar("Part")
Scratch = TypeVar("Scratch")


def equal_ranges(count: int, parts: int) -> list[slice]:
    """Divide ``count`` items into at most ``parts`` nonempty consecutive ranges of about equal length."""
    parts = min(parts, count)
    return [slice(count * i // parts, count * (i + 1) // parts) for i in range(parts)]


def ranges_of_equal_work(work: NDArray[Any], parts: int) -> list[slice]:
    """Divide items into at most ``parts`` nonempty consecutive ranges of about equal work.

    Args:
        work: Cost of each item, in any unit, [items].
        parts: Largest number of ranges, at least 1.
    """
    if parts == 1:
        return [slice(0, len(work))]
    total = np.cumsum(work)
    edges = np.searchsorted(total, total[-1] * np.arange(1, parts) / parts, side="right")
    cuts = sorted({0, len(work), *(int(e) for e in edges)})
    return [slice(a, b) for a, b in pairwise(cuts)]


def run_parts(
    parts: Sequence[Part], scratch: Callable[[Part], Scratch], call: Callable[[Part, Scratch], object]
) -> None:
    """Call a function for every part: the first on this thread, the others on pool threads.

    Args:
        parts: Disjoint work, at least one part.
        scratch: Allocates memory for a part, on the calling thread: memory allocated by other threads is returned to
            the system when it is freed, and the system clears it again at the next call.
        call: Processes one part; a compiled kernel, which must not call this function again.
    """
    memory = list(map(scratch, parts))
    if len(parts) == 1:
        call(parts[0], memory[0])
        return
    others = [_pool().submit(call, *one) for one in zip(parts[1:], memory[1:], strict=True)]
    try:
        call(parts[0], memory[0])
    finally:
        wait(others)
    for other in others:
        other.result()


@cache
def _pool() -> ThreadPoolExecutor:
    """The thread pool; threads start as they are needed and sleep between calls, at most one per processor."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="diabat")


if sys.platform != "win32":
    # A forked child does not have the threads of its parent.
    os.register_at_fork(after_in_child=_pool.cache_clear)
