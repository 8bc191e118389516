"""Many independent sampling jobs on worker processes or a cluster, with results in order; for scripts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from concurrent.futures import Executor, Future, wait
from typing import Any, NamedTuple

import torch

from diabat.checks import ArgumentError, ArgumentTypeError, check_count
from diabat.ising import Ising
from diabat.samplers.answers import Samples
from diabat.samplers.base import Sampler, UnsupportedError
from diabat.samplers.distributed.jobs import Answer, Job, make_job, pack, run, run_packed
from diabat.samplers.distributed.workers import Workers
from diabat.samplers.registry import build_base, refuse_memory
from diabat.samplers.seeds import child_seed, draw_seed

Progress = Callable[[int, int | None], None]
"""Called with the number of finished jobs and the total number, None if it is unknown."""


class SampleJob(NamedTuple):
    """One call of ``sample``.

    Attributes:
        problem: The problems.
        num_reads: Reads per problem.
        seed: Seed; None derives one from the common seed and the index of the job.
        name: Name for error messages.
    """

    problem: Ising
    num_reads: int
    seed: int | None = None
    name: str | None = None


class JobError(RuntimeError):
    """A job failed; ``__cause__`` is the reason.

    Attributes:
        index: Index of the job.
        name: Its name, if it has one.
        finished: Results of later jobs that were finished or running, by index.
    """

    def __init__(self, index: int, name: str | None, reason: str, finished: Mapping[int, Samples]) -> None:
        super().__init__(f"job {index}{f' ({name})' if name else ''}: {reason}")
        self.index, self.name, self.finished = index, name, dict(finished)


def map_samples(
    sampler: str | Sampler,
    jobs: Iterable[SampleJob],
    *,
    options: dict[str, Any] | None = None,
    seed: int | None = None,
    workers: int | None = None,
    executor: str | Executor | None = None,
    ahead: int = 256,
    progress: Progress | None = None,
) -> Iterator[Samples]:
    """Draw reads of many jobs in parallel.

    The results do not depend on the number of workers: job i without a seed gets that of
    ``SeedSequence(seed).spawn(...)[i]``, recorded in its ``info``.  Workers that are started here stop after the
    last result, or when the iterator is closed; to keep them for several calls pass
    ``executor=WorkerPool(4)`` of :mod:`diabat.samplers.distributed.processes`.

    Args:
        sampler: A backend that draws samples: a name, or a sampler.
        jobs: The jobs; an iterator is read at most ``ahead`` jobs before the results.
        options: Options of the backend, if ``sampler`` is a name.
        seed: Common seed; None draws one.
        workers: As for :class:`~diabat.samplers.distributed.sampler.DistributedSampler`.
        executor: As for ``DistributedSampler``.
        ahead: Jobs submitted before the first result is taken, at least 1.
        progress: Called in this thread when jobs finish, while the iterator waits for a result.

    Returns:
        Iterator over the samples of each job, in the order of the jobs.

    Raises:
        UnsupportedError: If the backend does not draw samples.
        JobError: During iteration, at the first job that failed or whose worker was lost.  Jobs that have not
            started are cancelled; the results of running and finished jobs are in its ``finished``.
        ValueError: If an argument is out of range, or the backend is persistent.
        TypeError: If an argument, or a job, has the wrong type.
    """
    check_count("ahead", ahead)
    base = build_base(sampler, options)
    refuse_memory(base)
    if not base.capabilities.samples:
        raise UnsupportedError(f"sampler '{base.name}' computes moments only and cannot draw samples.")
    total = len(jobs) if isinstance(jobs, Sized) else None
    tell = None if progress is None else lambda done: progress(done, total)
    return _Campaign(base, Workers(executor, workers), draw_seed(seed)).run(jobs, ahead, tell)


class _Campaign:
    """The submitted jobs and their futures, in the same order."""

    def __init__(self, base: Sampler, workers: Workers, seed: int) -> None:
        self.base, self.workers, self.seed = base, workers, seed
        self.handed: deque[tuple[int, SampleJob]] = deque()
        self.waiting: deque[Future[Answer]] = deque()

    def run(
        self, jobs: Iterable[SampleJob], ahead: int, tell: Callable[[int], None] | None
    ) -> Iterator[Samples]:
        function = run if self.workers.here else run_packed
        calls = self._calls(jobs)
        with self.workers:
            for future in self.workers.finished(
                function, calls, ahead=ahead, progress=tell, waiting=self.waiting
            ):
                index, job = self.handed.popleft()
                try:
                    answer = self.workers.result(future)
                except Exception as error:
                    raise JobError(index, job.name, str(error), self._rest()) from error
                yield _samples(job, answer)

    def _calls(self, jobs: Iterable[SampleJob]) -> Iterator[tuple[Sampler | bytes, Job]]:
        sent: Sampler | bytes = self.base if self.workers.here else pack(self.base)
        job: Any  # the caller may not be type-checked
        for index, job in enumerate(jobs):
            if not isinstance(job, SampleJob) or not isinstance(job.problem, Ising):
                kind = type(getattr(job, "problem", job)).__name__
                raise ArgumentTypeError(
                    "jobs", f"expected a SampleJob with an Ising, got a {kind} at place {index}."
                )
            try:
                check_count("num_reads", job.num_reads)
                seed = child_seed(self.seed, index) if job.seed is None else draw_seed(job.seed)
            except ValueError as error:
                raise ArgumentError("jobs", f"place {index}: {error}") from error
            self.handed.append((index, job))
            yield sent, make_job("sample", job.problem, seed, num_reads=job.num_reads)

    def _rest(self) -> dict[int, Samples]:
        """Results of the jobs after the failed one."""
        under_way = [future for future in self.waiting if not future.cancel()]
        wait(under_way)
        return {
            index: _samples(job, future.result())
            for (index, job), future in zip(self.handed, self.waiting, strict=True)
            if not future.cancelled() and future.exception() is None
        }


def _samples(job: SampleJob, answer: Answer) -> Samples:
    device = job.problem.fields.device
    tensors = {name: torch.from_numpy(array).to(device) for name, array in answer.arrays.items()}
    mask = job.problem.visible_mask
    return Samples(**tensors, visible=mask, info=answer.info, ising=job.problem.detach())
