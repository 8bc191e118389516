"""Time before and around the work: first calls, compiling, commands, worker processes."""

from __future__ import annotations

import os
import resource
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

ROOT = str(Path(diabat.__file__).parent.parent)
_FIRST = """
import sys, time, torch, diabat
torch.set_num_threads(1)
torch.manual_seed(0)
backend, problems, n, gradients = sys.argv[1], *(int(word) for word in sys.argv[2:])
J = torch.randn(n, n).triu(1) / n**0.5
problem = diabat.Ising(torch.randn(problems, n).requires_grad_(bool(gradients)), J + J.T)
start = time.process_time()
found = diabat.sampler(backend).moments(problem, seed=0)
if gradients:
    found.probability.sum().backward()
print(time.process_time() - start)
"""
_STEP = """
import time, torch, diabat
torch.set_num_threads(1)
start = time.process_time()
layer = diabat.{}
layer(torch.randn(2, 8, 64)).square().sum().backward()
print(time.process_time() - start)
"""
_LAYERS = {
    "a step with exact": "BoltzmannAttention(64, 4, window=8, sampler='exact')",
    "a step of NeuroGame": "NeuroGameAttention(64, 4)",
}
_NUMBA = """
import time, torch
start = time.process_time()
import numba
numba.njit(lambda: None)()
print(time.process_time() - start)
"""


def cases() -> list[Case]:
    """All of them."""
    return [*first_calls(), *demo(), *commands(), *executor()]


def python(*words: str, cache: str | None = None, folder: str | None = None) -> tuple[float, str]:
    """CPU seconds and output of a Python process with this diabat, which keeps its compiled code in a folder."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([ROOT, *sys.path])}
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = cache
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *words], env=environment, cwd=folder, check=True, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def first_calls() -> list[Case]:
    """The first call of a process, numba's import included and torch's not, without and with compiled code on disk."""
    backends = ("exact", "mean_field", "dqa", "tempering", "banded", "refine")
    calls = {name: (name, "1", "8", "0") for name in backends}
    calls["exact, 64 of 12 spins"] = ("exact", "64", "12", "0")
    calls["the same, gradients"] = ("exact", "64", "12", "1")

    def program(name: str) -> list[str]:
        if name in calls:
            return ["-c", _FIRST, *calls[name]]
        return ["-c", _NUMBA if name == "numba alone" else _STEP.format(_LAYERS[name])]

    def cold(name: str) -> Callable[[], float]:
        def run() -> float:
            with tempfile.TemporaryDirectory() as cache:
                return float(python(*program(name), cache=cache)[1])

        return run

    def warm(name: str) -> Callable[[], float]:
        cache = tempfile.TemporaryDirectory()
        python(*program(name), cache=cache.name)
        return lambda: float(python(*program(name), cache=cache.name)[1])

    names = [*calls, *_LAYERS, "numba alone"]
    of_all = dict.fromkeys(calls, 3.0), dict.fromkeys(calls, 0.4)
    return [
        Case("first call/cold", cold, names, "", target=of_all[0], clock="returned"),
        Case("first call/warm", warm, names, "", target=of_all[1], clock="returned"),
    ]


def demo() -> list[Case]:
    """What the commands of `make demo`, with trainings of one step, and `diabat warm-up` spend on compiling."""
    one_step = "training.max_steps=1"
    trainings = [["train", f"recall-{name}", one_step] for name in ("softmax", "exact", "dqa")]
    commands = {"demo": [*trainings, ["fidelity", "recall-fidelity"]], "warm-up": [["warm-up"]]}

    def build(name: str) -> Callable[[], float]:
        def run() -> float:
            times = []
            with tempfile.TemporaryDirectory() as cache:
                for _ in ("empty", "full"):
                    with tempfile.TemporaryDirectory() as folder:
                        calls = (("-m", "diabat", *words, "--no-progress") for words in commands[name])
                        times.append(sum(python(*call, cache=cache, folder=folder)[0] for call in calls))
            return times[0] - times[1]

        return run

    return [Case("compiling/diabat", build, list(commands), "", target={"demo": 15.0}, clock="returned")]


def commands() -> list[Case]:
    """CPU time of processes that do nothing yet."""
    words = {"diabat --help": ("-m", "diabat", "--help"), "import diabat": ("-c", "import diabat")}
    torch = {"import torch": Peer(lambda _: lambda: python("-c", "import torch")[0])}

    def build(name: str) -> Callable[[], float]:
        return lambda: python(*words[name])[0]

    return [Case("start/process", build, list(words), "", peers=torch, clock="returned")]


def executor() -> list[Case]:
    """Batches over two worker processes against the same jobs in this process, and what a job costs."""
    sizes: dict[str, tuple[str, int, int, dict[str, Any]]] = {
        "tempering, n = 32": ("tempering", 32, 256, {}), "dqa, n = 10": ("dqa", 10, 512, {"num_reads": 100}),
    }  # fmt: skip

    def build(name: str, workers: int) -> Call:
        from diabat.samplers.distributed import DistributedSampler

        base, n, count, options = sizes[name]
        backend = DistributedSampler(base, options=options, workers=workers, chunk=32)
        return partial(backend.moments, problem(n, count), seed=0)

    def job(workers: int) -> Call:
        from diabat.samplers.distributed import DistributedSampler

        options: dict[str, Any] = {"max_iterations": 1}
        backend = DistributedSampler("mean_field", options=options, workers=workers, chunk=1)
        return partial(backend.moments, problem(8), seed=0)

    here = {"in this process": Peer(partial(build, workers=0), 0.6)}
    two = partial(build, workers=2)
    return [
        Case("executor/two workers", two, list(sizes), "", peers=here, clock="wall"),
        Case("executor/one job", job, (0, 1, 2), "workers", clock="wall"),
    ]
