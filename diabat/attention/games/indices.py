r"""Exact power indices of a tabulated game v [..., 2^n]; all differentiable in the table.

Interaction of a pair in the context B ⊆ N \ {i, j}:  Δ_ij(B) = v(B+i+j) - v(B+i) - v(B+j) + v(B).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from diabat.attention.games import tables
from diabat.attention.games.estimate import Temperature, inverse_temperature
from diabat.attention.games.tables import mobius, num_players, sizes, superset_sums
from diabat.checks import ArgumentError, is_integer


def harsanyi_dividends(table: Tensor) -> Tensor:
    r"""Dividends m(S) = Σ_{T ⊆ S} (-1)^{|S|-|T|} v(T), [..., 2^n]: the worth S adds to that of its parts.

    They are the Möbius transform of the game, and v(S) = Σ_{T ⊆ S} m(T).
    """
    return mobius(table)


def shapley(table: Tensor) -> Tensor:
    r"""Shapley value φ_i = Σ_{B ⊆ N∖i} |B|! (n-1-|B|)!/n! (v(B+i) - v(B)), [..., n]; Σ_i φ_i = v(N) - v(∅)."""
    n = num_players(table)
    return _players(table, [1 / (n * math.comb(n - 1, s)) for s in range(n)])


def banzhaf(table: Tensor) -> Tensor:
    r"""Banzhaf index β_i = 2^-(n-1) Σ_{B ⊆ N∖i} (v(B+i) - v(B)), [..., n]."""
    n = num_players(table)
    return _players(table, [0.5 ** (n - 1)] * n)


def shapley_interaction(table: Tensor) -> Tensor:
    r"""Shapley interaction index Σ_B |B|! (n-2-|B|)!/(n-1)! Δ_ij(B), symmetric [..., n, n] with zero diagonal."""
    n = num_players(table)
    return _pairs(table, [1 / ((n - 1) * math.comb(n - 2, s)) for s in range(n - 1)])


def banzhaf_interaction(table: Tensor) -> Tensor:
    r"""Banzhaf interaction index 2^-(n-2) Σ_B Δ_ij(B), symmetric [..., n, n] with zero diagonal."""
    n = num_players(table)
    return _pairs(table, [0.5 ** (n - 2)] * (n - 1))


def k_sii(table: Tensor, order: int = 2) -> Tensor:
    r"""k-Shapley interaction values up to ``order``, as a table [..., 2^n].

        I_k(S) = SII(S) for |S| = k,     I_k(S) = I_{k-1}(S) + B_{k-|S|} Σ_{T ⊆ N∖S, |S|+|T| = k} SII(S ∪ T)

    with Bernoulli numbers B_1 = -1/2, B_2 = 1/6, ... (Bord and von Luxburg 2023) and
    SII(S) = Σ_{T ⊇ S} m(T)/(|T| - |S| + 1).

    Args:
        table: v, [..., 2^n].
        order: k, 1 <= k <= n.

    Returns:
        I_k(S) at the index of S, 0 where |S| > k, v(∅) at ∅: the entries sum to v(N).  Computed in float64.

    Raises:
        ValueError: If the order is out of range.
    """
    n = num_players(table)
    if not is_integer(order) or not 1 <= order <= n:
        raise ArgumentError("order", f"an integer in 1 .. {n}", repr(order))
    size = sizes(n, table.device)
    dividends = mobius(table.double())
    # One transform per size serves all sets of that size: the weight depends on |T| - |S| only.
    interactions = torch.zeros_like(dividends)
    for s in range(1, order + 1):
        weight = torch.where(size >= s, 1 / (size - s + 1).clamp_min(1).double(), 0)
        interactions = torch.where(size == s, superset_sums(dividends * weight), interactions)
    result = torch.where(size <= order, interactions, 0)
    bernoulli = _bernoulli(order)
    for larger in range(2, order + 1):
        above = superset_sums(torch.where(size == larger, interactions, 0))
        for s in range(1, larger):
            result = result + torch.where(size == s, bernoulli[larger - s] * above, 0)
    result = torch.where(size == 0, table.double()[..., :1], result)
    return result.to(table.dtype)


def gibbs_marginal(table: Tensor, temperature: Temperature) -> Tensor:
    r"""Gibbs-weighted marginal contribution, the limit of the paper's estimators of φ **and** of β, [..., n].

        g_i = Σ_{B ⊆ N∖i} e^{v(B)/γ} (v(B+i) - v(B)) / Σ_{B ⊆ N∖i} e^{v(B)/γ}

    Dividing by the proposal p(B), as the weights e^{v(B)/γ}/p(B) do, removes the only thing in which the two
    samplings differ.  As γ → ∞ it becomes the Banzhaf index.

    Args:
        table: v, [..., 2^n].
        temperature: γ > 0, a number or a tensor that broadcasts to the leading dimensions.

    Raises:
        ValueError: If a temperature is not positive.
    """
    n, beta = num_players(table), inverse_temperature(temperature, table)[..., None]
    columns = []
    for i in range(n):
        without, within = (half.flatten(-2) for half in _split(table, i).unbind(-2))
        weight = torch.softmax(beta * without, -1)
        columns.append((weight * (within - without)).sum(-1))
    return torch.stack(columns, -1) if n else table[..., :0]


def gibbs_interaction(table: Tensor, temperature: Temperature) -> Tensor:
    r"""Gibbs-weighted interaction Σ_B e^{v(B)/γ} Δ_ij(B) / Σ_B e^{v(B)/γ}, B ⊆ N\{i,j}, [..., n, n].

    The limit of the paper's estimator of J_ij; the Banzhaf interaction index as γ → ∞.  Arguments as in
    :func:`gibbs_marginal`.
    """
    n, beta = num_players(table), inverse_temperature(temperature, table)[..., None]
    result = table.new_zeros(*table.shape[:-1], n, n)
    for i in range(n):
        low, high = (half.flatten(-2) for half in _split(table, i).unbind(-2))
        for j in range(i):
            halves = (_split(part, j).unbind(-2) for part in (low, high))
            (v0, vj), (vi, vij) = ((x.flatten(-2) for x in pair) for pair in halves)
            value = (torch.softmax(beta * v0, -1) * (vij - vi - vj + v0)).sum(-1)
            where = torch.zeros(n, n, dtype=table.dtype, device=table.device)
            where[i, j] = where[j, i] = 1
            result = result + value[..., None, None] * where
    return result


def _split(table: Tensor, player: int) -> Tensor:
    """View [..., 2^(n-1-player), 2, 2^player], so that dimension -2 is the player's bit."""
    return table.reshape(*table.shape[:-1], -1, 2, 1 << player)


