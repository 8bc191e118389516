"""Test the errors that the tempering backend reports: its averages against enumeration, over many problems.

python -m benchmarks.tempering_errors [--json] [--instances 500]

n = 12, h ~ N(0, 0.3), J ~ N(0, g/√n), and a ferromagnet J = g/n, g = 4, with h ~ N(0, 0.02).  Columns: shares of
probabilities P and of log Z within 1, 2 and 3 reported errors; "off", the share of problems with some P off by more
than 0.1; "unseen", the share of those with an R-hat below 1.05; quantiles of R-hat.  20 seconds of one thread.
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

import torch
from torch import Tensor

import diabat
from benchmarks.measure import report
from diabat.ising import Ising, pack_couplings
from diabat.samplers.answers import Moments

SPINS, SEED = 12, 5
OFF, SMALL_RHAT = 0.1, 1.05
STRENGTHS = {"g = 0.5": 0.5, "g = 1": 1.0, "g = 2": 2.0, "g = 3": 3.0, "g = 5": 5.0}
CHAINS: dict[str, dict[str, Any]] = {
    "default": {},
    "4 chains": {"num_chains": 4},
    "1 chain of 1024": {"num_chains": 1, "sweeps": 1024},
    "1 replica": {"num_replicas": 1},
    "auto": {"num_replicas": "auto"},
    "256 after 256": {"burn_in": 256, "sweeps": 256},
}


def frustrated(g: float, instances: int) -> Ising:
    """Fields [instances, 12] and as many J, of both signs."""
    draw = torch.Generator().manual_seed(0)
    pairs = torch.randn(instances, SPINS * (SPINS - 1) // 2, generator=draw, dtype=torch.float64)
    h = 0.3 * torch.randn(instances, SPINS, generator=draw, dtype=torch.float64)
    return Ising(h, pack_couplings(pairs * g / SPINS**0.5, SPINS))


def ferromagnet(g: float, instances: int) -> Ising:
    """Fields [instances, 12] and one J, with two modes of nearly the same weight."""
    draw = torch.Generator().manual_seed(0)
    h = 0.02 * torch.randn(instances, SPINS, generator=draw, dtype=torch.float64)
    pairs = torch.full((SPINS * (SPINS - 1) // 2,), g / SPINS, dtype=torch.float64)
    return Ising(h, pack_couplings(pairs, SPINS))


def within(name: str, deviation: Tensor, error: Tensor) -> dict[str, float]:
    """Shares within 1, 2 and 3 errors."""
    z = (deviation / error).abs()
    return {f"{name}: {k}": float((z <= k).double().mean()) for k in (1, 2, 3)}


def row(found: Moments, exact: Moments) -> dict[str, Any]:
    """What the errors and R-hat said, and what was so; nan where the question does not arise."""
    assert found.standard_error is not None
    assert exact.log_partition is not None
    deviation = found.probability - exact.probability
    log_z = dict.fromkeys((f"log Z: {k}" for k in (1, 2, 3)), math.nan)
    if found.log_partition is not None:
        off_by = found.log_partition - exact.log_partition
        log_z = within("log Z", off_by, found.info["log_partition_error"])
    off = deviation.abs().amax(-1) > OFF
    rhat = found.info["rhat"]
    quantiles = torch.quantile(rhat, torch.tensor([0.05, 0.5, 0.95], dtype=rhat.dtype)).tolist()
    return {
        **within("P", deviation, found.standard_error),
        **log_z,
        "off": float(off.double().mean()),
        "unseen": float((rhat[off] < SMALL_RHAT).double().mean()),
        **dict(zip(("R-hat 5 %", "50 %", "95 %"), quantiles, strict=True)),
    }


def coverage(instances: int) -> list[dict[str, Any]]:
    """Every kind of problem with every choice of chains."""
    problems = {name: frustrated(g, instances) for name, g in STRENGTHS.items()}
    problems["ferromagnet"] = ferromagnet(4.0, instances)
    rows = []
    for name, ising in problems.items():
        exact = diabat.sampler("exact").moments(ising)
        for chains, options in CHAINS.items():
            print(f"{name}: {chains}", file=sys.stderr)
            found = diabat.sampler("tempering", threads=1, **options).moments(ising, seed=SEED)
            rows.append({"problems": name, "chains": chains, **row(found, exact)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    parser.add_argument("--instances", type=int, default=500, help="problems of each kind (500)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report(f"{arguments.instances} problems of each kind", coverage(arguments.instances))


if __name__ == "__main__":
    main()
