"""Draw spins from tables of probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from diabat.circuits.schedules import FloatArray


def draw_spins(probabilities: FloatArray, uniforms: FloatArray) -> NDArray[np.int8]:
    """Independent draws by inversion: the first state whose cumulative probability exceeds the uniform.

    Args:
        probabilities: float64 [Q, 2^n], not negative; rows need not be normalised.
        uniforms: float64 [Q, shots] in [0, 1). They are an argument, so that a draw can be replayed exactly.

    Returns:
        Spins ±1, int8 [shots, Q, n]; bit j of the state index is spin j, bit 1 means +1.
    """
    problems, states = probabilities.shape
    cumulative = np.cumsum(probabilities, axis=1)
    cumulative /= cumulative[:, -1:]
    # One search for the whole batch: row q occupies the interval [q, q+1).
    offset = np.arange(problems)[:, None]
    flat = np.searchsorted((cumulative + offset).ravel(), (uniforms + offset).ravel(), side="right")
    # Adding q can round a uniform number up to the next row.
    state = np.minimum(flat.reshape(uniforms.shape) - offset * states, states - 1).T  # [shots, Q]
    n = states.bit_length() - 1
    bits = (state[..., None] >> np.arange(n)) & 1
    return (2 * bits - 1).astype(np.int8)
