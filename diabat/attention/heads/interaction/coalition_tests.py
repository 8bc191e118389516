"""Whether coalitions of heads couple more within than between them: Mann-Whitney, on held-out data or by permutations.

Coalitions are chosen so that the couplings within are large.  A test on the matrix that they were found in rejects pure
noise most of the time, so the test takes a matrix of other data, or repeats the search on shuffled matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from diabat.attention.heads.interaction.communities import symmetric
from diabat.checks import ArgumentError, check_count

Clustering = Callable[[Tensor], Tensor]
"""Labels int64 [H] of a matrix [H, H], for example ``lambda G: biclusters(G, 4)``."""


@dataclass(frozen=True)
class Comparison:
    """Couplings of pairs within coalitions against those between them.

    Attributes:
        pairs_within: Number of pairs i < j in one coalition.
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
    """Test by Mann-Whitney whether pairs within coalitions couple more than pairs between them.

    Its p-value is right only if G is independent of the labels: :func:`held_out`.  Pairs are treated as independent.

    Args:
        G: Couplings, or their change during a training, floating [H, H], symmetric.
        labels: Coalition of every head, int64 [H].

    Raises:
        ValueError: If the shapes do not match.
    """
    from scipy.stats import mannwhitneyu

    matrix = symmetric(G)
    if labels.shape != (len(matrix),):
        raise ArgumentError("labels", f"expected [{len(matrix)}], got {list(labels.shape)}.")
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


def held_out(found_in: Tensor, tested_on: Tensor, clustering: Clustering) -> Comparison:
    """Cluster one matrix and test on another of independent data.

    What both matrices share, such as the weights of one model, is not noise: it counts as structure.

    Args:
        found_in: Matrix in which coalitions are found, [H, H].
        tested_on: Matrix in which they are tested, [H, H].
        clustering: Function from a matrix to labels.
    """
    return within_against_between(tested_on, clustering(found_in))


def permuted(G: Tensor, clustering: Clustering, *, permutations: int = 199, seed: int = 0) -> Comparison:
    """Test coalitions on the matrix they were found in, against those found in shuffled matrices.

    The null hypothesis is that the pairs i < j are exchangeable.  p = (1 + number of shuffled matrices whose
    Mann-Whitney p-value is as small) / (1 + permutations).

    Args:
        G: [H, H], symmetric.
        clustering: Function from a matrix to labels.
        permutations: Number of shuffled matrices.
        seed: Same seed, same shuffles.

    Raises:
        ValueError: If an argument is out of range.
    """
    check_count("permutations", permutations)
    matrix = torch.from_numpy(symmetric(G))
    found = within_against_between(matrix, clustering(matrix))
    rows, columns = torch.triu_indices(len(matrix), len(matrix), offset=1)
    generator, as_small = torch.Generator().manual_seed(seed), 0
    for _ in range(permutations):
        shuffled = matrix.diagonal().diag()
        values = matrix[rows, columns][torch.randperm(len(rows), generator=generator)]
        shuffled[rows, columns] = shuffled[columns, rows] = values
        as_small += within_against_between(shuffled, clustering(shuffled)).p_value <= found.p_value
    return Comparison(
        **{**vars(found), "p_value": (1 + as_small) / (1 + permutations)},
    )
