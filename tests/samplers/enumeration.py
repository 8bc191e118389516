"""Naive enumeration that autograd can differentiate, and comparisons used by several tests."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from diabat.ising import Ising
from diabat.testing import state_table

Probability = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]


def naive(ising: Ising) -> tuple[Tensor, Tensor]:
    """P(s = +1) [*batch, n] and log Z [*batch]; a [*batch, 2^n] array, one einsum per order."""
    states = state_table(ising.num_spins).to(ising.fields)
    seen = ising.visible_mask
    s = states * seen[..., None, :]  # [*batch, 2^n, n]
    exponent = (s * ising.fields[..., None, :]).sum(-1)
    n = ising.num_spins
    # Coincident indices are no terms of the model, and must not show in the gradient either.
    apart = 1 - torch.eye(n, dtype=s.dtype)
    if ising.couplings is not None:
        exponent = exponent + torch.einsum("...jk,...xj,...xk->...x", ising.couplings * apart, s, s) / 2
    if ising.three_body is not None:
        K = ising.three_body * apart[:, :, None] * apart[:, None, :] * apart[None, :, :]
        exponent = exponent + torch.einsum("...jkl,...xj,...xk,...xl->...x", K, s, s, s) / 6
    probability = torch.softmax(exponent, -1) @ (states > 0).to(s)
    # Every state was counted once for each value of the invisible spins.
    log_z = exponent.logsumexp(-1) - (~seen).sum(-1) * math.log(2)
    return torch.where(seen, probability, 0), log_z


def relative_error(got: Tensor, want: Tensor) -> float:
    """Largest relative error over the entries that are not zero."""
    want = want.double()
    return float(((got.double() - want).abs() / want)[want > 0].max())
