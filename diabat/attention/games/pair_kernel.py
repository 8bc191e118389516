r"""Compiled sums over the coalitions of all pairs of the token game; imported on first use.

The columns j of a row i are the lanes, and only pairs with j < i count.  What belongs to one pair and one coalition
stays in registers: see :mod:`diabat.attention.games.pairs` for the equations, and
:mod:`diabat.attention.games.pair_tile` for the same in torch.

Per player and coalition there are the numbers

    ``SIGN`` ε_i (0 of what is no player, by which Δ is 0),  ``CHANGE`` t_i (columns: t_j + ‖S‖²),  ``SINGLE`` R_i,
    ``RISE`` R_i - Q = t_i/(R_i + Q),  ``LOGIT`` R_i/γ - log p (columns j outside C: Q/γ - log p).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from diabat.compute.jit import inner, jit
from diabat.compute.simd import (
    add,
    address,
    constant,
    divide,
    entry,
    fma,
    fnma,
    load,
    mul,
    splat,
    store,
    sub,
    where_less,
)
from diabat.compute.simd_functions import exponential, logarithm, square_root, tanh

SIGN, CHANGE, SINGLE, RISE, LOGIT, NUMBERS = range(6)


class Problems(NamedTuple):
    """N problems of n players and K coalitions, in V vectors of columns.

    Attributes:
        gram: G, [N, n, V, lanes].
        rows: The numbers of every player, [N, n, K, NUMBERS].
        columns: The same by columns, [N, V, K, NUMBERS, lanes].
        floor: Squared norms up to this are zero, [N, K].
        log_pair: log p of the context of pairs inside C, [N, K].
        beta: 1/γ, [N].
        coalitions: K.
        gibbs: Whether the weights are Gibbs weights, else 1/K.
        tanh: Whether f is tanh.
    """

    gram: Any
    rows: Any
    columns: Any
    floor: Any
    log_pair: Any
    beta: Any
    coalitions: int
    gibbs: bool
    tanh: bool


@inner
def problem(p: Problems, N: int) -> Problems:
    """Number N of the problems: the addresses of its numbers, and 1/γ in all lanes."""
    gram, rows, columns = address(p.gram[N]), address(p.rows[N]), address(p.columns[N])
    floor, log_pair, beta = address(p.floor[N]), address(p.log_pair[N]), splat(p.beta[N])
    return Problems(gram, rows, columns, floor, log_pair, beta, p.coalitions, p.gibbs, p.tanh)


@inner
def norms(p: Problems, at: int, row: int, k: int, twice: Any) -> tuple[Any, Any, Any, Any]:
    """ε_i ε_j, 2 ε_i ε_j G_ij, ‖S ± V_i ± V_j‖ and f of it, in the coalition k."""
    signs = mul(load(p.columns, at + SIGN), entry(p.rows, row + SIGN))
    cross = mul(signs, twice)
    square = add(add(load(p.columns, at + CHANGE), entry(p.rows, row + CHANGE)), cross)
    norm = square_root(where_less(entry(p.floor, k), square, square, constant(square, 0.0)))
    if p.tanh:
        return signs, cross, norm, tanh(norm)
    return signs, cross, norm, norm


@inner
def interaction(p: Problems, at: int, row: int, signs: Any, cross: Any, double: Any) -> Any:
    """Δ_ij, as in `pair_tile.interactions`."""
    own, other = entry(p.rows, row + SINGLE), load(p.columns, at + SINGLE)
    rise = load(p.columns, at + RISE)
    if p.tanh:
        return mul(signs, sub(sub(double, own), rise))
    zero, one = constant(double, 0.0), constant(double, 1.0)
    first, second = add(double, other), add(double, own)
    # Infinity in place of 0, by which the quotient vanishes.
    inverse = where_less(zero, first, divide(one, first), zero)
    part = fma(add(entry(p.rows, row + CHANGE), cross), inverse, entry(p.rows, row + RISE))
    part = fnma(rise, part, cross)
    return mul(signs, where_less(zero, second, divide(part, second), zero))


@inner
def log_weight(p: Problems, at: int, row: int, k: int, double: Any) -> Any:
    r"""v(C \ {i,j})/γ - log p."""
    zero = constant(double, 0.0)
    both = sub(mul(p.beta, double), entry(p.log_pair, k))
    with_row = where_less(load(p.columns, at + SIGN), zero, both, entry(p.rows, row + LOGIT))
    return where_less(entry(p.rows, row + SIGN), zero, with_row, load(p.columns, at + LOGIT))


@inner
def gibbs_mean(p: Problems, start: int, row: int, twice: Any, kept: Any) -> tuple[Any, Any, Any]:
    """Weighted sum of Δ over k, the sum of the weights, and the log of their scale."""
    largest = constant(twice, -1e38)
    for k in range(p.coalitions):
        at, of_row = start + k * NUMBERS, row + k * NUMBERS
        signs, cross, _, double = norms(p, at, of_row, k, twice)
        logit = log_weight(p, at, of_row, k, double)
        largest = where_less(largest, logit, logit, largest)
        store(kept, 2 * k, interaction(p, at, of_row, signs, cross, double))
        store(kept, 2 * k + 1, logit)
    total, weighted = constant(twice, 0.0), constant(twice, 0.0)
    for k in range(p.coalitions):
        w = exponential(sub(load(kept, 2 * k + 1), largest))
        total = add(total, w)
        weighted = fma(w, load(kept, 2 * k), weighted)
    return weighted, total, largest


@inner
def uniform_sum(p: Problems, start: int, row: int, twice: Any) -> Any:
    """Sum of Δ over k."""
    total = constant(twice, 0.0)
    for k in range(p.coalitions):
        at, of_row = start + k * NUMBERS, row + k * NUMBERS
        signs, cross, _, double = norms(p, at, of_row, k, twice)
        total = add(total, interaction(p, at, of_row, signs, cross, double))
    return total


@inner
def mirror(pairs: Any, j: int) -> None:
    """Complete row j of a matrix from its entries (i, j), i > j."""
    pairs[j, j] = 0.0
    for i in range(j + 1, len(pairs)):
        pairs[j, i] = pairs[i, j]


@jit
def run_means(items: Any, p: Any, kept: Any, mean: Any, normaliser: Any) -> None:
    """Fill J = Σ_k w_k Δ_k, symmetric, and of Gibbs weights log Σ_k exp(v/γ)/p of pairs j < i.

    Args:
        items: Problem, first vector of columns, and the one behind the last, int64 [items, 3].
        p: The problems.
        kept: Scratch [2K, lanes].
        mean: J, [N, n, V · lanes].
        normaliser: Likewise.
    """
    _, n, vectors, lanes = p.gram.shape
    for item in range(len(items)):
        N = items[item, 0]
        one = problem(p, N)
        to_mean, to_normaliser = address(mean[N]), address(normaliser[N])
        for v in range(items[item, 1], items[item, 2]):
            for i in range(v * lanes, n):
                at, start, row = i * vectors + v, v * one.coalitions * NUMBERS, i * one.coalitions * NUMBERS
                g = load(one.gram, at)
                twice = add(g, g)
                if p.gibbs:
                    weighted, weights, scale = gibbs_mean(one, start, row, twice, address(kept))
                    store(to_mean, at, divide(weighted, weights))
                    store(to_normaliser, at, add(scale, logarithm(weights)))
                else:
                    found = uniform_sum(one, start, row, twice)
                    store(to_mean, at, divide(found, constant(found, one.coalitions)))
            for j in range(v * lanes, min((v + 1) * lanes, n)):
                mirror(mean[N], j)


@jit
def run_errors(items: Any, p: Any, unit: int, mean: Any, normaliser: Any, squares: Any, weights: Any) -> None:
    """Fill Σ_units (Σ_k w_k (Δ_k - mean))² and Σ_k w_k², symmetric, each [N, n, V · lanes].

    Args:
        items: As in :func:`run_means`.
        p: The problems.
        unit: Consecutive coalitions that are not independent; K is a multiple of it.
        mean: J, [N, n, V, lanes].
        normaliser: log Σ_k exp(v/γ)/p, likewise.
        squares: See above.
        weights: See above.
    """
    _, n, vectors, lanes = p.gram.shape
    count = p.rows.shape[2]
    for item in range(len(items)):
        N = items[item, 0]
        one = problem(p, N)
        means, normalisers = address(mean[N]), address(normaliser[N])
        to_squares, to_weights = address(squares[N]), address(weights[N])
        for v in range(items[item, 1], items[item, 2]):
            for i in range(v * lanes, n):
                place = i * vectors + v
                g, center, log_total = load(one.gram, place), load(means, place), load(normalisers, place)
                twice, w = add(g, g), constant(g, 1.0 / count)
                of_units, of_unit, of_weights = constant(g, 0.0), constant(g, 0.0), constant(g, 0.0)
                left = unit
                for k in range(count):
                    at, row = (v * count + k) * NUMBERS, (i * count + k) * NUMBERS
                    signs, cross, _, double = norms(one, at, row, k, twice)
                    delta = interaction(one, at, row, signs, cross, double)
                    if p.gibbs:
                        logit = log_weight(one, at, row, k, double)
                        w = exponential(sub(logit, log_total))
                    of_unit = fma(w, sub(delta, center), of_unit)
                    of_weights = fma(w, w, of_weights)
                    left -= 1
                    if left == 0:
                        left = unit
                        of_units = fma(of_unit, of_unit, of_units)
                        of_unit = constant(g, 0.0)
                store(to_squares, place, of_units)
                store(to_weights, place, of_weights)
            for j in range(v * lanes, min((v + 1) * lanes, n)):
                mirror(squares[N], j)
                mirror(weights[N], j)
