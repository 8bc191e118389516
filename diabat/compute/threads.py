"""Ranges of work, and threads that take them; the threads are kept between calls.

Compiled kernels release the interpreter, and no number of a range depends on the others, so that results are the same
on any number of threads.
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
    """Cut ``count`` items into consecutive ranges of about equal length, at most ``parts`` and none of them empty."""
    parts = min(parts, count)
    return [slice(count * i // parts, count * (i + 1) // parts) for i in range(parts)]


def ranges_of_equal_work(work: NDArray[Any], parts: int) -> list[slice]:
    """Cut items into consecutive ranges of about equal work, at most ``parts`` and none of them empty.

    Args:
        work: What each item costs, in any unit, [items].
        parts: Most ranges, at least 1.
    """
    total = np.cumsum(work)
    edges = np.searchsorted(total, total[-1] * np.arange(1, parts) / parts, side="right")
    cuts = sorted({0, len(work), *(int(e) for e in edges)})
    return [slice(a, b) for a, b in pairwise(cuts)]


def run_parts(
    parts: Sequence[Part], scratch: Callable[[Part], Scratch], call: Callable[[Part, Scratch], object]
) -> None:
    """Call something for every part, the first on this thread and the others on kept threads.

    Args:
        parts: Disjoint work, at least one part.
        scratch: Memory for a part, taken on the calling thread: what another thread takes is given back to the
            system when it is freed, and has to be cleared again at the next call.
        call: Does one part; a compiled kernel, which does not call this function again.
    """
    memory = [scratch(part) for part in parts]
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
    """Threads that sleep between calls, started one by one as they are needed; more than processors gain nothing."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="diabat")


if sys.platform != "win32":
    # A forked child has none of its parent's threads.
    os.register_at_fork(after_in_child=_pool.cache_clear)
