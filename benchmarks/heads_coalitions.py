"""Coalitions of heads in pure noise and in planted groups: how often a test at level 5 % rejects.

python -m benchmarks.heads_coalitions [--json] [--matrices 1000]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import diabat
from benchmarks.measure import report
from diabat.attention.heads.interaction.coalition_tests import (
    Clustering,
    held_out,
    permuted,
    within_against_between,
)
from diabat.attention.heads.interaction.communities import biclusters, communities

HEADS, COUNT, NOISE, LEVEL, PERMUTATIONS = 14, 4, 0.02, 0.05, 39


def matrix(seed: int, strength: float) -> Tensor:
    """Unit diagonal, normal couplings, and larger ones inside four groups."""
    g = torch.Generator().manual_seed(seed)
    upper = torch.triu(NOISE * torch.randn(HEADS, HEADS, generator=g, dtype=torch.float64), 1)
    groups = torch.arange(HEADS) % COUNT
    return (upper + upper.T + strength * (groups[:, None] == groups)).fill_diagonal_(1)


def rate(p_value: Callable[[int], float], count: int) -> float:
    """Share of matrices with a p-value of at most 5 %."""
    return sum(p_value(seed) <= LEVEL for seed in range(count)) / count


def row(name: str, clustering: Clustering, strength: float, count: int) -> dict[str, Any]:
    """Rates of the three tests; the permutations take a tenth of the matrices."""
    few = max(count // 10, 1)

    def same(seed: int) -> float:
        return within_against_between(G := matrix(seed, strength), clustering(G)).p_value

    def other(seed: int) -> float:
        return held_out(matrix(seed, strength), matrix(seed + 10**6, strength), clustering).p_value

    def shuffled(seed: int) -> float:
        return permuted(matrix(seed, strength), clustering, permutations=PERMUTATIONS, seed=seed).p_value

    return {
        "coalitions": name,
        "planted / noise": strength / NOISE,
        "same matrix": rate(same, count),
        "held out": rate(other, count),
        f"{PERMUTATIONS} permutations": rate(shuffled, few),
        "matrices": f"{count}, {few}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--matrices", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sampler = diabat.sampler("exact")
    methods: dict[str, Clustering] = {
        "4 biclusters": lambda G: biclusters(G, COUNT),
        "communities": lambda G: communities(G, sampler, num_reads=50),
    }
    rows = [
        row(name, clustering, strength, options.matrices)
        for strength in (0.0, 0.02, 0.04)
        for name, clustering in methods.items()
    ]
    report(f"Rejections at level 5 %, {HEADS} heads", rows)


if __name__ == "__main__":
    main()
