"""Executors of sampling jobs: this process, local processes, a dask cluster, or an executor of the caller."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any, Self

from diabat.checks import ArgumentError, ArgumentTypeError, check_count
from diabat.samplers.distributed.processes import WorkerPool, available_cpus
from diabat.scrubbing import without_secrets

_ADDRESSES = ("tcp://", "tls://", "ucx://", "ws://", "wss://", "inproc://")
# What the parent of this process opened before a fork, kept for ever: to close or collect it would wait for its locks.
_INHERITED: list[Executor] = []


class WorkerLostError(RuntimeError):
    """A worker process ended during a job."""


class Workers:
    """A lazily opened ``concurrent.futures`` executor.

    In a forked child of a process that has used it, processes are started anew; another executor is refused there.

    Args:
        executor: None for processes of this machine; any Executor; ``"dask"`` for the scheduler in dask's
            configuration, or a local cluster if there is none; or the address of a dask scheduler
            (``"tcp://host:8786"``).
        workers: Number of processes, 0 to run in this one, None for one per available processor.

    Raises:
        ValueError: If an argument is out of range, or dask is requested and not installed.
        TypeError: If ``executor`` is neither a string nor an Executor.
    """

    def __init__(self, executor: str | Executor | None = None, workers: int | None = None) -> None:
        check_count("workers", workers, least=0, optional=True)
        if executor is not None:
            _check_executor(executor)
            if workers is not None:
                raise ArgumentError("workers", f"cannot be combined with an executor, got {workers}.")
        self.executor, self.workers = executor, workers
        self._forget()

    def _forget(self) -> None:
        self._process, self._inherited = os.getpid(), False
        self._opened: Executor | None = None
        self._client: Any = None
        self._lost: tuple[type[BaseException], ...] = (BrokenExecutor,)
        self._lock = threading.Lock()

    @property
    def here(self) -> bool:
        """Whether jobs run in this process, one after the other."""
        return self.workers == 0

    @property
    def label(self) -> int | str:
        """Number of processes, or the name of the executor."""
        if self.executor is None:
            return available_cpus() if self.workers is None else self.workers
        return self.executor if isinstance(self.executor, str) else type(self.executor).__name__

    def results(self, function: Callable[..., Any], jobs: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Run ``function(*job)`` for all jobs and yield the results in order.

        Raises:
            ArgumentError: If the executor is that of the parent of this forked process, or this one is daemonic.
            WorkerLostError: If a worker process ended during a job.
            ConnectionError: If the dask scheduler does not answer.
            Exception: The exception of a job; jobs that have not started are cancelled.
        """
        if self.here:
            yield from (function(*job) for job in jobs)
            return
        futures: deque[Future[Any]] = deque()
        try:
            executor = self._open()
            futures.extend(self._submit(executor, function, job) for job in jobs)
            while futures:
                yield futures.popleft().result()
        except self._lost as error:
            raise self._loss() from error
        except (KeyboardInterrupt, SystemExit):
            if isinstance(self._opened, WorkerPool):
                self._opened.kill()
            self.close()
            raise
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """Stop the workers started here; the next job starts new ones.  A given executor stays open."""
        self._leave_parent()
        with self._lock:
            opened, client = self._opened, self._client
            self._opened = self._client = None
        if opened is not None and opened is not self.executor:
            opened.shutdown(wait=True, cancel_futures=True) if client is None else client.close()

    def _leave_parent(self) -> None:
        """Forget what was opened before a fork: its threads and connections are those of the parent."""
        if self._process != os.getpid():
            opened, before = self._opened, self._inherited
            self._forget()
            if opened is not None:
                _INHERITED.append(opened)
            self._inherited = before or opened is not None

    def _open(self) -> Executor:
        self._leave_parent()
        with self._lock:
            if self._opened is None:
                self._opened = self._start()
            return self._opened

    def _start(self) -> Executor:
        if self._inherited and self.executor is not None:
            raise ArgumentError(
                "executor",
                f"expected one that this process opened, got {self.label} of its parent, which does not answer after a "
                "fork; make the sampler in this process.",
            )
        if isinstance(self.executor, Executor):
            return self.executor
        if self.executor is None:
            if multiprocessing.current_process().daemon:
                raise ArgumentError(
                    "workers",
                    f"expected 0 in a daemonic process (of a DataLoader or Pool), which cannot start others, got "
                    f"{self.label}.",
                )
            return WorkerPool(self.workers or available_cpus())
        from distributed import Client, KilledWorker

        try:
            self._client = Client() if self.executor == "dask" else Client(self.executor)
        except OSError as error:
            raise ConnectionError(
                f"executor: expected a dask scheduler at {self.executor}, got no answer ({error})."
            ) from error
        self._lost = (BrokenExecutor, KilledWorker)
        # Jobs draw random numbers: dask must not reuse results of equal arguments.
        executor: Executor = self._client.get_executor(pure=False)
        return executor

    def _submit(self, executor: Executor, function: Callable[..., Any], job: tuple[Any, ...]) -> Future[Any]:
        try:
            return executor.submit(function, *job)
        except self._lost as error:  # raised in order, after the results that already exist
            future: Future[Any] = Future()
            future.set_exception(error)
            return future

    def _loss(self) -> WorkerLostError:
        self.close()
        return WorkerLostError(
            "workers: expected every worker process to finish its job, but one ended during it (killed, "
            "out of memory, crashed, or started by a script whose code is not under if __name__ == '__main__')."
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """A copy, in this process or another, starts separate workers."""
        return {"executor": self.executor, "workers": self.workers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()


def _check_executor(executor: Any) -> None:
    if isinstance(executor, Executor):
        return
    if not isinstance(executor, str):
        raise ArgumentTypeError(
            "executor", f"expected an Executor, 'dask' or a scheduler address, got {type(executor).__name__}."
        )
    shown = repr(without_secrets(executor))
    if executor != "dask" and not executor.startswith(_ADDRESSES):
        raise ArgumentError(
            "executor", f"expected 'dask' or a scheduler address such as tcp://host:8786, got {shown}."
        )
    if shown != repr(executor):  # dask refuses it, too, with the password
        raise ArgumentError(
            "executor", f"expected a scheduler address without user and password, got {shown}."
        )
    if importlib.util.find_spec("distributed") is None:
        raise ArgumentError(
            "executor",
            f"expected the package distributed for {shown}, got none; pip install 'diabat[cluster]'.",
        )
