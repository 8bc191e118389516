"""Calls: functions of diabat that one batch runs through, by backend.

python -m benchmarks.calls [BACKEND ...]

A layer with 64 sequences of 8 tokens, forward, then forward and backward; counted by `sys.setprofile` after a first
step, which compiles and builds what is kept.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from types import FrameType
from typing import Any

import torch

import diabat
from benchmarks.case import Call

BACKENDS = ("exact", "mean_field", "banded", "tempering", "dqa")


def calls(run: Call) -> Counter[str]:
    """Calls of functions of diabat in a second run, by module."""
    found: Counter[str] = Counter()

    def seen(frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("diabat"):
            found[module] += 1

    run()
    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


def step(layer: torch.nn.Module, x: torch.Tensor) -> None:
    """Forward and backward."""
    layer(x).sum().backward()


def main() -> None:
    """Count, and print a line per backend."""
    backends = sys.argv[1:] or BACKENDS
    if unknown := [name for name in backends if name not in BACKENDS]:
        raise SystemExit(f"BACKEND: expected one of {', '.join(BACKENDS)}, got {unknown[0]!r}.")
    torch.set_num_threads(1)
    x = torch.randn(64, 8, 64)
    for name in backends:
        layer = diabat.BoltzmannAttention(64, 1, 8, sampler=name)
        forward, both = calls(partial(layer, x)), calls(partial(step, layer, x))
        first = f"{name}: {forward.total()} calls in {len(forward)} modules"
        print(f"{first}, with backward {both.total()} in {len(both)}")


if __name__ == "__main__":
    main()
