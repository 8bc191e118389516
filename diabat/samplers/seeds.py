"""Seeds that follow from other seeds."""

from __future__ import annotations

import numpy as np


def child_seed(seed: int, *place: int) -> int:
    """Seed below 2^63 of the place in the tree that ``numpy.random.SeedSequence(seed).spawn`` grows.

    ``child_seed(seed, 2, 5)`` belongs to ``SeedSequence(seed).spawn(3)[2].spawn(6)[5]``.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=place)
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
