"""Worker processes of one program: fresh interpreters with one thread each, which never outlive it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing import parent_process
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

import torch

# Read by libraries that a worker loads later; torch is there already, and is told directly.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class WorkerPool(ProcessPoolExecutor):
    """A pool of spawned processes; forked ones would inherit locks that other threads of this program hold."""

    def __init__(self, workers: int) -> None:
        self._spawn = _Spawn()
        super().__init__(workers, mp_context=self._spawn, initializer=_begin)

    @property
    def processes(self) -> tuple[SpawnProcess, ...]:
        """The processes that were started, also those that have ended."""
        return tuple(self._spawn.started)

    def kill(self) -> None:
        """Stop at once, in the middle of a job."""
        for process in self._spawn.started:
            process.terminate()
        self.shutdown(wait=True, cancel_futures=True)


class InProcess(Executor):
    """Runs each job where it is submitted."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the call now; the future that is returned is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class _Spawn(SpawnContext):
    """Remembers the processes that it starts, so that they can be stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[SpawnProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: N802 - a class there, called in the same way
        process = SpawnProcess(*args, **kwargs)
        self.started.append(process)
        return process


def _begin() -> None:
    """First call in a worker."""
    # Ctrl-C in a terminal reaches all processes; the parent decides what becomes of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    torch.set_num_threads(1)
    if "numba" in sys.modules:
        sys.modules["numba"].set_num_threads(1)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    """End this worker when its parent is gone, also if that was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def available_cpus() -> int:
    """Processors that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(allowed(0)) if allowed else os.cpu_count() or 1
