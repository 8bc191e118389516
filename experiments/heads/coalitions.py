"""Coalitions of heads by biclustering (figure 1 of GAME-LoRA), and how often tests of them reject pure noise.

    python -m experiments.heads.coalitions [--json] [--matrices 1000]

Couplings within coalitions are large because they were chosen so: a test on the same matrix rejects noise.  Tests on
another matrix, or against coalitions found in shuffled matrices, keep their level of 5 %.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.vq import ClusterError, kmeans2
from scipy.stats import mannwhitneyu
from torch import Tensor

import diabat
from experiments.common import parser, report
from experiments.heads.communities import communities, numbered, symmetric

Clustering = Callable[[Tensor], Tensor]
"""Labels int64 [H] of a matrix [H, H], for example ``lambda G: biclusters(G, 4)``."""
_RESTARTS = 20

HEADS, COUNT, NOISE, LEVEL, PERMUTATIONS = 14, 4, 0.02, 0.05, 39


def biclusters(G: Tensor, count: int, *, seed: int = 0) -> Tensor:
    """Coalitions by spectral biclustering (Kluger et al. 2003) of a symmetric matrix, whose rows and columns agree.

    The diagonal, which is about no pair, becomes the mean of the other entries.  The matrix is shifted to be
    nonnegative and scaled to equal sums of rows and columns; k-means, the best of 20 starts, clusters the heads by the
    eigenvectors of the ``count`` - 1 largest eigenvalues behind the constant vector.  Singular vectors of negative
    eigenvalues, groups that couple less within than between, are not used.
    """
    matrix = symmetric(G)
    heads = len(matrix)
    off = ~np.eye(heads, dtype=bool)
    np.fill_diagonal(matrix, matrix[off].mean())
    values, vectors = np.linalg.eigh(_bistochastic(matrix - matrix[off].min()))
    points = (vectors * values)[:, ::-1][:, 1:count]  # the first is the constant vector
    random = np.random.default_rng(seed)
    best: tuple[float, NDArray[np.int32] | None] = (np.inf, None)
    for _ in range(_RESTARTS):
        try:
            centres, labels = kmeans2(points, count, minit="++", missing="raise", seed=random)
        except (ClusterError, ValueError):  # a start that lost a cluster
            continue
        spread = float(((points - centres[labels]) ** 2).sum())
        if spread < best[0]:
            best = spread, labels
    if best[1] is None:
        raise ValueError(f"count: expected at most as many coalitions as different heads, got {count}.")
    return numbered(best[1])


@dataclass(frozen=True)
class Comparison:
    """Couplings of pairs within communities against those between them.

    Attributes:
        pairs_within: Number of pairs i < j in one community.
        pairs_between: Number of the others.
        mean_within: Mean coupling of the former.
        mean_between: Mean of the latter.
        advantage: Probability that a pair within couples more than one between, ties counting half; 0.5 by chance.
        p_value: One-sided; 1 if all pairs are on one side.
    """

    pairs_within: int
    pairs_between: int
    mean_within: float
    mean_between: float
    advantage: float
    p_value: float


def within_against_between(G: Tensor, labels: Tensor) -> Comparison:
    """Test by Mann-Whitney whether pairs within communities couple more than pairs between them.

    Its p-value is right only if G is independent of the labels, which then come from a matrix of other data.  What both
    matrices share, such as the weights of one model, is not noise: it counts as structure.  Pairs are treated as
    independent.
    """
    matrix = symmetric(G)
    i, j = np.triu_indices(len(matrix), 1)
    values, same = matrix[i, j], (labels[i] == labels[j]).numpy()
    within, between = values[same], values[~same]
    if not len(within) or not len(between):
        mean = float(values.mean())
        return Comparison(len(within), len(between), mean, mean, 0.5, 1.0)
    found = mannwhitneyu(within, between, alternative="greater")
    advantage = float(found.statistic) / (len(within) * len(between))
    return Comparison(
        len(within), len(between), float(within.mean()), float(between.mean()), advantage, float(found.pvalue)
    )


def permuted(G: Tensor, clustering: Clustering, *, permutations: int = 199, seed: int = 0) -> Comparison:
    """Test coalitions on the matrix they were found in, against those found in shuffled matrices.

    The null hypothesis is that the pairs i < j are exchangeable.  p = (1 + number of shuffled matrices whose
    Mann-Whitney p-value is as small) / (1 + permutations).
    """
    matrix = torch.from_numpy(symmetric(G))
    found = within_against_between(matrix, clustering(matrix))
    rows, columns = torch.triu_indices(len(matrix), len(matrix), offset=1)
    generator, as_small = torch.Generator().manual_seed(seed), 0
    for _ in range(permutations):
        shuffled = matrix.diagonal().diag()
        values = matrix[rows, columns][torch.randperm(len(rows), generator=generator)]
        shuffled[rows, columns] = shuffled[columns, rows] = values
        as_small += within_against_between(shuffled, clustering(shuffled)).p_value <= found.p_value
    return replace(found, p_value=(1 + as_small) / (1 + permutations))


def _bistochastic(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """D A D with rows and columns of sum 1, A nonnegative; rows of zeros stay."""
    d = np.ones(len(matrix))
    for _ in range(1000):
        sums = d * (matrix @ d)
        if np.abs(sums[sums > 0] - 1).max(initial=0) < 1e-12:
            break
        d = d / np.sqrt(np.where(sums > 0, sums, 1))
    return d[:, None] * matrix * d


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
        labels = clustering(matrix(seed, strength))
        return within_against_between(matrix(seed + 10**6, strength), labels).p_value

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
    """Print the rates."""
    command = parser(__doc__)
    command.add_argument("--matrices", type=int, default=1000)
    options = command.parse_args()
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
    report(f"Rejections at level 5 %, {HEADS} heads", rows, as_json=options.json)


if __name__ == "__main__":
    main()
