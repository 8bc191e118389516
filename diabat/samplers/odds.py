"""Log-odds of spins from a backend that computes P(s = +1) and log Z."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from diabat.ising import Ising

if TYPE_CHECKING:
    from diabat.samplers.answers import Moments


def flipped_log_odds(solve: Callable[[Ising], Tensor], ising: Ising) -> Tensor:
    """Log P(s_j = +1) - log P(s_j = -1), [*batch, n]; 0 for invisible spins.

    P(s_j = -1) is P(s_j = +1) of the problem with all spins flipped, (-h, J, -K), solved in the same call; 1 - P would
    be 0 where P rounds to 1.

    Args:
        solve: P(s = +1) of a batch, differentiable.
        ising: The problems.
    """
    return _log_ratio(*solve(_flipped(ising)).unbind(0))


def analytic_log_odds(moments: Callable[[Ising], Moments], ising: Ising) -> Tensor:
    """The same from a backend that computes log Z as well, for odds of any size.

    Probabilities that are too small for the digits of the sums behind them are computed in float64; where that is not
    enough, the log-odds are log Z(s_j = +1) - log Z(s_j = -1) of the problems with spin j clamped.  The transforms of
    torch.func hide values, and limit odds to the range of probabilities.
    """
    up, down = moments(_flipped(ising)).probability.unbind(0)
    lost = (torch.minimum(up, down) < torch.finfo(up.dtype).eps ** 1.5) & ising.visible_mask
    if torch._C._are_functorch_transforms_active() or not bool(lost.any()):
        return _log_ratio(up, down)
    if up.dtype != torch.float64:
        return analytic_log_odds(moments, ising.to(torch.float64)).to(up.dtype)
    columns = list(_log_ratio(up.masked_fill(lost, 1), down.masked_fill(lost, 1)).unbind(-1))
    for j in lost.reshape(-1, lost.shape[-1]).any(0).nonzero()[:, 0].tolist():
        values = torch.zeros(2, *(1,) * (lost.ndim - 1), lost.shape[-1], dtype=torch.int8, device=lost.device)
        values[..., j] = torch.tensor((1, -1)).reshape(values.shape[:-1])
        clamped = ising.clamp(values)
        log_z = moments(clamped).with_constants(clamped).log_partition
        if log_z is None:
            return _log_ratio(up, down)
        columns[j] = torch.where(lost[..., j], log_z[0] - log_z[1], columns[j])
    return torch.stack(columns, -1)


def _flipped(ising: Ising) -> Ising:
    """The problems and those with all spins flipped, [2, *batch]."""
    fields, K = ising.fields, ising.three_body
    if K is not None:
        both = K.reshape(*(1,) * (fields.ndim + 2 - K.ndim), *K.shape)
        K = torch.stack((both, -both))
    return Ising(torch.stack((fields, -fields)), ising.held_couplings, ising.visible, K, check=False)


def _log_ratio(up: Tensor, down: Tensor) -> Tensor:
    # The inverse of the smallest probability must not overflow in the backward pass.
    least = torch.finfo(up.dtype).tiny ** 0.75
    return up.clamp_min(least).log() - down.clamp_min(least).log()
