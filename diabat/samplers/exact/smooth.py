"""Exact enumeration by operations that autograd can differentiate again and again (kernel).

The sums of :mod:`diabat.samplers.exact.half_split` in float64, with all of W in memory.  Its compiled pass and its
analytic backward know one derivative; second ones come from here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diabat.samplers.exact.half_energies import HalfEnergies, half_tables

# W, its exponent, and their cotangents of first and second order.
COPIES_OF_W = 8


def smooth_sums(fields: Tensor, e: HalfEnergies) -> tuple[Tensor, Tensor, Tensor]:
    """P(s_j = +1) [G, Q, m], log Z and scaled Z, both [G, Q], in float64, of fields [G, Q, m]."""
    h, m = fields.double(), fields.shape[-1]
    a = m // 2
    L, R = half_tables(a, h.device), half_tables(m - a, h.device)
    exponent = (
        e.left[..., None]
        + e.right[:, None]
        + (L.features(e.three_body) @ e.cross @ R.features(e.three_body).T)
    )
    W, row_scale = _scaled(exponent)
    A, left_scale = _scaled(h[..., :a] @ L.signs.T + row_scale[:, None])
    C, right_scale = _scaled(h[..., a:] @ R.signs.T)
    left = (A * (C @ W.mT)) @ L.bits_and_one
    right = ((A @ W) * C) @ R.bits_and_one
    total = right[..., -1]
    p = torch.cat((left[..., :-1] / left[..., -1:], right[..., :-1] / right[..., -1:]), -1)
    return p, total.log() + left_scale + right_scale, total.detach()


def _scaled(exponent: Tensor) -> tuple[Tensor, Tensor]:
    """exp(exponent - scale) and the scale of each row, its largest exponent, which cancels from every derivative."""
    scale = exponent.detach().amax(-1)
    return (exponent - scale[..., None]).exp(), scale
