"""Processes and clusters: the same tensors as in this process, one thread each, and nobody left behind.

A worker process imports torch, about 2 s of one core: the tests share two of them where they can.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from diabat.checks import ArgumentError
from diabat.ising import Ising
from diabat.samplers import Samples, distributed
from diabat.samplers.distributed import DistributedSampler, WorkerLostError
from diabat.testing import ReferenceSampler
from diabat.testing.problems import make_problem


class Fragile(ReferenceSampler):
    """Its process dies of a field of 7, and sleeps for ten minutes at one of 8; says who and how it is."""

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        most = float(ising.fields.max())
        if most == 7.0:
            os._exit(1)
        if most == 8.0:
            time.sleep(600)
        spins = super()._sample(ising, num_reads, seed).spins
        facts = {
            "pid": os.getpid(),
            "threads": torch.get_num_threads(),
            "numba": os.getenv("NUMBA_NUM_THREADS"),
        }
        return Samples(spins, ising.visible_mask, facts)


def problem(*fields: float) -> Ising:
    """One problem of one spin for each field."""
    return Ising(torch.tensor(fields)[:, None])


@pytest.fixture(scope="module")
def two() -> Iterator[DistributedSampler]:
    with DistributedSampler(Fragile(), workers=2, chunk=1) as sampler:
        yield sampler


@pytest.mark.slow
def test_processes_give_the_tensors_of_this_process(two: DistributedSampler) -> None:
    """float32 fields with J per head and hidden spins: reads and moments, bit by bit, in the same processes."""
    plain = make_problem((3, 4), 5, lead="heads", seed=1, dtype=torch.float32)
    ising = Ising(plain.fields, plain.couplings, torch.ones(4, 5, dtype=torch.bool).tril())
    results = []
    for where in ({"workers": 0}, {"executor": two._pool()}):
        backend = DistributedSampler("exact", chunk=3, **where)
        moments = backend.moments(ising, correlations=True, seed=1)
        results.append([backend.sample(ising, 10, seed=1).spins, moments.probability, moments.correlation])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    assert [part.dtype for part in results[1]] == [torch.int8, torch.float32, torch.float32]
    backend.close()  # a given executor stays open
    first, again = (two.sample(problem(0.0, 1.0, 2.0), 3, seed=s).info["base"] for s in (1, 2))
    assert (first["threads"], first["numba"]) == (1, "1")
    for info in (first, again):
        assert os.getpid() not in {info["pid"]} if isinstance(info["pid"], int) else set(info["pid"].values())
    assert len(two._pool()._processes) <= 2  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_dead_worker_is_one_sentence_and_the_next_call_starts_another() -> None:
    with DistributedSampler(Fragile(), workers=1, chunk=1) as sampler:
        with pytest.raises(
            WorkerLostError, match=r"^workers: expected every worker process to finish its job"
        ):
            sampler.sample(problem(0.0, 7.0, 1.0), 3)
        assert sampler.sample(problem(0.0), 3).num_reads == 3
        _interrupt(sampler)


def _interrupt(sampler: DistributedSampler) -> None:
    """Ctrl-C while a long job runs: it is stopped, and the processes are gone."""
    processes = list(sampler._pool()._processes.values())  # type: ignore[attr-defined]
    assert all(process.is_alive() for process in processes)
    start = time.monotonic()
    main = threading.main_thread().ident
    threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT)).start()
    # A process in the background ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            sampler.sample(problem(0.0, 8.0), 1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not any(process.is_alive() for process in processes)
    assert time.monotonic() - start < 300  # not the end of the job


SCRIPT = """
import torch, diabat
from test_workers import Fragile, problem

if __name__ == "__main__":
    sampler = diabat.sampler("distributed", sampler=Fragile(), workers=1)
    print(sampler.sample(problem(0.0), 1).info["base"]["pid"], flush=True)
    sampler.sample(problem(8.0), 1)
