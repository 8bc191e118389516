"""Backend ``distributed``: another backend, with the batch distributed over processes or a cluster.

The flat batch of N problems is read as [G, Q]: G distinct sets of couplings, and Q problems that share each of them
(the same number for all, because leading dimensions broadcast).  A chunk is a *box* of it: some problems of one J, or
all problems of some J.  So J is sliced, never expanded.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.checks import ArgumentError, ArgumentTypeError, check_count, check_flag
from diabat.files import jsonable
from diabat.ising import Ising, flat_index
from diabat.progress import new_bar
from diabat.samplers.answers import AdjointGradient, AdjointSolution, Moments, Samples
from diabat.samplers.base import Sampler
from diabat.samplers.capabilities import Capabilities, Estimator
from diabat.samplers.diagnostics import Watched, condensed
from diabat.samplers.kept import kept
from diabat.samplers.registry import build_base
from diabat.samplers.seeds import child_seed

__all__ = ["DistributedSampler", "WorkerLostError"]

Job = tuple[str, list[Any], dict[str, Any], int]  # method; h, J, visible and K as arrays; options; seed
Answer = dict[str, Any]  # arrays and plain data by name
_RESULTS = {
    "sample": ("spins", "tracked", "info"),
    "moments": ("probability", "correlation", "log_partition", "standard_error", "num_reads", "info"),
    "adjoint": ("fields", "couplings"),
}
# Of libraries that a worker loads later; torch is already loaded and is set directly.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class WorkerLostError(RuntimeError):
    """A worker process ended during a job."""


class DistributedSampler(Sampler):
    """Splits a batch into chunks, solves them in parallel with the base, and assembles the results.

    Chunks and their seeds (``numpy.random.SeedSequence(seed)``, one child per chunk) depend on the shapes and
    ``chunk``, not on the number of workers: any number, including 0, gives the same tensors.  Draws that are made once
    per batch are made for each chunk.

    Processes start at the first call, are kept for later calls, and stop with :meth:`close`, at the end of a ``with``
    block, or with the program.  Scripts that use them need ``if __name__ == "__main__":``.

    Args:
        sampler: The base: a name, or a sampler.
        options: Options of the base, if ``sampler`` is a name.
        workers: Number of processes with one thread each; 0 runs in this process; None uses one per processor.
        chunk: Largest number of problems per job.
        executor: A ``concurrent.futures.Executor`` in place of processes, also
            ``dask.distributed.Client(address).get_executor()``.
        progress: Show a bar of the finished chunks.

    Attributes:
        base: The base.

    Raises:
        ValueError: If an option has a bad value, or the base has learnable parameters, is persistent or distributed.
        TypeError: If an argument has the wrong type, or the base has no such option.
    """

    name = "distributed"

    # str comes first in the union: a configuration reports the first member.
    def __init__(
        self,
        sampler: str | Sampler = "dqa",
        *,
        options: dict[str, Any] | None = None,
        workers: int | None = None,
        chunk: int = 64,
        executor: Executor | None = None,
        progress: bool = False,
    ) -> None:
        chunk = check_count("chunk", chunk)
        workers = check_count("workers", workers, least=0, optional=True)
        check_flag("progress", progress)
        pool: Any = executor
        if not isinstance(pool, Executor | None):
            got = type(pool).__name__
            raise ArgumentTypeError("executor", "a concurrent.futures.Executor or None", got)
        if executor is not None and workers is not None:
            raise ArgumentError("workers", f"cannot be combined with an executor, got {workers}.")
        why = "which workers do not receive"
        self.base = build_base(sampler, options, samples=False, remembers=False, not_learnable=why)
        if any(isinstance(module, DistributedSampler) for module in self.base.modules()):
            raise ArgumentError("sampler", "a base without workers", f"'{self.base.name}'")
        self.chunk, self.num_reads, self.progress = chunk, self.base.num_reads, progress
        allowed = getattr(os, "sched_getaffinity", None)  # not on every system
        available = len(allowed(0)) if allowed else os.cpu_count() or 1
        self.executor, self.workers = executor, available if workers is None else workers
        self._sent: bytes | None = None
        self._pools: dict[int, Executor] = {}  # by process: a fork copies them, but not their threads

    @property
    def capabilities(self) -> Capabilities:
        """Those of the base without edges and ``exact`` gradients, since autograd does not cross processes."""
        base = self.base.capabilities
        gradients = tuple(name for name in base.gradients if name != "exact")
        only_exact: tuple[Estimator, ...] = ("straight_through",) if base.gradients else ()
        return replace(base, edges=False, gradients=gradients or only_exact)

    @property
    def watched(self) -> tuple[Watched, ...]:
        """The watched entries of the base, over all jobs."""
        return tuple(fact.below("base", self.base.name) for fact in self.base.watched)

    def solution(self, ising: Ising, *, odds: bool = False, seed: int = 0) -> AdjointSolution | None:
        """That of the base, if it is an adjoint one: workers keep nothing between moments and derivative."""
        if odds or "adjoint" not in self.capabilities.gradients:
            return None
        self._require(ising)
        return _ChunkedSolution(self, ising, seed)

    def _moments(self, ising: Ising, correlations: bool, seed: int, log_partition: bool = False) -> Moments:
        answers = self._solve("moments", ising, seed, correlations=correlations, log_partition=log_partition)
        num_reads = answers.replies[0].get("num_reads")
        tensors = {key: answers.assemble(key) for key in _RESULTS["moments"][:4]}
        return Moments(**tensors, visible=ising.visible_mask, num_reads=num_reads, info=answers.info)

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        answers = self._solve("sample", ising, seed, num_reads=num_reads)
        spins, tracked = answers.assemble("spins", num_reads), answers.assemble("tracked")
        return Samples(spins, ising.visible_mask, answers.info, tracked=tracked)

    def _solve(self, method: str, ising: Ising, seed: int, **options: Any) -> _Chunks:
        """Call a method of the base for every chunk; tensors among the options are values per spin."""
        chunks = _Chunks(ising.detach(), self.chunk)
        seeds = [child_seed(seed, number) for number in range(len(chunks.boxes))]
        jobs = [(method, *chunks.cut(box, options), s) for box, s in zip(chunks.boxes, seeds, strict=True)]
        with new_bar(shown=self.progress) as bar:
            chunks.replies = list(bar.track(self._answers(jobs), len(jobs), description=self.base.name))
        infos = [answer.get("info", {}) for answer in chunks.replies]
        chunks.info = {
            "base": condensed([{key: info[key] for key in info if key != "seed"} for info in infos]),
            "chunks": len(seeds),
            "chunk_seeds": seeds,
            "workers": self.workers if self.executor is None else type(self.executor).__name__,
            "busy_s": sum(info.get("wall_s", 0.0) for info in infos),
        }
        return chunks

    def _answers(self, jobs: list[Any]) -> Iterator[Answer]:
        """Answers in the order of the jobs; an error of one cancels those that have not started."""
        if self.executor is None and self.workers == 0:
            yield from map(partial(_run, self.base), jobs)
            return
        dask = sys.modules.get("distributed")
        lost = (BrokenExecutor, dask.KilledWorker) if dask else (BrokenExecutor,)
        try:
            yield from self._pool().map(partial(_run, self._packed()), jobs)
        except lost as error:
            self.close()
            raise WorkerLostError(
                "workers: expected every worker process to finish its job, but one ended during it (killed, out of "
                "memory, crashed, or started by a script whose code is not under if __name__ == '__main__')."
            ) from error
        except (KeyboardInterrupt, SystemExit):
            if self.executor is None:  # also during a job; Python 3.14 has terminate_workers for it
                for process in list((getattr(self._pool(), "_processes", None) or {}).values()):
                    process.terminate()
            self.close()
            raise

    def _pool(self) -> Executor:
        me = os.getpid()
        if me in self._pools:
            return self._pools[me]
        if self.executor is not None and self._pools:
            got = f"{type(self.executor).__name__} of its parent"
            raise ArgumentError("executor", "one that this process opened", got)
        if self.executor is None and multiprocessing.current_process().daemon:
            expected = "0 in a daemonic process, as of a DataLoader or Pool"
            raise ArgumentError("workers", expected, self.workers)
        # Spawned: forked processes would inherit locks of other threads.
        spawn = multiprocessing.get_context("spawn")
        pool = self.executor or ProcessPoolExecutor(self.workers, spawn, initializer=_begin_worker)
        return self._pools.setdefault(me, pool)

    def _packed(self) -> bytes:
        """The same bytes at every call, so that workers keep the base with what it has counted, such as paid reads."""
        try:
            self._sent = self._sent or pickle.dumps(self.base)
            return self._sent
        except Exception as error:  # pickling can raise any type
            got = f"'{self.base.name}' ({' '.join(str(error).split())})"
            expected = "a backend that can be sent to another process"
            raise ArgumentError("sampler", expected, got) from error

    def close(self) -> None:
        """Stop the workers; the next call starts new ones.  A given executor stays open."""
        pool = self._pools.pop(os.getpid(), None)
        if pool is not None and pool is not self.executor:
            pool.shutdown(cancel_futures=True)
        super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """A copy, in this process or another, starts separate workers."""
        return {**vars(self), "_pools": {}}


class _ChunkedSolution(AdjointSolution):
    def __init__(self, sampler: DistributedSampler, ising: Ising, seed: int) -> None:
        self._sampler, self._ising, self._seed = sampler, ising, seed

    @cached_property
    def moments(self) -> Moments:
        return self._sampler.moments(self._ising, seed=self._seed)

    def derivative(self, v: Tensor) -> AdjointGradient:
        """∂L/∂J is summed over chunks that share J."""
        answers = self._sampler._solve("adjoint", self._ising, self._seed, cotangent=v)
        return AdjointGradient(answers.assemble("fields").to(self._ising.fields), answers.add_couplings())


class _Chunks:
    """A batch in boxes of at most ``size`` problems (rows of the flat batch, int64 [q] or [g, q]), and its answers."""

    replies: list[Answer]
    info: dict[str, Any]

    def __init__(self, ising: Ising, size: int) -> None:
        self.ising = ising
        rows = ising.coupling_index().argsort(stable=True).reshape(ising.num_couplings, -1)  # [G, Q]
        if size < rows.shape[1]:
            self.boxes = [box for group in rows for box in group.split(size)]
        else:
            boxes = rows.split(size // rows.shape[1])
            self.boxes = [box if len(box) > 1 else box[0] for box in boxes]

    def cut(self, box: Tensor, options: dict[str, Any]) -> tuple[list[NDArray | None], dict[str, Any]]:
        """h, J, visible and K of a box, and options; h [q, n] with J [1, n, n], or [g, q, n] with J [g, 1, n, n]."""
        ising = self.ising

        def part(t: Tensor | None, order: int) -> NDArray | None:
            if t is None:
                return None
            owners = flat_index(t.shape[:-order], ising.batch_shape)[box]
            return _array(t.reshape(-1, *t.shape[-order:])[owners if order == 1 else owners[..., :1]])

        visible = None if ising.visible is None else ising.visible_mask
        problem = [part(ising.fields, 1), part(ising.matrix, 2), part(visible, 1), part(ising.three_body, 3)]
        return problem, {k: part(v, 1) if isinstance(v, Tensor) else v for k, v in options.items()}

    def assemble(self, key: str, *front: int) -> Any:
        """Results [*front, *batch, *tail] from those of the boxes, on the device of the problem; None without any."""
        if key not in self.replies[0]:
            return None
        first: NDArray = self.replies[0][key]
        tail = first.shape[len(front) + self.boxes[0].ndim :]
        out = np.empty((*front, self.ising.num_problems, *tail), dtype=first.dtype)
        for box, answer in zip(self.boxes, self.replies, strict=True):
            out[(*(slice(None) for _ in front), box.numpy())] = answer[key]
        shape = (*front, *self.ising.batch_shape, *tail)
        return torch.from_numpy(out).reshape(shape).to(self.ising.fields.device)

    def add_couplings(self) -> Tensor | None:
        """Sum of ∂L/∂J of the boxes in the shape of J."""
        J = self.ising.matrix
        if J is None:
            return None
        out = torch.zeros_like(J, device="cpu").reshape(-1, *J.shape[-2:])
        owners = flat_index(J.shape[:-2], self.ising.batch_shape)
        for box, answer in zip(self.boxes, self.replies, strict=True):
            dJ = torch.from_numpy(answer["couplings"]).reshape(-1, *J.shape[-2:])
            out.index_add_(0, owners[box][..., :1].flatten(), dJ.to(out))
        return out.reshape(J.shape).to(J.device)


def _run(sampler: Sampler | bytes, job: Job) -> Answer:
    """Run a job.  It has arrays, not tensors: torch would keep a file descriptor open for each."""
    base = _unpacked(sampler, threading.get_ident()) if isinstance(sampler, bytes) else sampler
    method, problem, options, seed = job
    options = {k: _tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    h, J, visible, K = map(_tensor, problem)
    ising = Ising(h, J, visible, K, check=False)
    if method == "adjoint":
        solution = cast("AdjointSolution", base.solution(ising, seed=seed))
        result: Any = solution.derivative(options["cotangent"])
    else:
        result = getattr(base, method)(ising, seed=seed, **options)
    values = {name: getattr(result, name) for name in _RESULTS[method]}
    return {
        k: _array(v) if isinstance(v, Tensor) else jsonable(v) for k, v in values.items() if v is not None
    }


@kept(lambda packed, thread: len(packed))
def _unpacked(packed: bytes, thread: int) -> Sampler:
    """The base of a sampler, as it sent it to its workers, once for each thread; never read from a file."""
    base: Sampler = pickle.loads(packed)
    return base


def _array(tensor: Tensor) -> NDArray:
    array: NDArray = tensor.detach().cpu().numpy()
    return array


def _tensor(array: NDArray | None) -> Any:
    # Arrays from messages of dask may be read-only, which torch does not support.
    return None if array is None else torch.from_numpy(array if array.flags.writeable else array.copy())


def _begin_worker() -> None:
    """Initialise a process of one thread that ends with its parent, also if the parent was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent stops its workers
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    torch.set_num_threads(1)
    if "numba" in sys.modules:
        sys.modules["numba"].set_num_threads(1)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)
