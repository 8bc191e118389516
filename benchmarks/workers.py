"""Worker processes that compute the files of a study, with one progress bar for each stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.managers import SyncManager
from queue import Queue
from typing import Any

from diabat.progress import new_bar
from diabat.samplers.distributed.processes import WorkerPool, begin_worker

Job = tuple[Callable[..., None], tuple[Any, ...]]
"""A function of a module and its arguments; it also gets a function to call with the steps it has done."""


@dataclass(frozen=True)
class Workers:
    """Processes of one thread each, and the queue of the steps that they have done."""

    pool: WorkerPool
    steps: Queue[int]

    def run(self, title: str, jobs: Sequence[Job], total: int) -> None:
        """Run jobs of ``total`` steps with a progress bar; nothing is shown without jobs."""
        if not jobs:
            return
        running: set[Future[None]] = {
            self.pool.submit(_work, compute, arguments, self.steps) for compute, arguments in jobs
        }
        with new_bar(percent=True) as bar:
            task = bar.add_task(title, total=total)
            while running:
                done, running = wait(running, timeout=0.5)
                for finished in done:
                    finished.result()
                while not self.steps.empty():
                    bar.advance(task, self.steps.get())
            bar.update(task, completed=total)


@contextmanager
def started(count: int) -> Iterator[Workers]:
    """Worker processes, which end with the block and with this process."""
    pool = WorkerPool(count)
    try:
        manager = SyncManager(ctx=get_context("spawn"))
        manager.start(begin_worker)  # it would outlive a program that is killed
        with manager:
            yield Workers(pool, manager.Queue())
    finally:
        pool.kill()


def _work(compute: Callable[..., None], arguments: tuple[Any, ...], steps: Queue[int]) -> None:
    compute(*arguments, steps.put)
