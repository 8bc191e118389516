r"""Communities of heads in an interaction matrix G, found by an Ising model.

They maximise the modularity of a signed matrix (Gómez, Jensen, Arenas 2009), A being G without its diagonal:

    Q = 1/(2m) Σ_{i≠j} B_ij δ(c_i, c_j)        B_ij = A_ij - k⁺_i k⁺_j/2m⁺ + k⁻_i k⁻_j/2m⁻

with the strengths k^± and totals 2m^± of the positive and negative entries, and 2m = 2m⁺ + 2m⁻.  A split of a group
into s_i = ±1 changes Q by Σ_{i<j} B_ij (s_i s_j - 1)/2m: an Ising model without fields, whose ground state any sampler
looks for.  Groups are split as long as that raises Q (Newman 2006).

Communities are chosen so that the couplings within are large: a test on the matrix that they were found in rejects
pure noise most of the time.  Test them on a matrix of other data.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu
from torch import Tensor

from diabat.checks import ArgumentError, check_count
from diabat.heads.games.search import low_energy_states
from diabat.samplers.base import Sampler


def communities(G: Tensor, sampler: Sampler, *, num_reads: int = 100, seed: int = 0) -> Tensor:
    """Communities of largest modularity, by repeated splits that a sampler looks for.

    Args:
        G: Floating [H, H], symmetric; its diagonal does not count.
        sampler: Any sampler of diabat that takes H - 1 spins.
        num_reads: Reads per split and temperature.
        seed: Same seed, same communities.

    Returns:
        int64 [H]: the community of every head, numbered in the order of their first heads.

    Raises:
        ValueError: If G is not symmetric and finite.
        TypeError: If the sampler is none.
    """
    check_count("num_reads", num_reads)
    B = _modularity_matrix(symmetric(G))
    labels = np.zeros(len(B), dtype=np.int64)
    pending, used = [np.arange(len(B))], 1
    while pending:
        group = pending.pop()
        split = _best_split(B[np.ix_(group, group)], sampler, num_reads, (seed + used) % 2**63)
        if split is None:
            continue
        labels[group[split]] = used
        pending += [group[~split], group[split]]
        used += 1
    order: dict[int, int] = {}
    return torch.tensor([order.setdefault(int(label), len(order)) for label in labels])


def modularity(G: Tensor, labels: Tensor) -> float:
    """Q of communities, int64 [H], in a symmetric matrix [H, H]."""
    matrix = symmetric(G)
    same = labels[:, None] == labels
    if labels.shape != (len(matrix),):
        raise ArgumentError("labels", f"expected [{len(matrix)}], got {list(labels.shape)}.")
    B = _modularity_matrix(matrix)
    return float((B * same.numpy()).sum())


def within_against_between(G: Tensor, labels: Tensor) -> tuple[float, float]:
    """Test by Mann-Whitney whether pairs within communities couple more than pairs between them.

    The p-value is right only if G is independent of the labels, which then come from a matrix of other data.  What both
    matrices share, such as the weights of one model, is not noise: it counts as structure.  Pairs are treated as
    independent.

    Returns:
        Probability that a pair within couples more than one between, ties counting half, and the one-sided p; 0.5 and
        1 if all pairs are on one side.
    """
    matrix = symmetric(G)
    i, j = np.triu_indices(len(matrix), 1)
    values, same = matrix[i, j], (labels[i] == labels[j]).numpy()
    within, between = values[same], values[~same]
    if not len(within) or not len(between):
        return 0.5, 1.0
    found = mannwhitneyu(within, between, alternative="greater")
    return float(found.statistic) / (len(within) * len(between)), float(found.pvalue)


def symmetric(G: Tensor) -> NDArray[np.float64]:
    """Return a copy of a matrix as float64.

    Raises:
        ValueError: If it is not a finite symmetric matrix of two rows or more.
    """
    if not isinstance(G, Tensor) or G.ndim != 2 or G.shape[0] != G.shape[1] or len(G) < 2:
        got = list(G.shape) if isinstance(G, Tensor) else type(G).__name__
        raise ArgumentError("G", f"expected a tensor [H, H] with H >= 2, got {got}.")
    matrix = G.detach().cpu().double()
    if not bool(torch.isfinite(matrix).all()) or not torch.allclose(matrix, matrix.T, rtol=0, atol=1e-6):
        raise ArgumentError("G", "expected a finite symmetric matrix, got another.")
    return np.array(((matrix + matrix.T) / 2).numpy())


def _best_split(
    B: NDArray[np.float64], sampler: Sampler, num_reads: int, seed: int
) -> NDArray[np.bool_] | None:
    """Part of a group that is split off; None if no read raises the modularity."""
    if len(B) < 2:
        return None
    # Spin 0 stands still: without it every state has a mirror image, and the magnetization is 0.
    fields = torch.from_numpy(B[0, 1:].copy())
    couplings = torch.from_numpy(B[1:, 1:].copy()).fill_diagonal_(0)
    states = 2 * low_energy_states(fields, couplings, sampler, num_reads, seed).double() - 1
    if not len(states):
        return None
    # Relative to no split, s = 1: the change of the modularity.
    exponent = states @ fields + 0.5 * ((states @ couplings) * states).sum(1)
    gain = exponent - (fields.sum() + couplings.sum() / 2)
    best = int(gain.argmax())
    if float(gain[best]) <= 1e-12:
        return None
    return np.concatenate(([False], states[best].numpy() < 0))


def _modularity_matrix(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """B/2m, without diagonal."""
    A = matrix - np.diag(np.diag(matrix))
    B = A.copy()
    for part, sign in ((np.clip(A, 0, None), 1), (np.clip(-A, 0, None), -1)):
        strength, total = part.sum(1), part.sum()
        if total > 0:
            B -= sign * np.outer(strength, strength) / total
    np.fill_diagonal(B, 0)
    return B / max(float(np.abs(A).sum()), np.finfo(float).tiny)
