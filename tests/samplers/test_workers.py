"""Processes and clusters: the same tensors as in this process, one thread each, and nobody left behind.

A worker process imports torch, about 2 s of one core: the tests share two of them where they can.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from diabat.checks import ArgumentError
from diabat.ising import Ising
from diabat.samplers.distributed import DistributedSampler, workers
from diabat.samplers.distributed.processes import WorkerPool, available_cpus
from diabat.samplers.distributed.workers import WorkerLostError, Workers
from diabat.testing.problems import make_problem


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2) as two:
        yield two


def test_processes_give_the_tensors_of_this_process(pool: WorkerPool) -> None:
    """float32 fields with J per head and hidden spins: reads and moments, bit by bit."""
    plain = make_problem((3, 4), 5, lead="heads", seed=1, dtype=torch.float32)
    ising = Ising(plain.fields, plain.couplings, torch.ones(4, 5, dtype=torch.bool).tril())
    here = DistributedSampler("exact", workers=0, chunk=3, read_chunk=4)
    there = DistributedSampler("exact", executor=pool, chunk=3, read_chunk=4)
    results = []
    for backend in (here, there):
        moments = backend.moments(ising, correlations=True, seed=1)
        assert moments.correlation is not None
        results.append([backend.sample(ising, 10, seed=1).spins, moments.probability, moments.correlation])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    assert [part.dtype for part in results[1]] == [torch.int8, torch.float32, torch.float32]


def test_a_worker_has_one_thread(pool: WorkerPool) -> None:
    assert pool.submit(torch.get_num_threads).result() == 1
    assert pool.submit(os.getenv, "NUMBA_NUM_THREADS").result() == "1"


def test_a_given_executor_stays_open(pool: WorkerPool) -> None:
    first = set(Workers(pool).results(os.getpid, [()] * 4))
    with Workers(pool) as workers:
        assert set(workers.results(os.getpid, [()] * 4)) <= {process.pid for process in pool.processes}
    assert first <= {process.pid for process in pool.processes}
    assert os.getpid() not in first


def test_a_dead_worker_is_one_sentence_and_the_next_call_starts_another() -> None:
    with Workers(workers=1) as workers:
        results = workers.results(_end_or_square, [(2,), (None,), (3,)])
        assert next(results) == 4
        with pytest.raises(
            WorkerLostError, match=r"^workers: expected every worker process to finish its job"
        ):
            list(results)
        assert list(workers.results(_end_or_square, [(2,)])) == [4]
        _interrupt(workers)


def _interrupt(workers: Workers) -> None:
    """Ctrl-C while a long job runs: it is stopped, and the processes are gone."""
    opened = workers._open()
    assert isinstance(opened, WorkerPool)
    processes = list(opened.processes)
    assert all(process.is_alive() for process in processes)

    start = time.monotonic()
    main = threading.main_thread().ident
    threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT)).start()
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a process in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            list(workers.results(time.sleep, [(0,), (600,)]))
    finally:
        signal.signal(signal.SIGINT, before)
    assert not any(process.is_alive() for process in processes)
    assert time.monotonic() - start < 300  # not the end of the job


def _end_or_square(value: int | None) -> int:
    if value is None:
        os._exit(1)
    return value**2


SCRIPT = """
import os, time
from diabat.samplers.distributed.workers import Workers

if __name__ == "__main__":
    workers = Workers(workers=1)
    print(next(workers.results(os.getpid, [()])), flush=True)
    list(workers.results(time.sleep, [(600,)]))
"""


def test_a_killed_program_leaves_no_worker_behind(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as program:
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
    monkeypatch.setattr(workers, "WorkerPool", ThreadPoolExecutor)
    given = ThreadPoolExecutor(1)
    own, theirs = Workers(workers=1), Workers(given)
    for one in (own, theirs):
        assert list(one.results(abs, [(-1,)])) == [1]

    def answered() -> bool:
        found = list(own.results(abs, [(-2,)]))
        own.close()
        return found == [2]

    def refused() -> bool:
        sentence = r"^executor: expected one that this process opened, got ThreadPoolExecutor of its parent"
        with pytest.raises(ArgumentError, match=sentence):
            list(theirs.results(abs, [(-2,)]))
        theirs.close()
        return True

    with own._lock:  # as another thread may have it while the process forks
        assert in_child(answered) == 0
    assert in_child(lambda: refused() and in_child(refused) == 0) == 0  # also in a child of the child
    for one in (own, theirs):
        assert list(one.results(abs, [(-3,)])) == [3]
    own.close()
    given.shutdown()


def test_a_daemonic_process_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    here: Any = multiprocessing.current_process()
    monkeypatch.setitem(here._config, "daemon", True)
    with pytest.raises(ArgumentError, match=r"^workers: expected 0 in a daemonic process .*, got 3\.$"):
        list(Workers(workers=3).results(abs, [(1,)]))


def test_a_dask_cluster() -> None:
    """By its client's executor and by its address; a cluster of threads, which starts at once."""
    from distributed import Client, LocalCluster

    ising = make_problem((3, 4), 5, lead="heads", seed=2)
    want = DistributedSampler("exact", workers=0, chunk=2).sample(ising, 6, seed=3)
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None, protocol="tcp"
    ) as cluster:
        with Client(cluster) as client:
            given = DistributedSampler("exact", executor=client.get_executor(pure=False), chunk=2)
            assert torch.equal(given.sample(ising, 6, seed=3).spins, want.spins)
        with DistributedSampler("exact", executor=cluster.scheduler_address, chunk=2) as backend:
            samples = backend.sample(ising, 6, seed=3)
            assert torch.equal(samples.spins, want.spins)
            assert samples.info["workers"] == cluster.scheduler_address
            with pytest.raises(ZeroDivisionError):
                list(backend.workers.results(divmod, [(1, 0)]))
            backend.close()
            assert torch.equal(backend.sample(ising, 6, seed=3).spins, want.spins)


def test_a_scheduler_that_does_not_answer_is_named() -> None:
    import dask

    with (
        dask.config.set({"distributed.comm.timeouts.connect": "0.2s"}),
        pytest.raises(
            ConnectionError, match=r"^executor: expected a dask scheduler at tcp://127\.0\.0\.1:9, got no"
        ),
    ):
        list(Workers("tcp://127.0.0.1:9").results(abs, [(1,)]))


def test_results_come_in_order() -> None:
    class Later(WorkerPool):
        """Ends its jobs last one first."""

        def __init__(self) -> None:
            self.futures: list[Future[Any]] = []

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            self.futures.append(Future())
            if len(self.futures) == 3:
                for place in (2, 1, 0):
                    self.futures[place].set_result(place)
            return self.futures[-1]

    assert list(Workers(Later()).results(abs, [(0,)] * 3)) == [0, 1, 2]


def test_here_jobs_run_one_by_one() -> None:
    done: list[int] = []
    results = Workers(workers=0).results(done.append, [(1,), (2,)])
    assert done == []
    next(results)
    assert done == [1]


def test_processors() -> None:
    assert 1 <= available_cpus() <= (os.cpu_count() or 1)
    assert Workers().label == available_cpus()
    assert (Workers(workers=3).label, Workers("dask").label) == (3, "dask")
