r"""Monte Carlo estimates of Shapley values, Banzhaf indices and pair interactions.

Two weightings.  ``uniform``: plain averages, unbiased for the index that is asked for.  ``gibbs``: the
self-normalised weights w_k ∝ exp(v(B_k)/γ)/p(B_k) of arXiv:2603.18761 (Algorithm 1), with B_k the sampled coalition
without the player or pair and p its proposal probability.  They converge to the Gibbs-weighted contribution
:func:`gibbs_marginal` (pairs: :func:`gibbs_interaction`), the same for "Shapley" and "Banzhaf" since p divides out, and
not to either index.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from diabat.attention.games import draws
from diabat.attention.games.estimate import Estimate, Temperature, inverse_temperature, weighted_mean
from diabat.attention.games.pairs import of_function_pairs, of_norm_pairs
from diabat.attention.games.value_games import FunctionGame, NormGame
from diabat.checks import ArgumentError, check_choice, check_count
from diabat.samplers.seeds import draw_seed

Game = NormGame | FunctionGame
Weighting = Literal["uniform", "gibbs"]


def sample_shapley(
    game: Game,
    num_samples: int,
    *,
    weighting: Weighting = "uniform",
    temperature: Temperature = 1.0,
    antithetic: bool = False,
    stratified: bool = False,
    seed: int | None = None,
    diagnostics: bool = True,
) -> Estimate:
    r"""Estimate φ_i = E_π[v(P_i(π) + i) - v(P_i(π))], P_i the predecessors of i in a random permutation π.

    One permutation serves all players, and every one of them distributes v(N) - v(∅) exactly (uniform weights).
    With ``stratified`` the predecessors are coalitions of stratified sizes instead of prefixes.

    Args:
        game: The game.
        num_samples: K, even if antithetic.
        weighting: See the module.
        temperature: γ of the Gibbs weights, a number or a tensor that broadcasts to the batch.
        antithetic: Each permutation is followed by its reverse (coalitions: by their complement).
        stratified: Sizes from K equal strata of 0 .. n.
        seed: The same seed gives the same coalitions; None draws one.
        diagnostics: Also return standard errors and effective numbers of samples.

    Returns:
        Estimate [*batch, n], 0 where there is no player.

    Raises:
        ValueError: If an option is out of range.
    """
    _check(num_samples, weighting, antithetic)
    options = {"antithetic": antithetic}
    players, start = game.players, draw_seed(seed)
    if stratified:
        inside = draws.sized_coalitions(players, num_samples, start, stratified=True, **options)
        size = inside.sum(-1, keepdim=True) - inside.long()
        before, marginal = _marginals(*game.toggles(inside), inside)
    else:
        size = draws.permutations(players, num_samples, start, **options)
        before, after = game.along(size)
        marginal = after - before
    logits = None
    if weighting == "gibbs":
        beta = inverse_temperature(temperature, before)[..., None, None]
        logits = beta * before - _log_proposal(size, _others(players, 1)).to(before)
    return _of_players(marginal, logits, antithetic, diagnostics)


def sample_banzhaf(
    game: Game,
    num_samples: int,
    *,
    weighting: Weighting = "uniform",
    temperature: Temperature = 1.0,
    antithetic: bool = False,
    seed: int | None = None,
    diagnostics: bool = True,
) -> Estimate:
    r"""Estimate β_i = E_C[v(C + i) - v(C - i)] with every player in C with probability 1/2.

    Arguments, result and errors as in :func:`sample_shapley`.
    """
    _check(num_samples, weighting, antithetic)
    inside = draws.half_coalitions(game.players, num_samples, draw_seed(seed), antithetic=antithetic)
    whole, single = game.toggles(inside)
    beta = inverse_temperature(temperature, whole) if weighting == "gibbs" else None
    return _banzhaf(whole, single, inside, beta, antithetic, diagnostics)


def sample_halves(
    game: NormGame, num_samples: int, weighting: Weighting, temperature: Temperature, seed: int, diagnostics: bool
) -> tuple[Estimate, Estimate]:  # fmt: skip
    """Return :func:`sample_banzhaf` and :func:`sample_interaction`, whose coalitions are the same, at once."""
    inside = draws.half_coalitions(game.players, num_samples, seed)
    around, beta = game.around(inside), inverse_temperature(temperature, game.gram)
    log_proposal = game.gram.new_zeros(*inside.shape[:-1], 3) if weighting == "gibbs" else None
    pairs = of_norm_pairs(game, around, beta, log_proposal, 1, diagnostics)
    weight, values = None if log_proposal is None else beta, around[0]
    return _banzhaf(values.whole, values.single, inside, weight, False, diagnostics), pairs


def sample_interaction(
    game: Game,
    num_samples: int,
    *,
    index: Literal["banzhaf", "shapley"] = "banzhaf",
    weighting: Weighting = "uniform",
    temperature: Temperature = 1.0,
    antithetic: bool = False,
    stratified: bool = False,
    seed: int | None = None,
    diagnostics: bool = True,
) -> Estimate:
    r"""Estimate E_C[v(C+i+j) - v(C+i-j) - v(C+j-i) + v(C-i-j)] for **all** pairs i, j.

    ``banzhaf``: every player in C with probability 1/2 (the contexts of Algorithm 1); ``shapley``: |C| uniform on
    0 .. n, which leaves the contexts of the Shapley interaction index.  All pairs share the K coalitions: with a
    NormGame the cost is K n² roots, never K n² d, and memory K n + n².

    Args:
        game: The game.
        num_samples: K, even if antithetic.
        index: The law of the contexts.
        weighting: See the module.
        temperature: γ of the Gibbs weights, a number or a tensor that broadcasts to the batch.
        antithetic: Each coalition is followed by its complement.
        stratified: Sizes from K equal strata of 0 .. n; ``index="shapley"`` only.
        seed: As in :func:`sample_shapley`; ``banzhaf`` takes the coalitions of :func:`sample_banzhaf`.
        diagnostics: Also return standard errors and effective numbers of samples (a second pass).

    Returns:
        Estimate [*batch, n, n], symmetric, zero on the diagonal and where there is no player.

    Raises:
        ValueError: If an option is out of range.
    """
    _check(num_samples, weighting, antithetic)
    check_choice("index", index, ("banzhaf", "shapley"))
    start = draw_seed(seed)
    if index == "banzhaf":
        if stratified:
            reason = "expected False with index='banzhaf', whose sizes are binomial."
            raise ArgumentError("stratified", reason)
        inside = draws.half_coalitions(game.players, num_samples, start, antithetic=antithetic)
    else:
        inside = draws.sized_coalitions(
            game.players, num_samples, start, antithetic=antithetic, stratified=stratified
        )
    log_proposal = None
    if weighting == "gibbs":
        log_proposal = torch.zeros(*inside.shape[:-1], 3, dtype=torch.double, device=inside.device)
        if index == "shapley":  # p of the other is the same for all contexts
            taken = torch.arange(3, device=inside.device)
            log_proposal = _log_proposal(inside.sum(-1)[..., None] - taken, _others(game.players, 2))
    unit = 2 if antithetic else 1
    if isinstance(game, NormGame):
        beta = inverse_temperature(temperature, game.gram)
        return of_norm_pairs(game, game.around(inside), beta, log_proposal, unit, diagnostics)
    return of_function_pairs(game, inside, temperature, log_proposal, unit, diagnostics)


def _check(num_samples: int, weighting: str, antithetic: bool) -> None:
    check_count("num_samples", num_samples)
    if antithetic and num_samples % 2:
        raise ArgumentError("num_samples", "an even number with antithetic=True", num_samples)
    check_choice("weighting", weighting, ("uniform", "gibbs"))


def _others(players: Tensor, taken: int) -> Tensor:
    """Number of players besides the one or two looked at, [*batch, 1, 1]."""
    return (players.sum(-1) - taken)[..., None, None]


def _log_proposal(size: Tensor, others: Tensor) -> Tensor:
    """Log of s! (m - s)!/m!, the probability of a context up to a constant, 0 outside 0 .. m.

    The size s is [*batch, K, *], the number m of others [*batch, 1, 1].
    """
    largest = max(0, int(others.max())) if others.numel() else 0
    log_factorial = torch.arange(1, largest + 2, dtype=torch.double, device=size.device).lgamma_()
    s = size.clamp_min(0).minimum(m := others.clamp_min(0))
    log_p = log_factorial[s] + log_factorial[m - s] - log_factorial[m]
    return torch.where((s == size) & (others >= 0), log_p, 0)


def _banzhaf(
    whole: Tensor, single: Tensor, inside: Tensor, beta: Tensor | None, antithetic: bool, diagnostics: bool
) -> Estimate:
    before, marginal = _marginals(whole, single, inside)
    logits = None if beta is None else beta[..., None, None] * before  # p is the same for all
    return _of_players(marginal, logits, antithetic, diagnostics)


def _marginals(whole: Tensor, single: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """v(C - i) and v(C + i) - v(C - i), [*batch, K, n]; 0 where there is no player, whose vector is 0."""
    whole = whole[..., None].expand(single.shape)
    before = torch.where(inside, single, whole)
    return before, torch.where(inside, whole, single) - before


def _of_players(marginal: Tensor, logits: Tensor | None, antithetic: bool, diagnostics: bool) -> Estimate:
    return weighted_mean(marginal, logits, unit=2 if antithetic else 1, diagnostics=diagnostics)
