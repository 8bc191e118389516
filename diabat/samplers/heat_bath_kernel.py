"""Compiled loops behind :mod:`diabat.samplers.heat_bath`; imported on first use."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from diabat.compute.jit import jit

# Lanes whose local fields are accumulated at once, within the first-level cache.
_WIDTH = 128


# Thresholds may be infinite, NaN cannot occur; reassociation lets four couplings be added per pass.
@partial(jit, fastmath={"reassoc", "contract", "nnan", "nsz"})
def pair_sweep(spins: Any, couplings: Any, thresholds: Any) -> None:
    """Set s[g,j,r] = +1 where Σ_k J[g,j,k] s[g,k,r] > t[g,j,r], else -1, for j = 0, 1, ... in turn.

    The diagonal of J is zero.  Summing anew is faster than keeping n local fields up to date after a flip:
    among the lanes of a vector one nearly always flips, and the sum reads only.
    """
    groups, n, lanes = spins.shape
    local = np.empty(_WIDTH)
    for g in range(groups):
        for start in range(0, lanes, _WIDTH):
            width = min(_WIDTH, lanes - start)
            for j in range(n):
                row = couplings[g, j]
                for r in range(width):
                    local[r] = 0.0
                for k in range(0, n - n % 4, 4):
                    a, b, c, d = row[k], row[k + 1], row[k + 2], row[k + 3]
                    s_a, s_b = spins[g, k, start : start + width], spins[g, k + 1, start : start + width]
                    s_c, s_d = spins[g, k + 2, start : start + width], spins[g, k + 3, start : start + width]
                    for r in range(width):
                        local[r] += (a * s_a[r] + b * s_b[r]) + (c * s_c[r] + d * s_d[r])
                for k in range(n - n % 4, n):
                    a, s_a = row[k], spins[g, k, start : start + width]
                    for r in range(width):
                        local[r] += a * s_a[r]
                s_j, t = spins[g, j, start : start + width], thresholds[g, j, start : start + width]
                for r in range(width):
                    s_j[r] = 1.0 if local[r] > t[r] else -1.0


@partial(jit, fastmath={"reassoc", "contract", "nnan", "nsz"})
def triple_sweep(spins: Any, couplings: Any, three_body: Any, thresholds: Any) -> None:
    """As :func:`pair_sweep`, with the local field Σ_k s_k (J[g,j,k] + Σ_{l>k} K[g,j,k,l] s_l)."""
    groups, n, lanes = spins.shape
    local, inner = np.empty(_WIDTH), np.empty(_WIDTH)
    for g in range(groups):
        for start in range(0, lanes, _WIDTH):
            width = min(_WIDTH, lanes - start)
            for j in range(n):
                for r in range(width):
                    local[r] = 0.0
                for k in range(n):
                    pair = couplings[g, j, k]
                    for r in range(width):
                        inner[r] = pair
                    for m in range(k + 1, n):
                        triple, s_m = three_body[g, j, k, m], spins[g, m, start : start + width]
                        for r in range(width):
                            inner[r] += triple * s_m[r]
                    s_k = spins[g, k, start : start + width]
                    for r in range(width):
                        local[r] += inner[r] * s_k[r]
                s_j, t = spins[g, j, start : start + width], thresholds[g, j, start : start + width]
                for r in range(width):
                    s_j[r] = 1.0 if local[r] > t[r] else -1.0