"""


@pytest.mark.slow
def test_a_killed_program_leaves_no_worker_behind(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    ) as program:
        worker = int(program.stdout.readline())
        program.kill()
    for _ in range(600):
        if not _alive(worker):
            return
        time.sleep(0.1)
    os.kill(worker, 9)
    raise AssertionError("the worker lives on")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A process that nobody waited for is there in name only.
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"


def in_child(check: Callable[[], bool]) -> int:
    """Exit code of a forked child: 0 if the check is true, 1 if it is not or raises; -9 if it hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later: this process has threads
        child = os.fork()
    if not child:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(1)
    for _ in range(200):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_starts_its_own_workers_or_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads in place of processes start at once, and are as absent from the child as the thread of a pool is."""
    monkeypatch.setattr(
        distributed, "ProcessPoolExecutor", lambda workers, *_, **__: ThreadPoolExecutor(workers)
    )
    monkeypatch.setattr(distributed, "_run", lambda base, job: abs(job))
    given = ThreadPoolExecutor(1)
    own: Any
    theirs: Any
    own, theirs = DistributedSampler("exact", workers=1), DistributedSampler("exact", executor=given)
    for one in (own, theirs):
        assert list(one._answers([-1])) == [1]
    assert pickle.loads(pickle.dumps(own))._pools == {}  # a copy starts its own

    def answered() -> bool:
        found = list(own._answers([-2]))
        own.close()
        return found == [2]

    def refused() -> bool:
        sentence = (
            r"^executor: expected one that this process opened, got ThreadPoolExecutor of its parent\.$"
        )
        with pytest.raises(ArgumentError, match=sentence):
            list(theirs._answers([-2]))
        theirs.close()
        return True

    assert in_child(answered) == 0
    assert in_child(lambda: refused() and in_child(refused) == 0) == 0  # also in a child of the child
    for one in (own, theirs):
        assert list(one._answers([-3])) == [3]
    own.close()
    given.shutdown()


def test_a_daemonic_process_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    here: Any = multiprocessing.current_process()
    monkeypatch.setitem(here._config, "daemon", True)
    with pytest.raises(ArgumentError, match=r"^workers: expected 0 in a daemonic process, .*, got 3\.$"):
        DistributedSampler("exact", workers=3).sample(problem(0.0), 1)


def test_a_dask_cluster() -> None:
    """A cluster of threads, which starts at once; it stays open, and its lost workers are named."""
    from distributed import Client, KilledWorker, LocalCluster

    ising = make_problem((3, 4), 5, lead="heads", seed=2)
    want = DistributedSampler("exact", workers=0, chunk=2).sample(ising, 6, seed=3)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        executor = client.get_executor(pure=False)
        with DistributedSampler("exact", executor=executor, chunk=2) as backend:
            samples = backend.sample(ising, 6, seed=3)
        assert torch.equal(samples.spins, want.spins)
        assert samples.info["workers"] == type(executor).__name__
        assert torch.equal(backend.sample(ising, 6, seed=3).spins, want.spins)

    class Lost(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_exception(KilledWorker("job", None, 3))
            return future

    with pytest.raises(WorkerLostError, match=r"^workers: expected every worker process to finish its job"):
        DistributedSampler("exact", executor=Lost()).sample(ising, 6)


def test_results_come_in_order_and_an_error_cancels_the_rest() -> None:
    class Later(Executor):
        """Ends its jobs last one first."""

        def __init__(self, jobs: int) -> None:
            self.jobs, self.futures = jobs, list[Future[Any]]()

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            self.futures.append(Future())
            if len(self.futures) == self.jobs:
                for place in reversed(range(self.jobs)):
                    self.futures[place].set_result(place)
            return self.futures[-1]

    jobs: list[Any] = [None] * 3
    answers: Any = DistributedSampler("exact", executor=Later(3))._answers(jobs)
    assert list(answers) == [0, 1, 2]
    never = Later(4)
    answers = DistributedSampler("exact", executor=never)._answers(jobs)
    threading.Timer(0.1, lambda: never.futures[0].set_exception(ValueError("no"))).start()
    with pytest.raises(ValueError, match="no"):
        next(answers)
    assert [future.cancelled() for future in never.futures] == [False, True, True]


def test_processors() -> None:
    assert 1 <= DistributedSampler("exact").workers <= (os.cpu_count() or 1)


class Counting(ReferenceSampler):
    """Counts its calls, as a backend does that spends a budget."""

    calls = 0

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        self.calls += 1
        return Samples(
            super()._sample(ising, num_reads, seed).spins, ising.visible_mask, {"call": self.calls}
        )


def test_a_worker_keeps_what_the_base_has_counted() -> None:
    base = Counting()
    with ThreadPoolExecutor(1) as thread:
        sampler = DistributedSampler(base, executor=thread)
        base.calls = 5  # before it is sent
        counts = [sampler.sample(problem(0.0), 1, seed=s).info["base"]["call"] for s in range(2)]
        base.calls = 50
        counts.append(sampler.sample(problem(0.0), 1).info["base"]["call"])
    assert counts == [6, 7, 8]
    assert base.calls == 50
