"""Cost and gain of spreading a batch over processes: time of a batch, of one job, and of the start.

python -m benchmarks.executor [--json]

Wall seconds, the best of several calls in turn: processes share the machine with whatever else runs.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks.measure import report
from diabat.ising import Ising, pack_couplings
from diabat.samplers.distributed import DistributedSampler

ROUNDS, WORKERS = 3, (0, 1, 2)
# name -> base, its options, spins, problems, problems per job
BATCHES: dict[str, tuple[str, dict[str, Any], int, int, int]] = {
    "tempering, n = 32": ("tempering", {}, 32, 256, 32),
    "dqa native, n = 10": ("dqa", {"num_reads": 100}, 10, 512, 32),
}


def problems(count: int, n: int) -> Ising:
    """A batch with one J."""
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randn(n * (n - 1) // 2, generator=generator) / n**0.5
    return Ising(0.3 * torch.randn(count, n, generator=generator), pack_couplings(pairs, n))


def seconds(backend: DistributedSampler, ising: Ising) -> float:
    """Wall seconds of one call."""
    start = time.perf_counter()
    backend.moments(ising, seed=0)
    return time.perf_counter() - start


def batches() -> list[dict[str, Any]]:
    """Moments of one batch with no, one and two processes, in turn."""
    rows = []
    for name, (base, options, n, count, chunk) in BATCHES.items():
        ising = problems(count, n)
        backends = [DistributedSampler(base, options=options, workers=w, chunk=chunk) for w in WORKERS]
        first = [seconds(backend, ising) for backend in backends]  # compiled, processes started
        best = [float("inf")] * len(backends)
        for _ in range(ROUNDS):
            for place, backend in enumerate(backends):
                best[place] = min(best[place], seconds(backend, ising))
        rows.append(
            {"batch": name, "problems": count, "jobs": count // chunk}
            | {f"{w} workers [s]": t for w, t in zip(WORKERS, best, strict=True)}
            | {"2 against 0": best[0] / best[2], "first call, 2 [s]": first[2]}
        )
        for backend in backends:
            backend.close()
    return rows


def overhead() -> list[dict[str, Any]]:
    """A base that takes no time, one problem per job: what is left is the executor."""
    rows, count = [], 500
    ising = problems(count, 8)
    for workers in WORKERS:
        with DistributedSampler(
            "mean_field", options={"max_iterations": 1}, workers=workers, chunk=1
        ) as backend:
            small = Ising(ising.fields[:1], ising.couplings)
            for warm in (small, ising):
                backend.moments(warm, seed=0)
            one = min(seconds(backend, small) for _ in range(20 * ROUNDS))
            many = min(seconds(backend, ising) for _ in range(ROUNDS))
        rows.append(
            {"workers": workers, "call of one job [ms]": one * 1e3, "per job of 500 [ms]": many / count * 1e3}
        )
    return rows


def main() -> None:
    report("a batch over processes", batches())
    report("overhead", overhead())


if __name__ == "__main__":
    main()
