"""Worker processes: new interpreters with one thread each, which end with the program."""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import parent_process
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

import torch

# Environment variables for libraries that a worker loads later; torch is already loaded and is set directly.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class WorkerPool(ProcessPoolExecutor):
    """A pool of spawned processes; forked ones would inherit locks of other threads."""

    def __init__(self, workers: int) -> None:
        self._spawn = _Spawn()
        super().__init__(workers, mp_context=self._spawn, initializer=begin_worker)

    @property
    def processes(self) -> tuple[SpawnProcess, ...]:
        """All started processes, including those that have ended."""
        return tuple(self._spawn.started)

    def kill(self) -> None:
        """Stop the processes immediately, also during a job."""
        for process in self._spawn.started:
            process.terminate()
        self.shutdown(wait=True, cancel_futures=True)


class _Spawn(SpawnContext):
    """Spawn context that records the started processes, so that they can be stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[SpawnProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: N802 - a class there, called in the same way
        process = SpawnProcess(*args, **kwargs)
        self.started.append(process)
        return process


def begin_worker() -> None:
    """Initialise a process of one thread that ends with its parent."""
    # Ctrl-C in a terminal reaches all processes; the parent stops its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    torch.set_num_threads(1)
    if "numba" in sys.modules:
        sys.modules["numba"].set_num_threads(1)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    """End this worker when its parent ends, also if the parent was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def available_cpus() -> int:
    """Number of processors that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(allowed(0)) if allowed else os.cpu_count() or 1
