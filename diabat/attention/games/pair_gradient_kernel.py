"""Compiled derivatives of the sums over all pairs of the token game; imported on first use."""

from __future__ import annotations

from typing import Any

from diabat.attention.games.pair_kernel import NUMBERS, SIGN, interaction, log_weight, norms
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
    splat,
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
    columns: Any,
    start: int,
    rows: Any,
    row: int,
    twice: Any,
    floor: Any,
    log_pair: Any,
    beta: Any,
    count: int,
    is_tanh: bool,
    gibbs: bool,
    cotangent: Any,
    mean: Any,
    normaliser: Any,
    of_columns: Any,
    of_row: Any,
    to_beta: Any,
) -> tuple[Any, Any]:
    """Add to the sums of the columns and of the row; returns dL/dG_ij and the sum of dL/d(1/γ) with these pairs.

    L = Σ u_ij J_ij over pairs j < i, dJ = Σ_k w_k (dΔ_k + (Δ_k - J) dℓ_k) with ℓ the log-weights.
    """
    to_gram, zero = constant(twice, 0.0), constant(twice, 0.0)
    half, one = constant(twice, 0.5), constant(twice, 1.0)
    weighted = mul(cotangent, constant(twice, 1.0 / count))
    for k in range(count):
        at, at_row = start + k * NUMBERS, row + k * NUMBERS
        signs, cross, norm, double = norms(columns, at, rows, at_row, twice, entry(floor, k), is_tanh)
        if gibbs:
            logit = log_weight(columns, at, rows, at_row, double, beta, entry(log_pair, k))
            weighted = mul(cotangent, exponential(sub(logit, normaliser)))
        to_double = mul(weighted, signs)
        accumulate(of_columns, k * SUMS + TO_SINGLE, to_double)
        accumulate(of_row, k * SUMS + TO_SINGLE, to_double)
        if gibbs:
            delta = interaction(columns, at, rows, at_row, signs, cross, double, is_tanh)
            to_logit = mul(weighted, sub(delta, mean))
            own, other = entry(rows, at_row + SIGN), load(columns, at + SIGN)
            accumulate(of_columns, k * SUMS + TO_LOGIT, where_less(own, zero, zero, to_logit))
            accumulate(of_row, k * SUMS + TO_LOGIT, where_less(other, zero, zero, to_logit))
            both = where_less(own, zero, where_less(other, zero, to_logit, zero), zero)
            to_beta = fma(both, double, to_beta)
            to_double = fma(beta, both, to_double)
        if is_tanh:
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
    items: Any,
    first: int,
    p: Any,
    work: Any,
    cotangents: Any,
    u: Any,
    mean: Any,
    normaliser: Any,
    to_gram: Any,
    sums: Any,
    to_beta: Any,
) -> None:
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
        gram, rows, columns = address(p.gram[N]), address(p.rows[N]), address(p.columns[N])
        floor, log_pair, beta = address(p.floor[N]), address(p.log_pair[N]), splat(p.beta[N])
        means, normalisers, out = address(mean[N]), address(normaliser[N]), address(to_gram[N])
        of_beta = constant(beta, 0.0)
        for strip in range(items[item, 1], end, STRIP):
            strip_end = min(strip + STRIP, end)
            for v in range(strip, strip_end):
                both_cotangents(u[N], p.rows[N], v * lanes, lanes, cotangents[v - strip])
            clear(address(work), STRIP * numbers, beta)
            for i in range(strip * lanes, n):
                clear(row_sums, numbers, beta)
                for v in range(strip, min(strip_end, i // lanes + 1)):
                    place = i * vectors + v
                    g = load(gram, place)
                    of_gram, of_beta = pair_gradient(
                        columns,
                        v * count * NUMBERS,
                        rows,
                        i * count * NUMBERS,
                        add(g, g),
                        floor,
                        log_pair,
                        beta,
                        count,
                        p.tanh,
                        p.gibbs,
                        load(address(cotangents), (v - strip) * n + i - v * lanes),
                        load(means, place),
                        load(normalisers, place),
                        skip(address(work), (v - strip) * numbers),
                        row_sums,
                        of_beta,
                    )
                    store(out, place, of_gram)
                add_row(of_item[i], row_sums)
            for v in range(strip, strip_end):
                add_columns(of_item, work[v - strip], v * lanes)
        to_beta[first + item] = sum_of(of_beta)
