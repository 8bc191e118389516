"""Log-odds of spins from a backend that computes P(s = +1) only."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from diabat.ising import Ising


def flipped_log_odds(solve: Callable[[Ising], Tensor], ising: Ising) -> Tensor:
    """Log P(s_j = +1) - log P(s_j = -1), [*batch, n]; 0 for invisible spins.

    P(s_j = -1) is P(s_j = +1) of the problem with all spins flipped, (-h, J, -K), solved in the same call; 1 - P would
    be 0 where P rounds to 1.

    Args:
        solve: P(s = +1) of a batch, differentiable.
        ising: The problems.
    """
    fields, K = ising.fields, ising.three_body
    if K is not None:
        both = K.reshape(*(1,) * (fields.ndim + 2 - K.ndim), *K.shape)
        K = torch.stack((both, -both))
    found = solve(Ising(torch.stack((fields, -fields)), ising.couplings, ising.visible, K, check=False))
    # The inverse of the smallest probability must not overflow in the backward pass.
    up, down = found.clamp_min(torch.finfo(fields.dtype).tiny ** 0.75).log().unbind(0)
    return up - down
