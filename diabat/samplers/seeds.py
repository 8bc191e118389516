"""Seeds: checks, drawing, and derivation from other seeds."""

from __future__ import annotations

import numpy as np
import torch

from diabat.checks import ArgumentError, is_integer

MAX_SEED = 2**63 - 1


def draw_seed(seed: int | None) -> int:
    """Return the seed itself; for None one of 63 bits from torch's global generator, which ``manual_seed`` sets.

    Raises:
        ValueError: If the seed is not an integer in 0 .. 2^63 - 1.
    """
    if seed is None:
        with torch._C._DisableFuncTorch():  # one seed for all that torch.func.vmap maps over
            return int(torch.randint(MAX_SEED, ()))
    if not is_integer(seed) or not 0 <= seed <= MAX_SEED:
        raise ArgumentError("seed", "an integer between 0 and 2^63 - 1", f"{seed!r}")
    return int(seed)


def child_seed(seed: int, *place: int) -> int:
    """Derive the seed below 2^63 of a place in the tree of ``numpy.random.SeedSequence(seed).spawn``.

    ``child_seed(seed, 2, 5)`` belongs to ``SeedSequence(seed).spawn(3)[2].spawn(6)[5]``.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=place)
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
