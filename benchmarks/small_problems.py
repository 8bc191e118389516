"""Latency of one small problem, paired with another checkout.

python -m benchmarks.small_problems --against FOLDER [--rounds 8] [--json]

The same file runs in child processes, by turns with this checkout and with the other one first in PYTHONPATH: one
problem of 8 spins by each backend, one sequence of 8 tokens through a layer without gradients and with them, and 512
problems by ``exact`` with a J that they share and with a J of their own, as have the 32 x 4 games of a NeuroGame layer.
CPU seconds of one thread, fastest of all rounds, in which the calls of a process take turns.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import diabat
from benchmarks.measure import report

Call = Callable[[], Any]
SPINS, BATCH = 8, 512
SIZES = (4, 8, 12)
HERE = Path(__file__).resolve()


def calls() -> dict[str, Call]:
    """Moments of one problem, one forward pass of a layer, and one with its backward pass."""
    generator = torch.Generator().manual_seed(0)
    J = torch.randn(SPINS, SPINS, generator=generator).triu(1) / SPINS**0.5
    problem = diabat.Ising(torch.randn(1, SPINS, generator=generator), J + J.T)
    x = torch.randn(1, SPINS, 32, generator=generator)
    found: dict[str, Call] = {}
    for name in ("exact", "mean_field", "dqa", "tempering"):
        found[f"moments, {name}"] = partial(diabat.sampler(name).moments, problem, seed=1)
        layer = diabat.BoltzmannAttention(embed_dim=32, num_heads=1, window=SPINS, sampler=name)
        found[f"layer, {name}"] = partial(forward, layer, x)
        if name != "tempering":
            found[f"layer with gradients, {name}"] = partial(forward_and_backward, layer, x)
    return found


def batches() -> dict[str, Call]:
    """Moments of a batch by ``exact``, J shared and own, without gradients, with those of h and J, and with pairs."""
    generator, exact = torch.Generator().manual_seed(1), diabat.sampler("exact")
    found: dict[str, Call] = {}
    for n in SIZES:
        h = torch.randn(BATCH, n, generator=generator)
        for name, lead in (("shared", ()), ("own", (BATCH,))):
            J = torch.randn(*lead, n, n, generator=generator).triu(1) / n**0.5
            problem = diabat.Ising(h, J + J.mT)
            found[f"n = {n}, {name} J"] = partial(exact.moments, problem)
            found[f"n = {n}, {name} J, gradients"] = partial(differentiate, exact, problem)
            found[f"n = {n}, {name} J, correlations"] = partial(exact.moments, problem, correlations=True)
        pool = diabat.NeuroGameAttention(embed_dim=32, num_heads=4, sampler="exact")
        x = torch.randn(32, n, 32, generator=generator)
        found[f"NeuroGame, {n} tokens, gradients"] = partial(pooled, pool, x)
    return found


def pooled(pool: diabat.NeuroGameAttention, x: torch.Tensor) -> None:
    pool(x).square().mean().backward()


def differentiate(exact: diabat.Sampler, problem: diabat.Ising) -> None:
    assert problem.couplings is not None
    h, J = problem.fields.detach().requires_grad_(), problem.couplings.detach().requires_grad_()
    exact.moments(diabat.Ising(h, J, check=False)).probability.square().sum().backward()


def forward(layer: torch.nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        layer(x)


def forward_and_backward(layer: torch.nn.Module, x: torch.Tensor) -> None:
    layer(x).square().mean().backward()


def fastest(found: dict[str, Call], rounds: int = 5) -> dict[str, float]:
    """CPU seconds of each call."""
    best = dict.fromkeys(found, math.inf)
    for call in found.values():
        for _ in range(3):
            call()
    for _ in range(rounds):
        for name, call in found.items():
            count, start = 0, time.process_time()
            while time.process_time() - start < 0.02:
                call()
                count += 1
            best[name] = min(best[name], (time.process_time() - start) / count)
    return best


def in_child(folder: Path) -> dict[str, float]:
    """What this file measures with the package of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE), "--child"]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        torch.set_num_threads(1)
        print(json.dumps(fastest({**calls(), **batches()})))
        return
    folders = {"now": HERE.parent.parent}
    if chosen.against is not None:
        folders["before"] = chosen.against.resolve()
    best: dict[str, dict[str, float]] = {which: {} for which in folders}
    for _ in range(chosen.rounds):
        for which, folder in folders.items():
            for name, seconds in in_child(folder).items():
                best[which][name] = min(best[which].get(name, math.inf), seconds)
    rows: list[dict[str, Any]] = []
    for name, seconds in best["now"].items():
        row: dict[str, Any] = {"call": name, "us": 1e6 * seconds}
        if "before" in best:
            row |= {"before": 1e6 * best["before"][name], "times faster": best["before"][name] / seconds}
        shared = name.replace("own J", "shared J")
        for which, found in best.items():
            row[f"own / shared, {which}"] = found[name] / found[shared] if shared != name else ""
        rows.append(row)
    report("Small problems, CPU time of one thread", rows)


if __name__ == "__main__":
    main()
