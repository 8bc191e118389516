"""Cliffs: how much longer a call takes with one spin more, with one problem more, or with larger numbers.

python -m benchmarks.cliffs [PATTERN]

Least CPU time of five rounds, in which all sizes of a line take turns.  A line is printed with its largest ratios of
neighbours, time of n + 1 over n or B + 1 over B, and their places; a backend that visits all 2^n states may double.
Fields and couplings grow together, or one field among 1,024 problems, or one token of a layer.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

import diabat
from benchmarks.case import Work
from benchmarks.growth import FEW
from benchmarks.problems import couplings, differentiated, gradients, in_a_band, moments, problem
from benchmarks.runner import EFFORTS, Line
from diabat.ising import Ising
from diabat.progress import new_bar

FACTORS = (1, 16, 40, 100, 200)
OUTLIERS = (1, 30, 300, 1000, 1e6)


def lines() -> Iterator[tuple[str, str, Sequence[float], Callable[[Any], Work]]]:
    """Name, what grows, its sizes, and the call at a size."""
    for what in ("moments", "gradients"):
        for own, J in ((False, "one J"), (True, "a J each")):
            by = partial(_spins, PASSES[what], "exact", 64, own=own)
            yield f"exact, {what}, 64 problems with {J}", "n", range(2, 20), by
    for backend, count, most, options in (
        ("exact", 1, 24, {}), ("dqa", 8, 12, {}), ("mean_field", 64, 72, {}), ("tempering", 8, 136, FEW),
    ):  # fmt: skip
        by = partial(_spins, moments, backend, count, **options)
        yield f"{backend}, moments, {count} problem{'s' * (count > 1)}", "n", range(2, most + 1), by
    yield "banded, w = 3, 8 problems", "n", range(4, 137), lambda n: moments("banded", in_a_band(8, n, 3))
    for backend, options in (("exact", {}), ("mean_field", {}), ("dqa", {}), ("tempering", FEW)):
        by = partial(_spins, moments, backend, n=8, **options)
        yield f"{backend}, moments, n = 8", "B", range(1, 131), by
    banded = {"bandwidth": 3}
    for backend, n, options in (
        ("exact", 12, {}), ("exact", 16, {}), ("exact", 20, {}), ("banded", 64, banded), ("dqa", 8, {}),
    ):  # fmt: skip
        ising = in_a_band(64, n, 3) if options else problem(n, 64)
        for what, call in PASSES.items():
            if backend != "dqa" or what == "moments":
                by = partial(_scaled, call, backend, ising, **options)
                yield f"{backend}, {what}, n = {n}, 64 problems", "factor", FACTORS, by
    for backend, options in (("exact", {}), ("banded", banded), ("mean_field", {})):
        ising = in_a_band(1024, 8, 3) if options else problem(8, 1024)
        for what, call in PASSES.items():
            by = partial(_outlier, call, backend, ising, **options)
            yield f"{backend}, {what}, n = 8, 1,024 problems", "|h| of one", OUTLIERS, by
    for backward in (False, True):
        name = f"layer of odds, T = 128, window 12, {'gradients' if backward else 'outputs'}"
        yield name, "one token times", (1, 10, 60, 1000), partial(_layer, backward)


def _spins(call: Any, backend: str, number: int, n: int, own: bool = False, **options: Any) -> Work:
    found: Work = call(backend, problem(n, number, own=own), **options)
    return found


def _log_odds(backend: str, ising: Ising, **options: Any) -> Work:
    return Work(partial(diabat.sampler(backend, **options).differentiable_log_odds, ising))


def _odds_gradients(backend: str, ising: Ising, **options: Any) -> Work:
    sampler = diabat.sampler(backend, **options)
    return differentiated(lambda h, J: sampler.differentiable_log_odds(Ising(h, J, check=False)), ising)


PASSES: dict[str, Callable[..., Work]] = {
    "moments": moments,
    "gradients": gradients,
    "log-odds": _log_odds,
    "gradients of log-odds": _odds_gradients,
}


def _scaled(call: Callable[..., Work], backend: str, ising: Ising, factor: float, **options: Any) -> Work:
    return call(backend, Ising(factor * ising.fields, factor * couplings(ising)), **options)


def _outlier(call: Callable[..., Work], backend: str, ising: Ising, size: float, **options: Any) -> Work:
    fields = ising.fields.clone()
    fields[77, 3] = size
    return call(backend, Ising(fields, ising.couplings), **options)


def _layer(backward: bool, factor: float) -> Work:
    torch.manual_seed(0)
    layer = diabat.BoltzmannAttention(
        64, 4, 12, relative=True, coupling_init=0.3, readout="odds", sampler="exact"
    )
    x = torch.randn(4, 128, 64)
    x[1, 77] *= factor
    terms = [*layer.parameters()]

    def run() -> Any:
        with torch.set_grad_enabled(backward):
            y = layer(x)
        return torch.autograd.grad(y.square().sum(), terms) if backward else y

    return Work(run)


def measured(name: str, sizes: Sequence[float], build: Callable[[Any], Work]) -> list[float]:
    """Least seconds of a call at each size."""
    effort = EFFORTS["quick"]
    made = [Line(lambda n: Work(build(n).call), n, "cpu", effort) for n in sizes]
    with new_bar() as bar:
        for _ in bar.track(range(5), description=name):
            for line in made:
                line.take_turn()
    return [min(line.times) for line in made]


def main() -> None:
    """Measure the lines whose names match, and print their largest steps."""
    torch.set_num_threads(1)
    pattern = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [line for line in lines() if re.search(pattern, line[0])]
    if not chosen:
        names = "; ".join(line[0] for line in lines())
        raise SystemExit(f"PATTERN: expected one that matches a line ({names}), got {pattern!r}.")
    for name, what, sizes, build in chosen:
        times = measured(name, sizes, build)
        pairs = zip(times, times[1:], sizes, sizes[1:], strict=False)
        steps = sorted(((b / a, n, m) for a, b, n, m in pairs), reverse=True)
        print(f"{name}: " + ", ".join(f"{r:.2f} at {what} = {n} -> {m}" for r, n, m in steps[:3]))
        if len(sizes) <= len(FACTORS):
            each = (f"{1e3 * t:.1f} at {n:g}" for n, t in zip(sizes, times, strict=True))
            print("    ms: " + ", ".join(each))


if __name__ == "__main__":
    main()
