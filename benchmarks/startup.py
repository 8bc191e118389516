"""First calls of a process, without and with compiled code on disk, and batches over worker processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import diabat
from benchmarks.case import Call, Case, Peer
from benchmarks.problems import problem
from diabat.samplers.distributed import DistributedSampler

ROOT = str(Path(diabat.__file__).parent.parent)
_FIRST = """
import sys, time, torch, diabat
torch.set_num_threads(1)
torch.manual_seed(0)
backend, problems, n = sys.argv[1], *(int(word) for word in sys.argv[2:])
J = torch.randn(n, n).triu(1) / n**0.5
problem = diabat.Ising(torch.randn(problems, n), J + J.T)
start = time.process_time()
diabat.sampler(backend).moments(problem, seed=0)
print(time.process_time() - start)
"""


def cases() -> list[Case]:
    """All of them."""
    return [*first_calls(), *executor()]


def first_calls() -> list[Case]:
    """CPU seconds of moments of one problem of 8 spins, or of 64 of 12; numba's import counts, and torch's does not."""
    backends = ("exact", "mean_field", "dqa", "tempering", "banded", "refine")
    calls = {name: (name, "1", "8") for name in backends} | {"exact, 64 of 12": ("exact", "64", "12")}

    def seconds(name: str, cache: str) -> float:
        path = os.pathsep.join([ROOT, *sys.path])
        environment = os.environ | {"PYTHONPATH": path, "NUMBA_CACHE_DIR": cache}
        words = [sys.executable, "-c", _FIRST, *calls[name]]
        return float(subprocess.check_output(words, env=environment, text=True, stderr=subprocess.PIPE))

    def cold(name: str) -> Callable[[], float]:
        def run() -> float:
            with tempfile.TemporaryDirectory() as cache:
                return seconds(name, cache)

        return run

    def warm(name: str) -> Callable[[], float]:
        cache = tempfile.TemporaryDirectory()
        seconds(name, cache.name)
        return lambda: seconds(name, cache.name)

    ways = {"cold": (cold, 3.0), "warm": (warm, 0.4)}
    return [
        Case(f"first call/{what}", way, [*calls], "", target=target, clock="returned")
        for what, (way, target) in ways.items()
    ]


def executor() -> list[Case]:
    """Batches over two worker processes against the same jobs in this process."""
    sizes: dict[str, tuple[str, int, int, dict[str, Any]]] = {
        "tempering, n = 32": ("tempering", 32, 256, {}), "dqa, n = 10": ("dqa", 10, 512, {"num_reads": 100}),
    }  # fmt: skip

    def build(name: str, workers: int) -> Call:
        base, n, count, options = sizes[name]
        backend = DistributedSampler(base, options=options, workers=workers, chunk=32)
        return partial(backend.moments, problem(n, count), seed=0)

    here, two = Peer(partial(build, workers=0), 0.6), partial(build, workers=2)
    return [Case("executor/two workers", two, [*sizes], "", peers={"in this process": here}, clock="wall")]
