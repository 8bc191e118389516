r"""Exact enumeration by two matrix products, in torch on any device (kernel).

The m spins split into a left half x (a spins, low bits of the state index) and a right half y.  With the spins F of a
half and, if there are three-body terms, their products in pairs, and up to factors that depend on x or on the query,

    W[x,y] = exp(F_L(x)ᵀ X F_R(y)),   A[q,x] = exp(h_L·s_x + e_L(x)),   C[q,y] = exp(h_R·s_y + e_R(y)),

    Z_q = Σ_xy A W C,   right state weights (A W) ∘ C,   left state weights A ∘ (C Wᵀ).

Nothing of size [queries, 2^m] exists, and W only in tiles of rows, which the backward pass forms again.  Exponents are
float64.  Row x of W is divided by exp(Σ_k |c_k|), c = F_L(x)ᵀ X, and A multiplied by it: no factor exceeds 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import threshold

from diabat.compute.memory import require_memory
from diabat.samplers.derivatives import smooth_gradient
from diabat.samplers.exact.half_tables import HalfEnergies, half_tables, single_queries
from diabat.samplers.folding import refuse_batched_cotangent

_TILE_BYTES = 1 << 21
# Smallest scaled Z with full relative precision: terms below the smallest normal number are lost, and 2^m of them must
# not matter.  Second derivatives divide by Z³.
_LEAST_TOTAL = {torch.float32: 1e-25, torch.float64: 1e-90}
_LOWEST = {torch.float32: -87.0, torch.float64: -700.0}
# W, its exponent, and their cotangents of first and second order.
_COPIES = 8


class Split:
    """Tables of both halves, and W in ``dtype`` in tiles of rows, or as a ``whole``, for autograd to differentiate."""

    def __init__(
        self, spins: int, energies: HalfEnergies, dtype: torch.dtype, *, whole: bool = False
    ) -> None:
        device = energies.left.device
        self.a, self.energies, self.dtype, self._whole = spins // 2, energies, dtype, whole
        L, R = half_tables(self.a, device), half_tables(spins - self.a, device)
        self.L, self.R = half_tables(self.a, device, dtype), half_tables(spins - self.a, device, dtype)
        self.F_L, self.F_R = L.features(energies.three_body), R.features(energies.three_body)
        self.coefficients = self.F_L @ energies.cross  # [G, 2^a, f_R]
        if energies.single:
            largest = [self._exponent(rows).detach().amax(-1) for rows in self.blocks()]
            self.log_scale = torch.cat(largest, 1)
        else:
            self.log_scale = self.coefficients.detach().abs().sum(-1)

    def blocks(self) -> list[slice]:
        """Row ranges of the tiles."""
        rows, row_bytes = len(self.F_L), len(self.energies.left) * len(self.F_R) * self.dtype.itemsize
        step = rows if self._whole else max(1, min(rows, _TILE_BYTES // row_bytes))
        return [slice(i, min(i + step, rows)) for i in range(0, rows, step)]

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Iterate over W, [G, rows, 2^b]; a tile is valid until the next iteration."""
        W: Tensor | None = None
        for rows in self.blocks():
            if self.energies.single or self.energies.three_body:
                W = _weights(self._exponent(rows) - self.log_scale[:, rows, None], self.dtype)
            else:
                size = rows.stop - rows.start
                scratch = None if W is None or self._whole else W[:, :size]
                W = exponentials(self.coefficients[:, rows], self.dtype, out=scratch)
            yield rows, W

    def _exponent(self, rows: slice) -> Tensor:
        exponent = self.coefficients[:, rows] @ self.F_R.T
        return exponent + self.energies.right[:, None] if self.energies.single else exponent


