r"""Exact enumeration of shared-coupling Ising models by two matrix products (kernel).

The m spins split into a left half x (a spins, low bits of the state index) and a right half y.  With

    W[x,y] = exp(e_L(x) + e_R(y) + F_L(x)ᵀ X F_R(y)),   A[q,x] = exp(h_L·s_x),   C[q,y] = exp(h_R·s_y)

    Z_q = Σ_xy A W C,   right state weights (A W) ∘ C,   left state weights A ∘ (C Wᵀ).

F holds the spins of a half, and with three-body terms also their products in pairs.  Nothing of size
[queries, 2^m] exists.  Exponents are formed in float64 and shifted by row maxima before they are rounded to
the working precision.  W is formed in tiles of rows that stay in cache, with a running maximum per query as in
FlashAttention.  Tiles are kept for the backward pass if they fit ``keep_bytes``, and formed again if they do not.

On the CPU :mod:`diabat.samplers.fused_products` does the same in one compiled pass, with e_R in C rather than in W;
three-body terms, queries with a W of their own and factors beyond the working precision are left to this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import permutations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diabat.samplers.fused_products import fused_products, suits
from diabat.samplers.row_weights import row_scaled_weights


class HalfTables:
    """Constants of one half of ``spins`` spins, built when they are first needed.

    Attributes:
        signs: ±1 states, [2^spins, spins]; bit j of the row index is spin j.
        bits: 0/1 states, [2^spins, spins].
        bits_and_one: The same with a column of ones, which sums the weights.
        upper: Pairs j < k, int64 [2, spins(spins-1)/2].
        pairs: Products s_j s_k for j < k, [2^spins, spins(spins-1)/2].
        triples: Products s_j s_k s_l for j < k < l, [2^spins, spins(spins-1)(spins-2)/6].
    """

    def __init__(self, spins: int, device: torch.device, dtype: torch.dtype) -> None:
        self.spins = spins
        index = torch.arange(2**spins, device=device)
        self.bits = ((index[:, None] >> torch.arange(spins, device=device)) & 1).to(dtype)
        self.signs = 2 * self.bits - 1
        self.bits_and_one = torch.cat((self.bits, self.bits.new_ones(len(index), 1)), 1)

    @cached_property
    def upper(self) -> Tensor:
        """Pairs j < k, [2, spins(spins-1)/2]."""
        return torch.triu_indices(self.spins, self.spins, offset=1, device=self.signs.device)

    @cached_property
    def pairs(self) -> Tensor:
        """Products of two spins."""
        j, k = self.upper
        return self.signs[:, j] * self.signs[:, k]

    @cached_property
    def triples(self) -> Tensor:
        """Products of three spins."""
        t = torch.combinations(torch.arange(self.spins, device=self.signs.device), 3)
        return self.signs[:, t[:, 0]] * self.signs[:, t[:, 1]] * self.signs[:, t[:, 2]]

    def features(self, three_body: bool) -> Tensor:
        """Spins of the half, followed by their pair products if three-body terms cross the cut."""
        return torch.cat((self.signs, self.pairs), 1) if three_body else self.signs


@lru_cache(maxsize=128)
def half_tables(spins: int, device: torch.device, dtype: torch.dtype = torch.float64) -> HalfTables:
    """Tables of one half, shared by all calls."""
    return HalfTables(spins, device, dtype)


@dataclass(frozen=True, eq=False)
class HalfEnergies:
    """Exponents shared by all queries of a group.

    Attributes:
        left: e_L, float64 [G, 2^a].
        right: e_R, float64 [G, 2^b].
        cross: X, float64 [G, f_L, f_R].
        three_body: Whether F includes pair products.
    """

    left: Tensor
    right: Tensor
    cross: Tensor
    three_body: bool


def split_energies(
    J: Tensor | None, K: Tensor | None, groups: int, m: int, device: torch.device
) -> HalfEnergies:
    """Distribute J [G, m, m] and K [G, m, m, m] over the halves and the cut; differentiable.

    Both are read through their symmetric part, so that the gradient of a symmetric matrix is symmetric.
    """
    a = m // 2
    L, R = half_tables(a, device), half_tables(m - a, device)
    if J is None:
        J = torch.zeros(groups, m, m, dtype=torch.float64, device=device)
    J = J.double()
    J = (J + J.transpose(1, 2)) / 2
    left = _pair_energy(J[:, :a, :a], L)
    right = _pair_energy(J[:, a:, a:], R)
    cross = J[:, :a, a:]
    if K is None:
        return HalfEnergies(left, right, cross, three_body=False)
    K = K.double()
    K = torch.stack([K.permute(0, *p) for p in permutations((1, 2, 3))]).mean(0)
    left = left + _triple_energy(K[:, :a, :a, :a], L)
    right = right + _triple_energy(K[:, a:, a:, a:], R)
    (jl, kl), (jr, kr) = L.upper, R.upper
    pair_left = K[:, :a, :a, a:][:, jl, kl]  # [G, pairs_L, b]
    pair_right = K[:, :a, a:, a:][:, :, jr, kr]  # [G, a, pairs_R]
    corner = K.new_zeros(groups, len(jl), len(jr))
    cross = torch.cat((torch.cat((cross, pair_right), 2), torch.cat((pair_left, corner), 2)), 1)
    return HalfEnergies(left, right, cross, three_body=True)


def own_weights(
    fields: Tensor, energies: HalfEnergies, which: tuple[Tensor, Tensor]
) -> tuple[Tensor, HalfEnergies]:
    """Some queries as groups of one query each, with the fields of the right half in e_R; differentiable.

    C is then 1 and rows of W are scaled one by one, so that no sum loses its largest terms, whatever fields and
    couplings are.  The price is a W for every query.

    Args:
        fields: float64 [G, Q, m].
        energies: Shared exponents.
        which: Group and query of each of the R that are taken, int64 [R].

    Returns:
        Fields [R, 1, m], zero in the right half, and exponents of R groups.
    """
    group, query = which
    a = fields.shape[-1] // 2
    own = fields[group, query]
    right = energies.right[group] + own[:, a:] @ half_tables(own.shape[-1] - a, own.device).signs.T
    left_only = torch.cat((own[:, :a], torch.zeros_like(own[:, a:])), 1)
    e = HalfEnergies(energies.left[group], right, energies.cross[group], energies.three_body)
    return left_only[:, None], e


def _pair_energy(J: Tensor, half: HalfTables) -> Tensor:
    j, k = half.upper
    return _table_sums(J[:, j, k], half.pairs)


def _triple_energy(K: Tensor, half: HalfTables) -> Tensor:
    t = torch.combinations(torch.arange(K.shape[1], device=K.device), 3)
    return _table_sums(K[:, t[:, 0], t[:, 1], t[:, 2]], half.triples)


def _table_sums(values: Tensor, table: Tensor) -> Tensor:
    sums: Tensor = _TableSums.apply(values, table)
    return sums


class _TableSums(torch.autograd.Function):
    """(values [G, p], table [states, p]) -> Σ_p values·table, [G, states], the same on any number of threads."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(table)
        if values.device.type != "cpu":
            return values @ table.T
        # Not by BLAS, whose last bit depends on the number of threads.
        return torch.from_numpy(np.einsum("gp,xp->gx", values.detach().numpy(), table.numpy()))

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        (table,) = ctx.saved_tensors
        return cotangents[0] @ table, None


