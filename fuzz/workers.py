"""Run cases in separate processes: crashes, hangs and cases that fill the memory are outcomes as well."""

from __future__ import annotations

import importlib
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

from fuzz.outcome import Outcome

_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Limits:
    """Limits of one case.

    Attributes:
        seconds: Time of one case.
        memory_mb: Address space of a worker in addition to that at its start.
    """

    seconds: float = 60.0
    memory_mb: int = 2048


def outcomes(module: str, seeds: Iterator[int], count: int, limits: Limits) -> Iterator[tuple[int, Outcome]]:
    """Yield outcomes of cases as they end.

    Args:
        module: Name of the module whose ``run_case(seed)`` runs a case; its ``prepare()`` is called once by every
            worker, before the limits hold.
        seeds: Seeds of the cases; they are read only when a worker is free.
        count: Number of worker processes.
        limits: Time and memory of a case.
    """
    waiting = deque(_Worker(module, limits) for _ in range(count))
    busy: list[_Worker] = []
    try:
        while True:
            while waiting and (seed := next(seeds, None)) is not None:
                waiting[0].begin(seed)
                busy.append(waiting.popleft())
            if not busy:
                return
            connection.wait([worker.pipe for worker in busy], timeout=0.5)
            for worker in list(busy):
                if (outcome := worker.poll()) is not None:
                    busy.remove(worker)
                    yield worker.seed, outcome
                    waiting.append(worker if worker.alive else _Worker(module, limits))
    finally:
        for worker in (*waiting, *busy):
            worker.kill()


@dataclass
class _Worker:
    module: str
    limits: Limits
    seed: int = -1
    alive: bool = True
    pipe: Any = field(init=False)

    def __post_init__(self) -> None:
        self.pipe, theirs = _SPAWN.Pipe()
        arguments = (theirs, self.module, self.limits.memory_mb)
        self._process = _SPAWN.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._ready = False

    def begin(self, seed: int) -> None:
        self.seed, self._begun = seed, time.monotonic()
        self.pipe.send(seed)

    def poll(self) -> Outcome | None:
        """The outcome, if the case has ended by now."""
        try:
            while self.pipe.poll():
                message = self.pipe.recv()
                if isinstance(message, Outcome):
                    return message
                self._ready, self._begun = True, time.monotonic()  # prepared; now it begins
        except (EOFError, OSError):
            self._process.join()
            return self._end(f"crash: the process ended with {_named(self._process.exitcode)}")
        if self._ready and time.monotonic() - self._begun > self.limits.seconds:
            return self._end(f"hang: no outcome within {self.limits.seconds:g} s")
        return None

    def _end(self, text: str) -> Outcome:
        self.kill()
        return Outcome("finding", "worker", text, text)

    def kill(self) -> None:
        self.alive = False
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _named(code: int | None) -> str:
    return signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"


def _serve(pipe: Any, module: str, memory_mb: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    cases = importlib.import_module(module)
    cases.prepare()
    _limit_memory(memory_mb)
    pipe.send("ready")
    while True:
        try:
            seed = pipe.recv()
        except EOFError:
            return
        pipe.send(cases.run_case(seed))


def _limit_memory(memory_mb: int) -> None:
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):  # neither Windows nor macOS has it
        return
    limit = pages * resource.getpagesize() + (memory_mb << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
