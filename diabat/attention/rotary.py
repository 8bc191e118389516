r"""Rotary positions (arXiv:2104.09864, eq. 34): rotate pairs of features of queries and keys by angles of the position.

For position m and features a, b = a + d/2,

    (x_a, x_b) -> (x_a cos mθ_a - x_b sin mθ_a,  x_b cos mθ_a + x_a sin mθ_a),     θ_a = 10000^(-2a/d),

so that the product of a query at m and a key at n depends on m - n only.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BASE = 10000.0


def rotated(x: Tensor, first: Tensor | int = 0) -> Tensor:
    """Rotate features [*, L, d], d even, of the positions first, first + 1, ...

    Args:
        x: Queries or keys.
        first: Position of the first row, an integer or int64 [].
    """
    length, half = x.shape[-2], x.shape[-1] // 2
    # Angles of large positions need float64.
    steps = torch.arange(length, device=x.device, dtype=torch.float64) + first
    rates = _BASE ** (-torch.arange(half, device=x.device, dtype=torch.float64) / half)
    angles = steps[:, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
