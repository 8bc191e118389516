"""Cliffs: how much longer a call takes with one spin more, with one problem more, or with larger numbers.

python -m benchmarks.cliffs [PATTERN]

Least CPU time of five rounds, in which all sizes of a line take turns, behind its largest ratio of neighbours.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from benchmarks.case import Call, Work
from benchmarks.problems import gradients, in_a_band, moments, problem
from benchmarks.runner import EFFORTS, Line

FEW: dict[str, Any] = {"num_replicas": 1, "burn_in": 16, "sweeps": 16, "threads": 1}


def lines() -> Iterator[tuple[str, Sequence[float], Callable[[Any], Call]]]:
    """Name, sizes, and the call at a size."""
    for name, most in (("exact", 24), ("mean_field", 72), ("dqa", 12), ("tempering", 136)):
        yield f"{name}, 8 problems, n", range(2, most + 1), partial(usual, name, queries=8)
        yield f"{name}, n = 8, problems", range(1, 131), partial(usual, name, 8)
    yield "banded, 8 problems, n", range(4, 137), lambda n: moments("banded", in_a_band(8, n, 3)).call
    for way in (moments, gradients):
        for n in (8, 16, 20):
            by = partial(strong, way, n)
            yield f"exact, {way.__name__}, 64 of {n} spins, factor", (1, 16, 40, 100, 200), by
        yield f"exact, {way.__name__}, field in one of 1,024", (1, 30, 300, 1000, 1e6), partial(one, way)


def usual(name: str, n: int, queries: int) -> Call:
    return moments(name, problem(n, queries), **FEW if name == "tempering" else {}).call


def strong(way: Callable[..., Work], n: int, factor: float) -> Call:
    """Fields and couplings times a factor."""
    return way("exact", problem(n, 64, g=factor)).call


def one(way: Callable[..., Work], size: float) -> Call:
    ising = problem(8, 1024)
    ising.fields[77, 3] = size
    return way("exact", ising).call


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, sizes, build in (line for line in lines() if re.search("".join(sys.argv[1:]), line[0])):
        timings = [Line(build, n, "cpu", EFFORTS["quick"]) for n in sizes]
        for timed in timings * 5:
            timed.take_turn()
        times = {size: min(timed.times) for size, timed in zip(sizes, timings, strict=True)}
        ratio, at = max((times[b] / times[a], b) for a, b in pairwise(sizes))
        print(f"{name}: {ratio:.2f} times at {at:g};", *(f"{n:g}: {t:.2g} s" for n, t in times.items()))