def exponentials(c: Tensor, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """exp(Σ_k c_k s_k - Σ_k |c_k|) over all states, [..., 2^k] in ``dtype``, of c float64 [..., k]; differentiable.

    The product of two small tables: few exponentials, and no float64 numbers of the size of the result.
    """
    low = c.shape[-1] // 2
    factors = []
    for some in (c[..., :low], c[..., low:]):
        signs = half_tables(some.shape[-1], c.device).signs
        bound = some.detach().abs().sum(-1, keepdim=True)
        factors.append(_weights(some @ signs.T - bound, dtype))
    low_states, high_states = factors
    shape = (*high_states.shape, low_states.shape[-1])
    out = None if out is None else out.view(shape)
    return torch.mul(high_states[..., None], low_states[..., None, :], out=out).flatten(-2)


@dataclass(eq=False)
class HalfProducts:
    """State weights and their sums of one group, relative to a scale per query.

    Attributes:
        split: The tables.
        A, V: Left factor and C Wᵀ, [G, Q, 2^a]; left state weights are A ∘ V.
        C, U: Right factor and A W, [G, Q, 2^b]; right state weights are U ∘ C.
        lost: Queries whose largest terms may be below the range of the precision, bool [G, Q].
        total: Z of every query up to its scale, 1 for lost ones, [G, Q].
        probability: P(s = +1), [G, Q, m].
        log_partition: log Z, float64 [G, Q].
    """

    split: Split
    A: Tensor
    V: Tensor
    C: Tensor
    U: Tensor
    lost: Tensor
    total: Tensor
    probability: Tensor
    log_partition: Tensor


def half_products(
    fields: Tensor, energies: HalfEnergies, dtype: torch.dtype, *, whole: bool = False
) -> HalfProducts:
    """Compute both products for fields [G, Q, m]; autograd can differentiate them if ``whole``."""
    split = Split(fields.shape[-1], energies, dtype, whole=whole)
    h = fields.double()
    h_L, h_R = h[..., : split.a], h[..., split.a :]
    left, left_scale = _scaled(energies.left + split.log_scale, dtype)
    right, right_scale = _scaled(
        torch.zeros_like(energies.right) if energies.single else energies.right, dtype
    )
    A = exponentials(h_L, dtype) * left[:, None]
    C = exponentials(h_R, dtype) * right[:, None]
    U, parts = torch.zeros_like(C), []
    for rows, W in split.tiles():
        U = U + A[..., rows] @ W
        parts.append(C @ W.mT)
    V = torch.cat(parts, -1)
    left_sums, right_sums = (A * V) @ split.L.bits_and_one, (U * C) @ split.R.bits_and_one
    lost = ~(right_sums[..., -1].detach() >= _LEAST_TOTAL[dtype])  # NaN is lost
    totals = [sums[..., -1:].masked_fill(lost[..., None], 1) for sums in (left_sums, right_sums)]
    # Each half is divided by its own sum of weights, because the two differ by rounding; the ratio can exceed 1.
    p = torch.cat((left_sums[..., :-1] / totals[0], right_sums[..., :-1] / totals[1]), -1)
    total = totals[1][..., 0]
    log_z = total.double().log() + (left_scale + right_scale) + h.detach().abs().sum(-1)
    return HalfProducts(split, A, V, C, U, lost, total, p, log_z)


def _scaled(exponent: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """exp(exponent - scale) and the scale of each row, its largest exponent, [rows, 1]."""
    scale = exponent.detach().amax(-1, keepdim=True)
    return _weights(exponent - scale, dtype), scale


def _weights(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(exponent); 0 below the range of the precision, where exp and subnormal numbers take many times as long."""
    least = _LOWEST[dtype]
    return threshold(exponent.clamp(min=least).exp(), math.exp(least), 0.0).to(dtype)


class HalfMoments(torch.autograd.Function):
    """(fields, e_L, e_R, X, ...) -> P(s=+1) [G, Q, m], log Z, lost queries [G, Q], with the analytic backward.

    For cotangents v of P and u of log Z let f(s) = Σ_j v_j [s_j = +1] = f_L + f_R.  Then

        dL/dE(s) = p(s) (f(s) - <f> + u)

    for the exponent E, summed over left states, right states and the cut by matrix products.
    """

    @staticmethod
    def forward(
        ctx: Any, fields: Tensor, left: Tensor, right: Tensor, cross: Tensor, three_body: bool, single: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Solve the group; the tables of the queries are kept for the backward pass."""
        energies = HalfEnergies(left, right, cross, three_body, single)
        found = half_products(fields, energies, fields.dtype)
        # Other tensors than those of the tables, which would hold the graph, and the graph them.
        p, lost = found.probability.clamp_(max=1).detach(), found.lost.detach()
        ctx.products, ctx.kinds = found, (three_body, single)
        ctx.save_for_backward(p, fields, left, right, cross)
        ctx.mark_non_differentiable(lost)
        return p, found.log_partition.to(fields.dtype), lost

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Covariances of f with fields, half energies and the cut; differentiable again if create_graph is set."""
        p, *terms = ctx.saved_tensors
        v, u = cotangents[:2]
        refuse_batched_cotangent(v, u)
        if torch.is_grad_enabled():

            def solve(fields: Tensor, left: Tensor, right: Tensor, cross: Tensor) -> tuple[Tensor, Tensor]:
                return smooth_moments(fields, HalfEnergies(left, right, cross, *ctx.kinds))

            return *smooth_gradient(terms, solve, ctx.needs_input_grad, v, u), None, None
        with torch.autocast(p.device.type, enabled=False):
            return *_gradient(ctx.products, p, v, u, need_cross=ctx.needs_input_grad[3]), None, None


def _gradient(
    t: HalfProducts, p: Tensor, v: Tensor, u: Tensor, *, need_cross: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Σ p(s)(f - <f> + u) with signs of spins, over left states, over right states, and with features of the cut."""
    split, inverse, centre = t.split, (1 / t.total)[..., None], ((v * p).sum(-1) - u)[..., None]
    a = split.a
    f_L = v[..., :a] @ split.L.bits_and_one[:, :-1].T
    f_R = v[..., a:] @ split.R.bits_and_one[:, :-1].T
    A, C = t.A * inverse, t.C
    Af, Cf = A * f_L, C * f_R
    right_sum, left_sum = torch.zeros_like(C), torch.empty_like(A)
    dX = torch.zeros_like(split.energies.cross) if need_cross else None
    F_R, both, M = split.F_R.to(p.dtype), torch.cat((Cf - C * centre, C), 1), None
    for rows, W in split.tiles():
        left_sum[..., rows] = Cf @ W.mT
        right_sum += Af[..., rows] @ W
        if dX is not None:
            stacked = torch.cat((A[..., rows], Af[..., rows]), 1).mT
            # All tiles use the same memory: otherwise malloc does not reuse it, and the process grows by the size of W.
            M = torch.bmm(stacked, both, out=None if M is None else M[:, : W.shape[1]]).mul_(W)
            dX += split.F_L[rows].T @ (M @ F_R).double()
    GL = A * ((f_L - centre) * t.V + left_sum)
    GR = C * ((f_R - centre) * t.U * inverse + right_sum)
    dh = torch.cat((GL @ split.L.signs, GR @ split.R.signs), -1)
    return dh, GL.sum(1).double(), GR.sum(1).double(), dX


def smooth_moments(fields: Tensor, energies: HalfEnergies) -> tuple[Tensor, Tensor]:
    """P(s_j = +1) [G, Q, m] and log Z [G, Q] in float64, by operations that autograd can differentiate again and again.

    Raises:
        ValueError: If W and its first and second derivatives do not fit in memory.
    """
    groups, queries, m = fields.shape
    needed = 8 * _COPIES * groups * (2**m + 2 * queries * 2 ** ((m + 1) // 2))
    require_memory(needed, f"second derivatives of {groups} x {queries} problems of {m} spins")
    found = half_products(fields, energies, torch.float64, whole=True)
    p, log_z = found.probability, found.log_partition
    if not energies.single and bool(found.lost.any()):
        part = found.lost.nonzero(as_tuple=True)
        single = half_products(*single_queries(fields.double(), energies, part), torch.float64, whole=True)
        p = p.index_put(part, single.probability[:, 0])
        log_z = log_z.index_put(part, single.log_partition[:, 0])
    return p, log_z
