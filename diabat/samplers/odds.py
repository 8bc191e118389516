"""Log-odds of spins from a backend that computes P(s = +1) and log Z."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from diabat.ising import Ising, flat_index

if TYPE_CHECKING:
    from diabat.samplers.answers import Moments

# Smallest probabilities with all their digits, for every analytic backend.
_LEAST = {torch.float32: torch.finfo(torch.float32).eps ** 1.5, torch.float64: 1e-38}


def flipped_log_odds(solve: Callable[[Ising], Tensor], ising: Ising) -> Tensor:
    """Log P(s_j = +1) - log P(s_j = -1), [*batch, n]; 0 for invisible spins.

    P(s_j = -1) is P(s_j = +1) of the problem with all spins flipped, (-h, J, -K), solved in the same call; 1 - P would
    be 0 where P rounds to 1.  ``solve`` gives P(s = +1) of a batch, differentiable.
    """
    return _log_ratio(*solve(_flipped(ising)).unbind(0))


def analytic_log_odds(moments: Callable[[Ising], Moments], ising: Ising) -> Tensor:
    """The same from a backend that computes log Z as well, for odds of any size.

    Problems with probabilities that are too small for the digits of the sums behind them are solved again alone, in
    float64; where that is not enough, the log-odds are log Z(s_j = +1) - log Z(s_j = -1) of the problem with spin j
    clamped.  The transforms of torch.func hide values, and limit odds to the range of probabilities.
    """
    up, down = moments(_flipped(ising)).probability.unbind(0)
    lost = (torch.minimum(up, down) < _LEAST[up.dtype]) & ising.visible_mask
    if torch._C._are_functorch_transforms_active() or not bool(lost.any()):
        return _log_ratio(up, down)
    odds = _log_ratio(up.masked_fill(lost, 1), down.masked_fill(lost, 1)).reshape(-1, ising.num_spins)
    lost = lost.reshape(odds.shape)
    if up.dtype != torch.float64:
        rows = lost.any(1).nonzero()[:, 0]
        again = analytic_log_odds(moments, _some(ising, rows).to(torch.float64))
        return odds.index_put((rows,), again.to(odds)).reshape(up.shape)
    # As many problems at once as the batch has.
    parts = (part.split(ising.num_problems) for part in lost.nonzero(as_tuple=True))
    for rows, spins in zip(*parts, strict=True):
        values = torch.zeros(2, len(rows), lost.shape[1], dtype=torch.int8, device=lost.device)
        values[0, torch.arange(len(rows)), spins], values[1, torch.arange(len(rows)), spins] = 1, -1
        clamped = _some(ising, rows).clamp(values)
        log_z = moments(clamped).with_constants(clamped).log_partition
        if log_z is None:
            return _log_ratio(up, down)
        odds = odds.index_put((rows, spins), log_z[0] - log_z[1])
    return odds.reshape(up.shape)


def _some(ising: Ising, rows: Tensor) -> Ising:
    """Some problems of a batch, [R], by their rows; one J or K of all problems remains one."""

    def own(values: Any, order: int) -> Any:
        if values is None:
            return None
        lead, flat = values.shape[:-order], values.reshape(-1, *values.shape[-order:])
        missing = len(ising.batch_shape) - len(lead)
        which = flat_index(torch.Size((1,) * missing + lead), ising.batch_shape).to(rows.device)
        return flat[0] if len(flat) == 1 else flat[which[rows]]

    n, edges = ising.num_spins, ising.edges
    J = own(ising.matrix, 2) if edges is None else edges.with_values(own(edges.values, 1))
    visible = None if ising.visible is None else ising.visible_mask.reshape(-1, n)[rows]
    return Ising(ising.fields.reshape(-1, n)[rows], J, visible, own(ising.three_body, 3), check=False)


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
