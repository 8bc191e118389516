"""Interactions of all pairs around given coalitions, for both kinds of games."""

from __future__ import annotations

import torch
from torch import Tensor

from diabat.attention.games.checks import Temperature, inverse_temperature
from diabat.attention.games.estimate import Estimate, standard_error, weighted_mean
from diabat.attention.games.function_game import FunctionGame
from diabat.attention.games.norm_game import NormGame
from diabat.attention.games.pair_sum import pair_errors, pair_means


def of_norm_pairs(
    game: NormGame,
    inside: Tensor,
    temperature: Temperature,
    log_proposal: Tensor | None,
    unit: int,
    diagnostics: bool,
) -> Estimate:
    """Estimate all pairs from coalitions [*batch, K, n], log p [*batch, K, 3] of their contexts if Gibbs-weighted."""
    n, count = inside.shape[-1], inside.shape[-2]
    beta = inverse_temperature(temperature, game.gram)
    if log_proposal is not None:
        log_proposal = log_proposal.to(game.gram)
    values, coalitions = game.pair_values(inside, beta, log_proposal)
    mean, normaliser = pair_means(values, coalitions)
    real = game.players[..., :, None] & game.players[..., None, :]
    real = real & ~torch.eye(n, dtype=torch.bool, device=real.device)

    def shaped(pairs: Tensor, fill: float = 0.0) -> Tensor:
        pairs = pairs.reshape(*game.batch_shape, n, n)
        return torch.where(real, (pairs + pairs.mT) / 2, fill)

    value = shaped(mean)
    if not diagnostics:
        return Estimate(value, None, None, count)
    squares, weight = pair_errors(values, coalitions, mean.detach(), normaliser, unit)
    error = torch.where(real, standard_error(shaped(squares), count // unit), 0)
    return Estimate(value, error, 1 / shaped(weight, 1 / count), count)


def of_function_pairs(
    game: FunctionGame,
    inside: Tensor,
    temperature: Temperature,
    log_proposal: Tensor | None,
    unit: int,
    diagnostics: bool,
) -> Estimate:
    """Estimate all pairs likewise, from about K n²/2 values of the function."""
    n = inside.shape[-1]
    i, j = torch.triu_indices(n, n, offset=1, device=inside.device)
    whole, single = game.toggles(inside)
    double = game.double_toggles(inside, i, j)  # [*batch, K, P]
    sign = 1 - 2 * inside.to(double)
    delta = double - single[..., i] - single[..., j] + whole[..., None]
    delta = delta * sign[:, i] * sign[:, j]
    logits = None
    if log_proposal is not None:
        in_i, in_j = inside[:, i], inside[:, j]
        alone = torch.where(in_i, single[..., i], torch.where(in_j, single[..., j], whole[..., None]))
        context = torch.where(in_i & in_j, double, alone)
        taken = in_i.long() + in_j.long()
        beta = inverse_temperature(temperature, double)[..., None, None]
        logits = beta * context - log_proposal.to(double).gather(-1, taken)
    flat = weighted_mean(delta, logits, unit=unit, diagnostics=diagnostics)

    def square(pairs: Tensor, diagonal: float = 0.0) -> Tensor:
        full = torch.full((*pairs.shape[:-1], n, n), diagonal, dtype=pairs.dtype, device=pairs.device)
        full[..., i, j] = full[..., j, i] = pairs
        return full

    if flat.standard_error is None or flat.effective_samples is None:
        return Estimate(square(flat.value), None, None, flat.num_samples)
    error, effective = square(flat.standard_error), square(flat.effective_samples, float(flat.num_samples))
    return Estimate(square(flat.value), error, effective, flat.num_samples)