def _players(table: Tensor, weights: list[float]) -> Tensor:
    r"""Σ_{B ⊆ N∖i} w(|B|) (v(B+i) - v(B)) for every i."""
    n = num_players(table)
    size = sizes(n, table.device)
    w = torch.tensor([0, *weights, 0], dtype=table.dtype, device=table.device)  # w[s + 1] is that of size s
    # A coalition counts w(|C|-1) for its members and -w(|C|) for the others.
    others = table * w[size + 1]
    return tables.containing_one(table * w[size] + others) - others.sum(-1, keepdim=True)


def _pairs(table: Tensor, weights: list[float]) -> Tensor:
    r"""Σ_{B ⊆ N\{i,j}} w(|B|) Δ_ij(B) for every pair."""
    n = num_players(table)
    if n < 2:
        return table.new_zeros(*table.shape[:-1], n, n)
    size = sizes(n, table.device)
    w = torch.tensor([0, 0, *weights, 0, 0], dtype=table.dtype, device=table.device)  # w[s + 2] of size s
    none, one, two = w[size + 2], w[size + 1], w[size]  # C has none, one or both of i and j
    single = tables.containing_one(-table * (one + none))
    both = tables.containing_two(table * (two + 2 * one + none))
    pairs = both + single[..., :, None] + single[..., None, :] + (table * none).sum(-1)[..., None, None]
    return pairs * (1 - torch.eye(n, dtype=table.dtype, device=table.device))


def _bernoulli(count: int) -> list[float]:
    """Bernoulli numbers B_0 .. B_count with B_1 = -1/2."""
    numbers = [1.0]
    for m in range(1, count + 1):
        numbers.append(-sum(math.comb(m + 1, k) * numbers[k] for k in range(m)) / (m + 1))
    return numbers
