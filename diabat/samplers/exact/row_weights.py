"""Row-scaled Boltzmann weights of a bilinear exponent (kernel).

    W[g,x,y] = exp(E - log_scale[g,x]),   E[g,x,y] = Σ_k c[g,x,k] F[y,k] + e_R[g,y]

On the CPU, where F is just the spins of y, a compiled loop multiplies small tables: no exponential and no
float64 array of the size of W.  Rows are then scaled by the bound Σ|c| + max e_R of their maximum; a row far below
its bound is recomputed from the exponent, as on other devices.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Below this many states a matrix product is as fast as compiled code.
_COMPILED_MIN_STATES = 1 << 13
# A row whose largest entry is at least this keeps every state that matters above the smallest normal number.
_MIN_ROW_MAX = {torch.float32: 1e-12, torch.float64: 1e-100}


def row_scaled_weights(
    coefficients: Tensor,
    right_energy: Tensor,
    right_features: Tensor,
    dtype: torch.dtype,
    scratch: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute W with entries of at most 1, and the log scale of each row.

    Args:
        coefficients: c, float64 [G, X, f].
        right_energy: e_R, float64 [G, Y].
        right_features: F, float64 [Y, f]; the first log2(Y) columns are the spins of y in bit order.
        dtype: Working precision of W.
        scratch: [G, X, Y] in ``dtype`` that W may overwrite; without it, memory is allocated.

    Returns:
        W in ``dtype`` [G, X, Y], relative error a few roundings of ``dtype``; log_scale in float64 [G, X].
    """
    groups, rows, features = coefficients.shape
    columns = len(right_features)
    only_spins = features == columns.bit_length() - 1
    if coefficients.device.type == "cpu" and only_spins and groups * rows * columns >= _COMPILED_MIN_STATES:
        W, log_scale, row_max = _products(coefficients.detach(), right_energy.detach(), dtype, scratch)
        if float(row_max.min()) >= _MIN_ROW_MAX[dtype]:
            return W, log_scale
        faint = row_max < _MIN_ROW_MAX[dtype]
        for g in faint.any(1).nonzero()[:, 0].tolist():
            bad = faint[g]
            W[g, bad], log_scale[g, bad] = _exponentials(
                coefficients[g, bad], right_energy[g], right_features, dtype
            )
        return W, log_scale
    return _exponentials(coefficients, right_energy[:, None], right_features, dtype)


def _exponentials(c: Tensor, right: Tensor, features: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Scale every row by its true maximum, found in float64."""
    exponent = (c @ features.T).add_(right)
    log_max = exponent.amax(-1)
    return exponent.sub_(log_max[..., None]).to(dtype).exp_(), log_max


def _products(
    c: Tensor, right: Tensor, dtype: torch.dtype, scratch: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    from diabat.samplers.exact.row_kernel import product_weights

    # numpy: less time per call than torch for tables this small, and huge pages for W.
    coefficients, energies = c.numpy(), right.numpy()
    size = np.abs(coefficients)
    right_max = energies.max(-1, keepdims=True)
    shape = (*size.shape[:2], energies.shape[1])
    kind = np.float32 if dtype == torch.float32 else np.float64
    fits = scratch is not None and scratch.shape == shape
    W = scratch.numpy() if scratch is not None and fits else np.empty(shape, kind)
    row_max = np.empty(shape[:2], kind)
    scaled_right = np.exp((energies - right_max).astype(kind))
    product_weights(np.exp(-2 * size), coefficients > 0, scaled_right, W, row_max)
    log_scale = size.sum(-1) + right_max
    return torch.from_numpy(W), torch.from_numpy(log_scale), torch.from_numpy(row_max)
