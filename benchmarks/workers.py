"""Worker processes that compute the pieces of the study, with one progress bar for each stage."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.managers import SyncManager
from pathlib import Path
from queue import Queue

from benchmarks.heads_study.core import Piece, Sizes
from benchmarks.heads_study.stages import STAGES, compute, pieces
from diabat.progress import new_bar
from diabat.samplers.distributed.processes import WorkerPool, begin_worker


@dataclass(frozen=True)
class Workers:
    """Processes of one thread each, and the queue of the steps that they have done."""

    pool: WorkerPool
    steps: Queue[int]

    def run(self, stage: str, seeds: int, folder: Path, sizes: Sizes) -> None:
        """Compute what a stage lacks, with a progress bar."""
        missing = [piece for piece in pieces(stage, seeds) if not piece.path(folder).exists()]
        if not missing:
            return
        total = STAGES[stage][1](sizes) * len(missing)
        running: set[Future[None]] = {
            self.pool.submit(_work, piece, folder, sizes, self.steps) for piece in missing
        }
        with new_bar(percent=True) as bar:
            task = bar.add_task(stage, total=total)
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


def _work(piece: Piece, folder: Path, sizes: Sizes, steps: Queue[int]) -> None:
    compute(piece, folder, sizes, steps.put)
