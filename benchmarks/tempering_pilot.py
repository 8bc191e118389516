"""Test the decisions of ``num_replicas="auto"`` against enumeration, over thousands of problems.

python -m benchmarks.tempering_pilot [--json] [--instances 500]

n = 8, 12 and 16: couplings of both signs, J ~ N(0, g/√n), h ~ N(0, 0.3); ferromagnets J = g/n, with h ~ N(0, 0.02),
and with a uniform field of 0 to 0.5 besides; and two patterns ±ξ, J = g ξ ξᵀ/n, with a field of 0 to 2.4/n along ξ.  A
problem is *off* if the average of 256 plain chains of 64 + 64 sweeps misses some probability by more than 0.05.
Columns: problems, the share that the pilot gives plain chains, how many are off, and how many of those have plain
chains.  Two minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import diabat
from benchmarks.measure import report
from diabat.ising import Ising, pack_couplings

SIZES, OFF = (8, 12, 16), 0.05


def both_signs(g: float, n: int, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Fields [count, n] and packed couplings [count, n (n - 1)/2]."""
    pairs = torch.randn(count, n * (n - 1) // 2, generator=draw) * g / n**0.5
    return 0.3 * torch.randn(count, n, generator=draw), pairs


def ferromagnet(g: float, n: int, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two modes of nearly the same weight."""
    return 0.02 * torch.randn(count, n, generator=draw), torch.full((count, n * (n - 1) // 2), g / n)


def in_a_field(g: float, n: int, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two modes of more and more different weight."""
    h, pairs = ferromagnet(g, n, count, draw)
    return h + torch.linspace(0, 0.5, count)[:, None], pairs


def patterns(g: float, n: int, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two modes ±ξ of random signs."""
    xi = torch.sign(torch.randn(count, n, generator=draw))
    j, k = torch.triu_indices(n, n, 1)
    return xi * torch.linspace(0, 2.4, count)[:, None] / n, g / n * xi[:, j] * xi[:, k]


Family = Callable[[float, int, int, torch.Generator], tuple[Tensor, Tensor]]
FAMILIES: dict[str, tuple[Family, tuple[float, ...]]] = {
    "both signs": (both_signs, (0.5, 0.8, 1.0, 1.3, 1.6, 2.0, 3.0)),
    "ferromagnets": (ferromagnet, (1.0, 1.2, 1.5, 2.0, 3.0, 4.0)),
    "ferromagnets in a field": (in_a_field, (1.0, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 4.0)),
    "two patterns": (patterns, (1.0, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0)),
}


def decided(family: Family, g: float, n: int, instances: int) -> tuple[Tensor, Tensor]:
    """Whether each problem has plain chains, and how far off they are."""
    draw = torch.Generator().manual_seed(100)
    h, pairs = family(g, n, instances, draw)
    ising = Ising(h.double(), torch.stack([pack_couplings(p, n) for p in pairs.double()]))
    exact = diabat.sampler("exact").moments(ising).probability
    many = diabat.sampler("tempering", num_replicas=1, num_chains=256, threads=1).moments(ising, seed=7)
    auto = diabat.sampler("tempering", num_replicas="auto", burn_in=1, threads=1).sample(ising, 1, seed=3)
    return auto.info["num_replicas"] == 1, (many.probability - exact).abs().amax(-1)


def decisions(instances: int) -> list[dict[str, Any]]:
    """Every family, over sizes and strengths."""
    rows = []
    for name, (family, strengths) in FAMILIES.items():
        found = [decided(family, g, n, instances) for n in SIZES for g in strengths]
        plain, error = (torch.cat(parts) for parts in zip(*found, strict=True))
        off = error > OFF
        rows.append(
            {
                "problems": name,
                "number": len(plain),
                "plain chains": float(plain.double().mean()),
                "off": int(off.sum()),
                "off with plain chains": int((off & plain).sum()),
                "largest error with plain chains": float(error[plain].max()),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    parser.add_argument("--instances", type=int, default=500, help="problems of each strength and size (500)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report("Decisions of num_replicas='auto'", decisions(arguments.instances))


if __name__ == "__main__":
    main()
