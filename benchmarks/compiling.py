"""Time to compile the kernels of `make demo`, and all of them, on a machine that has none.

python -m benchmarks.compiling [--json]

The commands of the demo, with trainings of one step, run with an empty cache of kernels and then with a full one; what
compiling takes is the difference.  Seconds are of the processor, one thread.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import report

DEMO = (
    ("train", "demo-exact", "training.max_steps=1"),
    ("train", "demo-dqa", "training.max_steps=1"),
    ("fidelity", "demo-fidelity"),
)


def command(arguments: tuple[str, ...], folder: str, cache: str) -> tuple[float, str]:
    """CPU seconds and output of a diabat command."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    call = [sys.executable, "-m", "diabat.cli", *arguments]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def demo() -> list[dict[str, Any]]:
    """One row per command of the demo."""
    with tempfile.TemporaryDirectory() as cache:
        times = []
        for _ in ("empty", "full"):
            with tempfile.TemporaryDirectory() as folder:
                times.append([command((*line, "--no-progress"), folder, cache)[0] for line in DEMO])
    rows = [
        {"command": " ".join(line), "first": first, "next": later, "compiling": first - later}
        for line, first, later in zip(DEMO, *times, strict=True)
    ]
    total = {key: sum(row[key] for row in rows) for key in ("first", "next", "compiling")}
    return [*rows, {"command": "all", **total}]


def everything() -> list[dict[str, Any]]:
    """One row per group of `diabat warm-up`, wall time."""
    with tempfile.TemporaryDirectory() as cache:
        _, text = command(("warm-up", "--json", "--no-progress"), str(Path.cwd()), cache)
    rows: list[dict[str, Any]] = json.loads(text)["groups"]
    return [*rows, {"group": "all", **{key: sum(r[key] for r in rows) for key in ("functions", "seconds")}}]


if __name__ == "__main__":
    report("make demo with trainings of one step, CPU seconds", demo())
    report("diabat warm-up, wall seconds", everything())
