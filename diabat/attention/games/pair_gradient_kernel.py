"""Compiled derivatives of the sums over all pairs of the token game; imported on first use."""

from __future__ import annotations

from typing import Any

from diabat.attention.games.pair_kernel import (
    NUMBERS,
    SIGN,
    Problems,
    interaction,
    log_weight,
    norms,
    problem,
)
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
    skip,
    store,
    sub,
    where_less,
)
from diabat.compute.simd_functions import exponential, sum_of

# Sums over pairs: derivatives by ‖S ± V_i‖², by Δ with its sign, and by the log-weights of partners outside C.
TO_CHANGE, TO_SINGLE, TO_LOGIT, SUMS = range(4)
# Vectors of columns that share the sums over lanes.
STRIP = 4


@inner
def accumulate(sums: Any, index: int, value: Any) -> None:
    """Add to a row of sums."""
    store(sums, index, add(load(sums, index), value))


@inner
def pair_gradient(
    p: Problems, start: int, row: int, twice: Any, cotangent: Any, mean: Any, normaliser: Any, of_columns: Any,
    of_row: Any, to_beta: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Add to the sums of the columns and of the row; returns dL/dG_ij and the sum of dL/d(1/γ) with these pairs.

    L = Σ u_ij J_ij over pairs j < i, dJ = Σ_k w_k (dΔ_k + (Δ_k - J) dℓ_k) with ℓ the log-weights.
    """
    to_gram, zero = constant(twice, 0.0), constant(twice, 0.0)
    half, one = constant(twice, 0.5), constant(twice, 1.0)
    weighted = mul(cotangent, constant(twice, 1.0 / p.coalitions))
    for k in range(p.coalitions):
        at, at_row = start + k * NUMBERS, row + k * NUMBERS
        signs, cross, norm, double = norms(p, at, at_row, k, twice)
        if p.gibbs:
            logit = log_weight(p, at, at_row, k, double)
            weighted = mul(cotangent, exponential(sub(logit, normaliser)))
        to_double = mul(weighted, signs)
        accumulate(of_columns, k * SUMS + TO_SINGLE, to_double)
        accumulate(of_row, k * SUMS + TO_SINGLE, to_double)
        if p.gibbs:
            delta = interaction(p, at, at_row, signs, cross, double)
            to_logit = mul(weighted, sub(delta, mean))
            own, other = entry(p.rows, at_row + SIGN), load(p.columns, at + SIGN)
            accumulate(of_columns, k * SUMS + TO_LOGIT, where_less(own, zero, zero, to_logit))
            accumulate(of_row, k * SUMS + TO_LOGIT, where_less(other, zero, zero, to_logit))
            both = where_less(own, zero, where_less(other, zero, to_logit, zero), zero)
            to_beta = fma(both, double, to_beta)
            to_double = fma(p.beta, both, to_double)
        if p.tanh:
            to_double = mul(to_double, fnma(double, double, one))
        # The subgradient of the norm at 0 is 0.
        to_square = where_less(zero, norm, divide(mul(half, to_double), norm), zero)
        accumulate(of_columns, k * SUMS + TO_CHANGE, to_square)
        accumulate(of_row, k * SUMS + TO_CHANGE, to_square)
        to_gram = fma(to_square, add(signs, signs), to_gram)
    return to_gram, to_beta


@inner
def clear(rows: Any, count: int, like: Any) -> None:
    """Fill rows with zeros."""
    for k in range(count):
        store(rows, k, constant(like, 0.0))


@inner
def both_cotangents(u: Any, rows: Any, first: int, lanes: int, out: Any) -> None:
    """Fill out[i - first] with u_ij + u_ji of the columns j = first + lane; 0 where j >= i, or one is no player."""
    n = len(rows)
    for lane in range(lanes):
        j = first + lane
        for i in range(first, n):
            real = j < i and rows[i, 0, SIGN] != 0 and rows[j, 0, SIGN] != 0
            out[i - first, lane] = u[i, j] + u[j, i] if real else 0.0


@inner
def add_row(sums: Any, vectors: Any) -> None:
    """Add sums over lanes to sums [K, SUMS]."""
    for k in range(len(sums)):
        for s in range(SUMS):
            sums[k, s] += sum_of(load(vectors, k * SUMS + s))


@inner
def add_columns(sums: Any, vectors: Any, first: int) -> None:
    """Add vectors [K · SUMS, lanes] to sums [n, K, SUMS] of the players from ``first`` on."""
    for lane in range(min(vectors.shape[1], len(sums) - first)):
        for k in range(sums.shape[1]):
            for s in range(SUMS):
                sums[first + lane, k, s] += vectors[k * SUMS + s, lane]


@jit
def run_gradients(
    items: Any, first: int, p: Any, work: Any, cotangents: Any, u: Any, mean: Any, normaliser: Any, to_gram: Any,
    sums: Any, to_beta: Any,
) -> None:  # fmt: skip
    """Derivatives of L = Σ u_ij J_ij.

    Args:
        items: As in ``run_means``.
        first: Index of the first of these items among all.
        p: The problems.
        work: Scratch [STRIP + 1, K · SUMS, lanes].
        cotangents: Scratch [STRIP, n, lanes].
        u: [N, n, n].
        mean: J, [N, n, V, lanes].
        normaliser: As in ``run_errors``.
        to_gram: dL/dG_ij of pairs j < i, [N, n, V, lanes]; written for the columns of these items.
        sums: Sums over the pairs of every player, zeros [all items, n, K, SUMS].
        to_beta: dL/d(1/γ) by the norms of pairs inside C, [all items].
    """
    _, n, vectors, lanes = p.gram.shape
    count = p.rows.shape[2]
    numbers = count * SUMS
    row_sums = address(work[STRIP])
    for item in range(len(items)):
        N, end, of_item = items[item, 0], items[item, 2], sums[first + item]
        one = problem(p, N)
        means, normalisers, out = address(mean[N]), address(normaliser[N]), address(to_gram[N])
        of_beta = constant(one.beta, 0.0)
        for strip in range(items[item, 1], end, STRIP):
            strip_end = min(strip + STRIP, end)
            for v in range(strip, strip_end):
                both_cotangents(u[N], p.rows[N], v * lanes, lanes, cotangents[v - strip])
            clear(address(work), STRIP * numbers, one.beta)
            for i in range(strip * lanes, n):
                clear(row_sums, numbers, one.beta)
                for v in range(strip, min(strip_end, i // lanes + 1)):
                    place = i * vectors + v
                    g, u_ij = (
                        load(one.gram, place),
                        load(address(cotangents), (v - strip) * n + i - v * lanes),
                    )
                    own = skip(address(work), (v - strip) * numbers)
                    of_gram, of_beta = pair_gradient(
                        one, v * count * NUMBERS, i * count * NUMBERS, add(g, g), u_ij, load(means, place),
                        load(normalisers, place), own, row_sums, of_beta,
                    )  # fmt: skip
                    store(out, place, of_gram)
                add_row(of_item[i], row_sums)
            for v in range(strip, strip_end):
                add_columns(of_item, work[v - strip], v * lanes)
        to_beta[first + item] = sum_of(of_beta)
