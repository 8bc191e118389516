"""What a call consists of: where the time of small calls goes.

python -m benchmarks.parts [--rounds 30] [--only exact mean_field] [--json]

- ``exact``: moments of 512 problems of 8 spins that share one J: the call, the enumeration with its arrays, and the
  compiled functions alone, with the arguments of this call.
- ``mean_field``: the problems of a layer of 64 sequences, T = 16, J ~ N(0, 0.3²): iterations and time of a problem,
  beside ``exact``.

CPU time of one thread, the fastest of all rounds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import diabat
from benchmarks.calls import problem
from benchmarks.measure import run_sections
from diabat.ising import Ising
from diabat.samplers.exact import lane_kernel, lane_tables
from diabat.samplers.exact.lanes import LaneSums


def fastest(call: Callable[[], Any], rounds: int, inner: int = 20) -> float:
    """CPU microseconds of a call."""
    best = math.inf
    for _ in range(rounds):
        start = time.thread_time()
        for _ in range(inner):
            call()
        best = min(best, (time.thread_time() - start) / inner)
    return 1e6 * best


class Recorded:
    """A function that keeps the arguments of its last call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.arguments: tuple[Any, ...] = ()
        self.options: dict[str, Any] = {}

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Keep the arguments and call the function."""
        self.arguments, self.options = arguments, options
        return self.function(*arguments, **options)

    def again(self) -> Any:
        """The last call once more."""
        return self.function(*self.arguments, **self.options)


def exact(rounds: int) -> list[dict[str, Any]]:
    """Parts of a call of 512 problems of 8 spins."""
    backend, ising = diabat.sampler("exact"), problem(512, 8, 1.0)
    backend.moments(ising)
    whole = fastest(lambda: backend.moments(ising), rounds)
    parts = {
        "enumeration with its arrays": (LaneSums, "__init__"),
        "compiled: all states": (lane_kernel, "forward"),
        "compiled: tables of J": (lane_tables, "build"),
    }
    rows = [{"part": "call", "us": whole, "share": 1.0}]
    for name, (owner, attribute) in parts.items():
        real = getattr(owner, attribute)
        recorded = Recorded(real)
        setattr(owner, attribute, recorded if owner is not LaneSums else _bound(recorded))
        try:
            backend.moments(ising)
        finally:
            setattr(owner, attribute, real)
        us = fastest(recorded.again, rounds)
        rows.append({"part": name, "us": us, "share": us / whole})
    return rows


def _bound(recorded: Recorded) -> Callable[..., Any]:
    """A function of Python, which becomes a method."""
    return lambda *arguments, **options: recorded(*arguments, **options)


def mean_field(rounds: int) -> list[dict[str, Any]]:
    """Iterations and time of a problem of a layer."""
    torch.manual_seed(0)
    layer = diabat.BoltzmannAttention(64, 1, 16)
    assert layer.coupling_pairs is not None
    torch.nn.init.normal_(layer.coupling_pairs, std=0.3)
    with torch.no_grad():
        layer(torch.randn(64, 16, 64))
    fields, couplings = layer.last_fields_and_couplings()
    ising = Ising(fields, couplings, torch.ones(16, 16, dtype=torch.bool).tril())
    rows = []
    for name in ("exact", "mean_field"):
        backend = diabat.sampler(name)
        found = backend.moments(ising)
        us = fastest(partial(backend.moments, ising), rounds, 1)
        counts = found.info["problems"]["iterations"].double() if name == "mean_field" else None
        rows.append(
            {
                "backend": name,
                "us per problem": us / ising.num_problems,
                "mean": "" if counts is None else float(counts.mean()),
                "median": "" if counts is None else float(counts.median()),
                "most": "" if counts is None else float(counts.max()),
                "us per iteration": "" if counts is None else us / float(counts.sum()),
            }
        )
    return rows


if __name__ == "__main__":
    run_sections(
        __doc__,
        {
            "exact": ("exact, 512 problems of 8 spins", exact),
            "mean_field": ("mean_field, 1,024 problems of a layer, T = 16: iterations", mean_field),
        },
    )
