r"""Exact enumeration of shared-coupling Ising models by two matrix products (kernel).

The m spins split into a left half x (a spins, low bits of the state index) and a right half y.  With

    W[x,y] = exp(e_L(x) + e_R(y) + F_L(x)ᵀ X F_R(y)),   A[q,x] = exp(h_L·s_x),   C[q,y] = exp(h_R·s_y)

    Z_q = Σ_xy A W C,   right state weights (A W) ∘ C,   left state weights A ∘ (C Wᵀ).

F holds the spins of a half, and with three-body terms also their products in pairs.  Nothing of size
[queries, 2^m] exists.  Exponents are computed in float64 and shifted by row maxima before they are rounded to the
working precision.  W is computed in tiles of rows that stay in cache, with a running maximum per query as in
FlashAttention.  Tiles are kept for the backward pass if they fit ``keep_bytes``, else they are recomputed.

On the CPU :mod:`diabat.samplers.exact.fused_products` does the same in one compiled pass, with e_R in C instead of W.
This file handles three-body terms, queries with a separate W, and factors beyond the working precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diabat.samplers.exact.fused_products import can_fuse, fused_products
from diabat.samplers.exact.half_energies import HalfEnergies, half_tables
from diabat.samplers.exact.row_weights import row_scaled_weights
from diabat.samplers.exact.smooth import smooth_gradient, smooth_probabilities
from diabat.samplers.folding import refuse_batched_cotangent


@dataclass(eq=False)
class HalfSums:
    """Sums over the states of one group, relative to a scale per query.

    Attributes:
        left_sums: Weights of the spins at +1 and, last, of all states, [G, Q, a + 1].
        right_sums: The same for the right half, [G, Q, b + 1].
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
        energies: Exponents of W: without e_R if it is in C.
        tiles: Rows of W in order, [G, rows, 2^b] each, if they are kept, else None.
    """

    A: Tensor
    V: Tensor
    C: Tensor
    U: Tensor
    energies: HalfEnergies
    tiles: list[Tensor] | None


_TILE_BYTES = 4 << 20


class Split:
    """Tables of both halves, and W in tiles of rows."""

    def __init__(self, spins: int, energies: HalfEnergies, dtype: torch.dtype) -> None:
        device = energies.left.device
        self.a, self.energies, self.dtype = spins // 2, energies, dtype
        self.L, self.R = half_tables(self.a, device), half_tables(spins - self.a, device)
        # Exponents use the float64 tables; sums of weights use tables in the working precision.
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
        """Iterate over the tiles of W, kept or recomputed; a tile is valid until the next iteration."""
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
    """Compute both products for fields [G, Q, m]; W is kept if it has at most ``keep_bytes``."""
    fused = _fused(fields, energies, dtype, tables=True, keep_bytes=keep_bytes)
    if isinstance(fused, HalfProducts):
        return fused
    split = Split(fields.shape[-1], energies, dtype)
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
    """The compiled form; None if it does not apply."""
    groups, queries, m = fields.shape
    if fields.device.type != "cpu" or energies.three_body or not can_fuse(groups, queries, m):
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
        kept = [W[:, rows] for rows in Split(m, bare, dtype).blocks()]
    return HalfProducts(left, right, log_z, A, V, C, U, bare, kept)


def _tiled_products(
    split: Split, h_L: Tensor, C: Tensor, keep_bytes: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor] | None]:
    """A, U, V, the log scale of A per query and the kept tiles, computed tile by tile."""
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
    # Each half is divided by its own sum of weights, because the two differ by rounding; the ratio can exceed 1.
    left, right = sums.left_sums, sums.right_sums
    return torch.cat((left[..., :-1] / left[..., -1:], right[..., :-1] / right[..., -1:]), -1).clamp_(max=1)


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
        """Solve the group, and save tensors for the backward pass unless ``keep_bytes`` is None."""
        energies = HalfEnergies(left, right, cross, three_body)
        sums: HalfSums
        if keep_bytes is None:
            sums = half_sums(fields, energies, fields.dtype)
        else:
            sums = ctx.products = half_products(fields, energies, fields.dtype, keep_bytes)
        p = probabilities(sums)
        log_partition = sums.log_partition.to(fields.dtype)
        ctx.save_for_backward(p, fields, left, right, cross)
        ctx.three_body = three_body
        total = sums.total.clone()
        ctx.mark_non_differentiable(total)
        return p, log_partition, total

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Covariances of f with fields, half energies and the cut; differentiable again if create_graph is set."""
        p, *terms = ctx.saved_tensors
        refuse_batched_cotangent(*cotangents[:2])
        if torch.is_grad_enabled():
            solve = partial(_smooth, ctx.three_body)
            return *smooth_gradient(terms, solve, ctx.needs_input_grad, *cotangents[:2]), None, None
        split = Split(p.shape[-1], ctx.products.energies, p.dtype)
        with torch.autocast(p.device.type, enabled=False):
            GL, GR, dX = _weighted_states(
                split, ctx.products, p, cotangents[0], cotangents[1], ctx.needs_input_grad[3]
            )
            dh = torch.cat((GL @ split.L_work.signs, GR @ split.R_work.signs), -1)
        return dh, GL.sum(1).double(), GR.sum(1).double(), dX, None, None


def _smooth(
    three_body: bool, fields: Tensor, left: Tensor, right: Tensor, cross: Tensor
) -> tuple[Tensor, Tensor]:
    return smooth_probabilities(fields, HalfEnergies(left, right, cross, three_body))


def _weighted_states(
    split: Split, t: HalfProducts, p: Tensor, v: Tensor, u: Tensor, need_cross: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Σ p(s)(f - <f> + u) over right states, over left states, and projected onto the features of the cut."""
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
    both = torch.cat((Cc, C), 1)
    M = C.new_empty(0)
    for rows, W in split.tiles(t):
        left_sum[..., rows] = Cf @ W.transpose(1, 2)
        right_sum += Af[..., rows] @ W
        if dX is not None:
            stacked = torch.cat((A[..., rows], Af[..., rows]), 1).transpose(1, 2)
            # All tiles use the same memory: otherwise malloc does not reuse it, and the process grows by the
            # size of W.
            M = M if M.shape == W.shape else torch.empty_like(W)
            torch.bmm(stacked, both, out=M).mul_(W)  # [G, rows, 2^b]
            dX += split.F_L[rows].T @ (M @ F_R).double()
    GL = A * ((f_L - centre) * t.V + left_sum)
    GR = C * ((f_R - centre) * t.U * inverse + right_sum)
    return GL, GR, dX
