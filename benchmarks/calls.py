"""Time of many calls of compiled backends, to compare two versions: how they are compiled should cost them nothing.

python -m benchmarks.calls --json > before.json     # in a checkout of the former version
python -m benchmarks.calls --against before.json    # in this one; take turns where the machine has other work
python -m benchmarks.calls --only refine --json     # some backends: exact, dqa, tempering, refine

CPU seconds of one thread, fastest of several rounds in which the calls take turns.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import diabat
from benchmarks.measure import report
from diabat.ising import Ising, pack_couplings
from diabat.samplers import Capabilities, Samples
from diabat.testing import ReferenceSampler

Call = Callable[[], Any]


def problem(queries: int, n: int, strength: float, dtype: torch.dtype = torch.float32) -> Ising:
    generator = torch.Generator().manual_seed(0)
    J = pack_couplings(strength / n**0.5 * torch.randn(n * (n - 1) // 2, generator=generator), n)
    return Ising(strength * torch.randn(queries, n, generator=generator).to(dtype), J.to(dtype))


def exact() -> Iterator[tuple[str, Call]]:
    backend = diabat.sampler("exact")
    for n, queries in ((8, 512), (12, 512), (16, 256)):
        for dtype in (torch.float32, torch.float64):
            ising = problem(queries, n, 1.0, dtype)
            yield f"exact, n = {n}, {str(dtype)[6:]}", partial(backend.moments, ising)


def anneals() -> Iterator[tuple[str, Call]]:
    for precision in ("single", "double"):
        for name, options in (
            ("5 ns", {"annealing_time_ns": 5.0}),
            ("8 layers", {"schedule": "boltzmann-8"}),
        ):
            dqa = diabat.sampler("dqa", precision=precision, **options)
            for n in (4, 6, 7, 8, 10, 12):
                ising = problem(64 if n > 6 else 512, n, 0.3)
                label, ones = f"{name}, n = {n}, {precision}", torch.ones_like(ising.fields)
                yield f"moments, {label}", partial(dqa.moments, ising)
                if n in (6, 8, 12):
                    yield f"adjoint, {label}", partial(dqa.adjoint, ising, ones, seed=0)
                if n in (6, 12):
                    yield f"reads, {label}", partial(dqa.sample, ising, 100, seed=1)
                    yield f"pairs, {label}", partial(dqa.moments, ising, correlations=True)


def tempering() -> Iterator[tuple[str, Call]]:
    backend = diabat.sampler("tempering")
    for queries, n in ((1, 32), (64, 32), (16, 128)):
        ising = problem(queries, n, 1.0)
        yield f"tempering, {queries} of n = {n}", partial(backend.moments, ising, seed=1)


class Same(ReferenceSampler):
    """A base that costs next to nothing: the same reads at every call."""

    name = "same"

    def __init__(self, spins: Tensor) -> None:
        super().__init__()
        self.spins = spins

    @property
    def capabilities(self) -> Capabilities:
        """Those of enumeration, for any number of spins."""
        return replace(super().capabilities, max_spins=None)

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        return Samples(self.spins, ising.visible_mask)


def refine() -> Iterator[tuple[str, Call]]:
    generator = torch.Generator().manual_seed(1)
    for n in (8, 16, 32, 64):
        for reads in (100, 1000):
            ising = problem(64, n, 1.0)
            spins = 2 * torch.randint(0, 2, (reads, 64, n), generator=generator, dtype=torch.int8) - 1
            for sweeps in (1, 4, 10):
                backend = diabat.sampler("refine", sampler=Same(spins), sweeps=sweeps)
                label = f"refine, 64 of n = {n}, {reads} reads, {sweeps} sweep{'s' * (sweeps > 1)}"
                yield label, partial(backend.sample, ising, reads, seed=1)


def fastest(calls: dict[str, Call], rounds: int = 8) -> dict[str, float]:
    """CPU seconds of each call."""
    best = dict.fromkeys(calls, math.inf)
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            inner, start = 0, time.process_time()
            while inner == 0 or time.process_time() - start < 0.02:
                call()
                inner += 1
            best[name] = min(best[name], (time.process_time() - start) / inner)
    return best


GROUPS = {"exact": exact, "dqa": anneals, "tempering": tempering, "refine": refine}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--against", type=Path, help="what another version printed with --json")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    found = fastest(dict(call for group in chosen.only for call in GROUPS[group]()))
    if chosen.json:
        print(json.dumps(found))
        return
    before = json.loads(chosen.against.read_text()) if chosen.against else found
    ratios = {name: seconds / before[name] for name, seconds in found.items()}
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    rows = [{"call": name, "ms": 1e3 * found[name], "ratio": ratio} for name, ratio in ratios.items()]
    report("Calls of compiled backends", [*rows, {"call": "geometric mean", "ms": "", "ratio": mean}])


if __name__ == "__main__":
    main()