@dataclass(eq=False)
class HalfSums:
    """Sums over the states of one group, up to a scale per query that holds every term.

    Attributes:
        left_sums: Weights of the spins at +1 and, last, of all states, [G, Q, a + 1].
        right_sums: The same of the right half, [G, Q, b + 1].
        log_partition: log Z of every query, float64 [G, Q].
    """

    left_sums: Tensor
    right_sums: Tensor
    log_partition: Tensor

    @property
    def total(self) -> Tensor:
        """Z of every query up to the scale, [G, Q]."""
        return self.right_sums[..., -1]


@dataclass(eq=False)
class HalfProducts(HalfSums):
    """State weights of one group, up to the same scale.

    Attributes:
        A, V: Left factor and C Wᵀ, [G, Q, 2^a]; left state weights are A ∘ V.
        C, U: Right factor and A W, [G, Q, 2^b]; right state weights are U ∘ C.
        energies: Exponents that W was made of: without e_R if C has it.
        tiles: Rows of W in order, [G, rows, 2^b] each, if they were to be kept, else None.
    """

    A: Tensor
    V: Tensor
    C: Tensor
    U: Tensor
    energies: HalfEnergies
    tiles: list[Tensor] | None


_TILE_BYTES = 4 << 20


class _Split:
    """Tables of both halves, and W in tiles of rows."""

    def __init__(self, spins: int, energies: HalfEnergies, dtype: torch.dtype) -> None:
        device = energies.left.device
        self.a, self.energies, self.dtype = spins // 2, energies, dtype
        self.L, self.R = half_tables(self.a, device), half_tables(spins - self.a, device)
        # Exponents are formed from the float64 tables, sums of weights with tables in the working precision.
        self.L_work, self.R_work = (
            half_tables(self.a, device, dtype),
            half_tables(spins - self.a, device, dtype),
        )
        self.F_L = self.L.features(energies.three_body)
        self.F_R = self.R.features(energies.three_body)

    @property
    def weight_bytes(self) -> int:
        """Size of W."""
        return len(self.energies.left) * len(self.F_L) * len(self.F_R) * torch.finfo(self.dtype).bits // 8

    def blocks(self) -> list[slice]:
        """Row ranges of the tiles."""
        rows = len(self.F_L)
        step = max(1, min(rows, rows * _TILE_BYTES // self.weight_bytes))
        return [slice(i, min(i + step, rows)) for i in range(0, rows, step)]

    def weights(self, rows: slice, scratch: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """W of a block of rows, entries at most 1, and the float64 log scale of each row."""
        coefficients = self.F_L[rows] @ self.energies.cross  # [G, rows, f_R]
        return row_scaled_weights(coefficients, self.energies.right, self.F_R, self.dtype, scratch)

    def tiles(self, products: HalfProducts) -> Iterator[tuple[slice, Tensor]]:
        """W tile by tile, as kept or formed again; a tile is valid until the next one is asked for."""
        W: Tensor | None = None
        for i, rows in enumerate(self.blocks()):
            W = self.weights(rows, W)[0] if products.tiles is None else products.tiles[i]
            yield rows, W


def half_sums(fields: Tensor, energies: HalfEnergies, dtype: torch.dtype) -> HalfSums:
    """Sums over the states for fields [G, Q, m]."""
    return _fused(fields, energies, dtype, tables=False) or half_products(fields, energies, dtype)


def half_products(
    fields: Tensor, energies: HalfEnergies, dtype: torch.dtype, keep_bytes: int = 0
) -> HalfProducts:
    """Form both products for fields [G, Q, m]; W may be kept if it has at most ``keep_bytes``."""
    fused = _fused(fields, energies, dtype, tables=True, keep_bytes=keep_bytes)
    if isinstance(fused, HalfProducts):
        return fused
    split = _Split(fields.shape[-1], energies, dtype)
    h = fields.double()
    h_L, h_R = h[..., : split.a], h[..., split.a :]
    C, right_scale = row_scaled_weights(h_R, torch.zeros_like(energies.right), split.R.signs, dtype)
    blocks = split.blocks()
    if len(blocks) == 1:
        W, log_scale = split.weights(blocks[0])
        A, left_scale = row_scaled_weights(h_L, energies.left + log_scale, split.L.signs, dtype)
        kept = [W] if split.weight_bytes <= keep_bytes else None
        U, V = A @ W, C @ W.transpose(1, 2)
    else:
        A, U, V, left_scale, kept = _tiled_products(split, h_L, C, keep_bytes)
    left_sums = (A * V) @ split.L_work.bits_and_one
    right_sums = (U * C) @ split.R_work.bits_and_one
    log_z = right_sums[..., -1].double().log() + left_scale + right_scale
    return HalfProducts(left_sums, right_sums, log_z, A, V, C, U, energies, kept)


def _fused(
    fields: Tensor, energies: HalfEnergies, dtype: torch.dtype, *, tables: bool, keep_bytes: int = 0
) -> HalfSums | HalfProducts | None:
    """The compiled form; None where it does not apply."""
    groups, queries, m = fields.shape
    if fields.device.type != "cpu" or energies.three_body or not suits(groups, queries, m):
        return None
    found = fused_products(
        fields.detach().double().contiguous().numpy(),
        energies.cross.detach().numpy(),
        energies.left.detach().numpy(),
        energies.right.detach().numpy(),
        np.float32 if dtype == torch.float32 else np.float64,
        torch.get_num_threads(),
        tables=tables,
        keep_bytes=keep_bytes,
    )
    if found is None:
        return None
    left, right, log_z = (
        torch.from_numpy(t) for t in (found.left_sums, found.right_sums, found.log_partition)
    )
    if not tables:
        return HalfSums(left, right, log_z)
    A, V, C, U = (torch.from_numpy(t) for t in found.tables)
    bare = HalfEnergies(energies.left, torch.zeros_like(energies.right), energies.cross, three_body=False)
    kept = None
    if found.weights is not None:
        W = torch.from_numpy(found.weights)
        kept = [W[:, rows] for rows in _Split(m, bare, dtype).blocks()]
    return HalfProducts(left, right, log_z, A, V, C, U, bare, kept)


def _tiled_products(
    split: _Split, h_L: Tensor, C: Tensor, keep_bytes: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor] | None]:
    """A, U, V, the log scale of A per query and the kept tiles, W passing by tile by tile."""
    dtype = split.dtype
    exponent = h_L @ split.L.signs.T + split.energies.left[:, None]  # [G, Q, 2^a]
    running = torch.full_like(exponent[..., 0], -torch.inf)
    U, V = torch.zeros_like(C), exponent.new_empty(exponent.shape, dtype=dtype)
    kept: list[Tensor] | None = [] if split.weight_bytes <= keep_bytes else None
    W: Tensor | None = None
    for rows in split.blocks():
        W, log_scale = split.weights(rows, W if kept is None else None)
        part = exponent[..., rows].add_(log_scale[:, None])
        new = torch.maximum(running, part.amax(-1))
        A = (part - new[..., None]).to(dtype).exp_()
        U.mul_((running - new).exp_().to(dtype)[..., None]).add_(A @ W)
        running = new
        V[..., rows] = C @ W.transpose(1, 2)
        if kept is not None:
            kept.append(W)
    A = (exponent - running[..., None]).to(dtype).exp_()
    return A, U, V, running, kept


def probabilities(sums: HalfSums) -> Tensor:
    """P(s_j = +1), [G, Q, m], as ratios of sums of positive numbers."""
    # Each half is divided by its own sum of weights: the two agree to rounding only.
    left, right = sums.left_sums, sums.right_sums
    return torch.cat((left[..., :-1] / left[..., -1:], right[..., :-1] / right[..., -1:]), -1)


class ExactProbabilities(torch.autograd.Function):
    """(fields, e_L, e_R, X) -> (P(s=+1) [G, Q, m], log Z, scaled Z, both [G, Q]), with the analytic backward.

    For cotangents v of P and u of log Z let f(s) = Σ_j v_j [s_j = +1] = f_L + f_R.  Then

        dL/dE(s) = p(s) (f(s) - <f> + u)

    for the exponent E, summed over left states, right states and the cut by matrix products.
    """

    @staticmethod
    def forward(
        ctx: Any,
        fields: Tensor,
        left: Tensor,
        right: Tensor,
        cross: Tensor,
        three_body: bool,
        keep_bytes: int | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Solve the group; keep what the backward pass needs, nothing if ``keep_bytes`` is None."""
        energies = HalfEnergies(left, right, cross, three_body)
        sums: HalfSums
        if keep_bytes is None:
            sums = half_sums(fields, energies, fields.dtype)
        else:
            sums = ctx.products = half_products(fields, energies, fields.dtype, keep_bytes)
        p = probabilities(sums)
        log_partition = sums.log_partition.to(fields.dtype)
        ctx.save_for_backward(p)
        total = sums.total.clone()
        ctx.mark_non_differentiable(total)
        return p, log_partition, total

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Covariances of f with fields, half energies and the cut."""
        (p,) = ctx.saved_tensors
        split = _Split(p.shape[-1], ctx.products.energies, p.dtype)
        GL, GR, dX = _weighted_states(
            split, ctx.products, p, cotangents[0], cotangents[1], ctx.needs_input_grad[3]
        )
        dh = torch.cat((GL @ split.L_work.signs, GR @ split.R_work.signs), -1)
        return dh, GL.sum(1).double(), GR.sum(1).double(), dX, None, None


def _weighted_states(
    split: _Split, t: HalfProducts, p: Tensor, v: Tensor, u: Tensor, need_cross: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Σ p(s)(f - <f> + u) over right states, over left states, and projected on the features of the cut."""
    a = split.a
    inverse = (1 / t.total)[..., None]
    centre = ((v * p).sum(-1) - u)[..., None]
    f_L = v[..., :a] @ split.L_work.bits.T
    f_R = v[..., a:] @ split.R_work.bits.T
    A, C = t.A * inverse, t.C
    Af, Cf, Cc = A * f_L, C * f_R, C * (f_R - centre)
    right_sum, left_sum = torch.zeros_like(C), torch.empty_like(A)
    F_R = split.R_work.features(split.energies.three_body)
    dX = torch.zeros_like(split.energies.cross) if need_cross else None
    for rows, W in split.tiles(t):
        left_sum[..., rows] = Cf @ W.transpose(1, 2)
        right_sum += Af[..., rows] @ W
        if dX is not None:
            stacked = torch.cat((A[..., rows], Af[..., rows]), 1).transpose(1, 2)
            M = (stacked @ torch.cat((Cc, C), 1)).mul_(W)  # [G, rows, 2^b]
            dX += split.F_L[rows].T @ (M @ F_R).double()
    GL = A * ((f_L - centre) * t.V + left_sum)
    GR = C * ((f_R - centre) * t.U * inverse + right_sum)
    return GL, GR, dX


def pair_correlations(fields: Tensor, products: HalfProducts) -> Tensor:
    """<s_j s_k>, [G, Q, m, m], with ones on the diagonal."""
    split = _Split(fields.shape[-1], products.energies, products.A.dtype)
    dtype, a, m = split.dtype, split.a, fields.shape[-1]
    S_L, S_R = split.L_work.signs, split.R_work.signs
    out = torch.empty(*fields.shape, m, dtype=dtype, device=fields.device)
    inverse = (1 / products.total)[..., None, None]
    out[..., :a, :a] = _weighted_pairs(products.A * products.V, S_L) * inverse
    out[..., a:, a:] = _weighted_pairs(products.U * products.C, S_R) * inverse
    crossing = torch.zeros(*fields.shape[:-1], a, m - a, dtype=dtype, device=fields.device)
    for rows, W in split.tiles(products):
        for k in range(m - a):
            V = (products.C * S_R[:, k]) @ W.transpose(1, 2)
            crossing[..., k] += (products.A[..., rows] * V) @ S_L[rows]
    out[..., :a, a:] = crossing * inverse
    out[..., a:, :a] = out[..., :a, a:].transpose(-1, -2)
    out.diagonal(dim1=-2, dim2=-1).fill_(1)
    return out


def _weighted_pairs(weights: Tensor, signs: Tensor) -> Tensor:
    spins = signs.shape[1]
    products = (signs[:, :, None] * signs[:, None, :]).reshape(len(signs), -1)
    return (weights @ products).reshape(*weights.shape[:-1], spins, spins)


def state_probabilities(fields: Tensor, energies: HalfEnergies) -> tuple[Tensor, Tensor]:
    """p(s), [G, Q, 2^m] in float64, and scaled Z, [G, Q]; bit j of the state index is spin j."""
    products = half_products(fields, energies, torch.float64)
    split = _Split(fields.shape[-1], products.energies, torch.float64)
    W = torch.cat([split.weights(rows)[0] for rows in split.blocks()], 1)
    joint = products.A[:, :, None, :] * W.transpose(1, 2)[:, None] * products.C[..., None]  # [G, Q, y, x]
    return (joint / products.total[..., None, None]).flatten(-2), products.total


def draw_states(
    fields: Tensor, energies: HalfEnergies, right_weights: Tensor, uniforms: Tensor, chunk_bytes: int
) -> Tensor:
    """Draw i.i.d. states by inverse transform: the right half from its marginal, the left half given the right.

    Args:
        fields: [G, Q, m].
        energies: Shared exponents.
        right_weights: Weights of the right states U ∘ C, float64 [G, Q, 2^b].
        uniforms: float64 in [0, 1), [2, reads, G, Q].
        chunk_bytes: Scratch memory.

    Returns:
        int8 ±1 [reads, G, Q, m].
    """
    split = _Split(fields.shape[-1], energies, torch.float64)
    reads, groups, queries = uniforms.shape[1:]
    right = _inverse_transform(right_weights, uniforms[0])  # [reads, G, Q]
    h_L = fields[..., : split.a].double()
    base = h_L @ split.L.signs.T + energies.left[:, None]  # [G, Q, 2^a]
    left = torch.empty_like(right)
    step = max(1, chunk_bytes // (8 * groups * queries * base.shape[-1]))
    for start in range(0, reads, step):
        part = slice(start, start + step)
        coupling = split.F_R[right[part]] @ energies.cross.transpose(1, 2)[None]  # [r, G, Q, f_L]
        weights = torch.softmax(base + coupling @ split.F_L.T, dim=-1)
        left[part] = _inverse_transform(weights, uniforms[1, part], leading=True)
    spins = torch.cat((split.L.signs.to(torch.int8)[left], split.R.signs.to(torch.int8)[right]), -1)
    return spins


def _inverse_transform(weights: Tensor, uniforms: Tensor, *, leading: bool = False) -> Tensor:
    """Index of the state at which the cumulative weight passes uniform·total."""
    cumulative = weights.double().cumsum(-1)
    total = cumulative[..., -1]
    if leading:
        index = torch.searchsorted(cumulative, (uniforms * total)[..., None], right=True)[..., 0]
    else:
        targets = (uniforms * total).movedim(0, -1).contiguous()  # [G, Q, reads]
        index = torch.searchsorted(cumulative, targets, right=True).movedim(-1, 0)
    return index.clamp_(max=weights.shape[-1] - 1)
