"""Compiled loop behind :mod:`diabat.samplers.exact.row_weights`; imported on first use."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from diabat.compute.jit import jit


# Inputs are finite, so NaN cannot occur and the maximum can vectorise.
@partial(jit, fastmath={"nnan", "nsz"})
def product_weights(decay: Any, up: Any, right: Any, out: Any, row_max: Any) -> None:
    """Fill out[g,x,y] = right[g,y] · Π_k w_k, w_k = 1 where spin k of y has the sign of c[g,x,k], else decay[g,x,k].

    Each row is the product of a table over the low bits of y and one over the high bits, built by doubling in
    float64: two multiplications per state and no exponential.  row_max[g,x] is the largest entry.
    """
    groups, rows, spins = decay.shape
    # A low table of at least 64 entries keeps the inner loop in full vectors.
    low_spins = min(spins, max(6, spins // 2))
    width, blocks = 1 << low_spins, 1 << (spins - low_spins)
    low, high = np.empty(width), np.empty(blocks)
    narrow, best = np.empty(width, out.dtype), np.empty(width, out.dtype)
    for g in range(groups):
        for x in range(rows):
            for table, start, count in ((low, 0, low_spins), (high, low_spins, spins - low_spins)):
                table[0] = 1.0
                for k in range(count):
                    if up[g, x, start + k]:
                        on, off = 1.0, decay[g, x, start + k]
                    else:
                        on, off = decay[g, x, start + k], 1.0
                    for y in range(1 << k):
                        table[(1 << k) + y] = table[y] * on
                        table[y] *= off
            for y in range(width):
                narrow[y] = low[y]
                best[y] = 0.0
            for block in range(blocks):
                base = out.dtype.type(high[block])
                source = right[g, block * width : (block + 1) * width]
                target = out[g, x, block * width : (block + 1) * width]
                for y in range(width):
                    value = narrow[y] * base * source[y]
                    target[y] = value
                    best[y] = max(best[y], value)
            row_max[g, x] = best.max()
