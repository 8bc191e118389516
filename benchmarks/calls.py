"""Time of many calls of backends, engine and layers, also to compare two versions.

python -m benchmarks.calls --only one engine layers  # one problem of 8 spins; the native engine; layers
python -m benchmarks.calls --json > before.json      # in a checkout of the former version
python -m benchmarks.calls --against before.json     # in this one; take turns where the machine has other work

CPU seconds of one thread, of several rounds in which the calls take turns: their median, and the fastest, which is
what JSON holds and what is compared.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import diabat
from benchmarks.measure import report
from diabat.circuits import Batch, NativeEngine, builtin_plan, schedule, trotter_plan
from diabat.ising import Ising, pack_couplings
from diabat.samplers import Capabilities, Sampler, Samples
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


def one() -> Iterator[tuple[str, Call]]:
    """Moments of one problem of 8 spins."""
    ising = problem(1, 8, 1.0)
    few = {"num_replicas": 1, "num_chains": 16, "burn_in": 16, "sweeps": 16}
    for name, backend, options in (
        ("exact", "exact", {}),
        ("mean_field", "mean_field", {}),
        ("banded, all pairs", "banded", {}),
        ("dqa", "dqa", {}),
        ("dqa, boltzmann-8", "dqa", {"schedule": "boltzmann-8"}),
        ("tempering", "tempering", {}),
        ("tempering, 16 chains, 16 + 16 sweeps", "tempering", few),
        ("refine of dqa, 1000 reads", "refine", {"sampler": "dqa"}),
        ("dimod, simulated annealing, 1000 reads of 100 sweeps", "dimod", {}),
    ):
        sampler = diabat.sampler(backend, **options)
        yield f"one problem, {name}", partial(sampler.moments, ising, seed=1)
        if backend in ("exact", "mean_field", "dqa", "tempering"):
            yield f"one problem from tensors, {name}", partial(_from_tensors, sampler, ising)


def _from_tensors(sampler: Sampler, ising: Ising) -> None:
    sampler.moments(Ising(ising.fields, ising.matrix), seed=1)


def engine() -> Iterator[tuple[str, Call]]:
    """The native engine, in single precision, without the backend around it."""
    native, random = NativeEngine("single"), np.random.default_rng(0)
    plans = {
        "boltzmann-8": builtin_plan("boltzmann-8")[0],
        "200 steps": trotter_plan(schedule("Advantage2_system1"), 5.0, 200),
    }
    for label, plan in plans.items():
        for n in (8, 11):
            J = np.triu(random.normal(0, 0.02, (n, n)), 1)
            for count in (1, 4, 16):
                batch = Batch(random.normal(0, 0.02, (count, n)), J + J.T)
                yield f"engine, {label}, n = {n}, {count} problems", partial(native.moments, plan, [batch])


def layers() -> Iterator[tuple[str, Call]]:
    """Layers of one head, width 32, 64 sequences, J ~ N(0, 0.3²)."""
    for window in (8, 16):
        x = torch.randn(64, window, 32, generator=torch.Generator().manual_seed(0))
        for backend in ("exact", "mean_field"):
            torch.manual_seed(0)
            layer = diabat.BoltzmannAttention(32, 1, window, sampler=backend)
            assert layer.coupling_pairs is not None
            nn.init.normal_(layer.coupling_pairs, std=0.3)
            yield f"layer, {backend}, T = {window}, forward", torch.no_grad()(partial(layer, x))
            yield f"layer, {backend}, T = {window}, forward and backward", partial(_step, layer, x)


def _step(layer: nn.Module, x: Tensor) -> None:
    layer(x).sum().backward()


def timed(calls: dict[str, Call], rounds: int = 8) -> dict[str, list[float]]:
    """CPU seconds of each call in each round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            inner, start = 0, time.process_time()
            while inner == 0 or time.process_time() - start < 0.02:
                call()
                inner += 1
            times[name].append((time.process_time() - start) / inner)
    return times


GROUPS = {
    "exact": exact, "dqa": anneals, "tempering": tempering, "refine": refine,
    "one": one, "engine": engine, "layers": layers,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--against", type=Path, help="what another version printed with --json")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    times = timed(dict(call for group in chosen.only for call in GROUPS[group]()))
    found = {name: min(seconds) for name, seconds in times.items()}
    if chosen.json:
        print(json.dumps(found))
        return
    before = json.loads(chosen.against.read_text()) if chosen.against else found
    ratios = {name: seconds / before[name] for name, seconds in found.items() if name in before}
    mean = statistics.geometric_mean(ratios.values()) if ratios else math.nan
    rows: list[dict[str, Any]] = [
        {"call": name, "median [µs]": 1e6 * statistics.median(times[name]), "fastest [µs]": 1e6 * found[name]}
        | {"fastest / before": ratios.get(name, "new")}
        for name in found
    ]
    rows.append({"call": "geometric mean", "median [µs]": "", "fastest [µs]": "", "fastest / before": mean})
    report("Calls, CPU time of one thread", rows)


if __name__ == "__main__":
    main()
