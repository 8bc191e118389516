"""Runs in several processes at a time, which stop together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from typing import Any, TypeVar

from diabat.samplers.distributed.processes import WorkerPool
from diabat.training import TrainingInterrupted

R = TypeVar("R")


def in_processes(function: Callable[..., R], calls: Sequence[tuple[Any, ...]], processes: int) -> Iterator[R]:
    """Results of a function that trains, each as soon as it is there.

    After Ctrl-C, or when a run fails, the others save their state and stop.  If this process is killed, the workers
    end too.

    Args:
        function: Picklable.
        calls: Its arguments.
        processes: Worker processes, one thread each.
    """
    with WorkerPool(processes) as pool:
        futures = [pool.submit(_call, function, arguments) for arguments in calls]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.kill()
            raise


_interrupted = False


def _call(function: Callable[..., R], arguments: tuple[Any, ...]) -> R:
    """Call, unless the last call of this worker was interrupted: the pool hands out the next one in advance."""
    global _interrupted
    if _interrupted:
        raise TrainingInterrupted("not begun, because another run was interrupted.")
    try:
        return function(*arguments)
    except TrainingInterrupted:
        _interrupted = True
        raise
