r"""Coalitions of heads in an interaction matrix G: by spectral biclustering, or as communities of an Ising model.

Communities maximise the modularity of a signed matrix (Gómez, Jensen, Arenas 2009), A being G without its diagonal:

    Q = 1/(2m) Σ_{i≠j} B_ij δ(c_i, c_j)        B_ij = A_ij - k⁺_i k⁺_j/2m⁺ + k⁻_i k⁻_j/2m⁻

with the strengths k^± and totals 2m^± of the positive and negative entries, and 2m = 2m⁺ + 2m⁻.  A split of a group
into s_i = ±1 changes Q by Σ_{i<j} B_ij (s_i s_j - 1)/2m: an Ising model without fields, whose ground state any sampler
looks for.  Groups are split as long as that raises Q (Newman 2006).

Coalitions found in a matrix cannot be tested on the same matrix: see
:mod:`diabat.attention.heads.interaction.coalition_tests`.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.checks import ArgumentError, ArgumentTypeError, check_count
from diabat.ising import Ising
from diabat.samplers.base import Sampler

# Standard deviations of the exponent: the first visits the neighbourhood of the ground state, the second that state.
_SPREADS = (4.0, 16.0)
_RESTARTS = 20


def biclusters(G: Tensor, count: int, *, seed: int = 0) -> Tensor:
    """Coalitions by spectral biclustering (Kluger et al. 2003) of a symmetric matrix, whose rows and columns agree.

    The diagonal, which is about no pair, becomes the mean of the other entries.  The matrix is shifted to be
    nonnegative and scaled to equal sums of rows and columns; k-means, the best of 20 starts, clusters the heads by the
    eigenvectors of the ``count`` - 1 largest eigenvalues behind the constant vector.  Singular vectors of negative
    eigenvalues, groups that couple less within than between, are not used.

    Args:
        G: Floating [H, H], symmetric.
        count: Number of coalitions, 2 .. H.
        seed: Same seed, same coalitions.

    Returns:
        int64 [H]: the coalition of every head, numbered in the order of their first heads.

    Raises:
        ValueError: If G is not symmetric and finite, or has fewer different heads than coalitions.
    """
    from scipy.cluster.vq import ClusterError, kmeans2

    matrix = symmetric(G)
    heads = len(matrix)
    check_count("count", count, least=2, most=heads)
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
        raise ArgumentError("count", f"expected at most as many coalitions as different heads, got {count}.")
    return _numbered(best[1])


def communities(G: Tensor, sampler: Sampler, *, num_reads: int = 100, seed: int = 0) -> Tensor:
    """Coalitions of largest modularity, by repeated splits that a sampler looks for.

    Args:
        G: Floating [H, H], symmetric; its diagonal does not count.
        sampler: Any sampler of diabat that takes H - 1 spins.
        num_reads: Reads per split and temperature.
        seed: Same seed, same coalitions.

    Returns:
        int64 [H]: the coalition of every head, numbered in the order of their first heads.

    Raises:
        ValueError: If G is not symmetric and finite.
        TypeError: If the sampler is none.
    """
    if not isinstance(sampler, Sampler):
        raise ArgumentTypeError(
            "sampler", f"expected a Sampler, as diabat.sampler('tempering') gives it, got {sampler!r:.60}."
        )
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
    return _numbered(labels)


def modularity(G: Tensor, labels: Tensor) -> float:
    """Q of coalitions, int64 [H], in a symmetric matrix [H, H]."""
    matrix = symmetric(G)
    same = labels[:, None] == labels
    if labels.shape != (len(matrix),):
        raise ArgumentError("labels", f"expected [{len(matrix)}], got {list(labels.shape)}.")
    B = _modularity_matrix(matrix)
    return float((B * same.numpy()).sum())


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
    spread = float((fields.square().sum() + couplings.square().sum() / 2).sqrt())
    if not spread:
        return None
    reads = [
        sampler.sample(
            Ising(target / spread * fields, target / spread * couplings), num_reads, seed=seed
        ).spins
        for target in _SPREADS
    ]
    states = torch.unique(torch.cat(reads).cpu().double(), dim=0)
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


def _bistochastic(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """D A D with rows and columns of sum 1, A nonnegative; rows of zeros stay."""
    d = np.ones(len(matrix))
    for _ in range(1000):
        sums = d * (matrix @ d)
        if np.abs(sums[sums > 0] - 1).max(initial=0) < 1e-12:
            break
        d = d / np.sqrt(np.where(sums > 0, sums, 1))
    return d[:, None] * matrix * d


def _numbered(labels: NDArray) -> Tensor:
    order: dict[int, int] = {}
    return torch.tensor([order.setdefault(int(label), len(order)) for label in labels])
