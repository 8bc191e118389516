"""The salient group of every analysed layer, and the calibration that leaves it alone; no model is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diabat.attention.games.tables import inverse_mobius
from diabat.attention.heads import Calibration, common, max_dividend, surrogate
from diabat.attention.heads.players import Head
from diabat.checks import ArgumentError, check_choice, check_count
from diabat.runs.heads.analysis.folder import Analysis
from diabat.samplers.registry import sampler
from diabat.studies.heads.measure import GameFacts

METHODS = ("max_dividend", "common", "surrogate")


@dataclass(frozen=True)
class Method:
    """How a salient group is chosen.

    Attributes:
        name: ``max_dividend``, ``common`` or ``surrogate``.
        least_size: Least number of players, of ``max_dividend``.
        share: Share of the positive coalitions that hold the group, of ``common``.
        penalty: λ, the price of a player in units of v, of ``surrogate``.
        sampler: Name of the sampler that proposes coalitions.
        evaluations: Coalitions that the search may look at.
        seed: Of the search.

    Raises:
        ArgumentError: If the name is unknown.
    """

    name: str = "max_dividend"
    least_size: int = 1
    share: float = 0.5
    penalty: float = 0.3
    sampler: str = "exact"
    evaluations: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("method", self.name, METHODS)
        check_count("seed", self.seed, least=0, most=2**63 - 1)


@dataclass(frozen=True)
class Choice:
    """The salient group of one game.

    Attributes:
        layers: Layers that are calibrated.
        players: The group.
        heads: Its heads (layer, head) in these layers.
        dividend: w of the group; None if the analysis does not have it.
        dividend_error: Its standard error.
        argmax_frequency: With ``max_dividend``, how often the group has the largest dividend when samples are drawn
            anew; None with other methods.
        value: v of the group; None if the analysis does not have all coalitions.
    """

    layers: tuple[int, ...]
    players: tuple[int, ...]
    heads: tuple[Head, ...]
    dividend: float | None
    dividend_error: float | None
    argmax_frequency: float | None
    value: float | None


def choose(analysis: Analysis, method: Method, layers: Sequence[int] | None = None) -> list[Choice]:
    """Choose the salient group of every game.

    Args:
        analysis: Of the model that is to be calibrated.
        method: How.
        layers: Layers to calibrate; None for all that were analysed.

    Raises:
        ArgumentError: If a layer was not analysed, or the method does not apply.
    """
    known = sorted({layer for game in analysis.games for layer in game.layers})
    wanted = known if layers is None else list(layers)
    for layer in wanted:
        if layer not in known:
            raise ArgumentError("layers", f"expected layers that were analysed, {known}, got {layer}.")
    found = []
    for game in analysis.games:
        here = tuple(layer for layer in game.layers if layer in wanted)
        if here:
            found.append(_describe(game, here, _players(game, method), method))
    return found


def calibration_of(choices: Sequence[Choice], **options: Any) -> Calibration:
    """The calibration of all heads outside the salient groups; ``options`` are α, β, rows and redistribution."""
    return Calibration(
        {
            layer: [h for at, h in choice.heads if at == layer]
            for choice in choices
            for layer in choice.layers
        },
        **options,
    )


def _players(game: GameFacts, method: Method) -> tuple[int, ...]:
    if method.name == "max_dividend":
        return max_dividend(game.mean_dividends, method.least_size)
    if method.name == "common":
        return common(game.mean_dividends, method.share)
    table = _table(game)
    if table is None:
        raise ArgumentError(
            "method",
            f"expected max_dividend or common for dividends of at most {game.order} players, got surrogate, which "
            "needs the values of all coalitions; analyse again without an order.",
        )
    n = len(game.players)
    bits = 1 << torch.arange(n)
    return surrogate(
        lambda masks: table[(masks * bits).sum(-1)],
        n,
        sampler(method.sampler),
        penalty=method.penalty,
        evaluations=method.evaluations,
        seed=method.seed,
    ).players


def _table(game: GameFacts) -> Tensor | None:
    """Values v of all coalitions, float64 [2^n], from their dividends."""
    if game.order is not None:
        return None
    return game.value_of_none + inverse_mobius(torch.tensor(game.dividends, dtype=torch.float64))


def _describe(game: GameFacts, layers: tuple[int, ...], players: tuple[int, ...], method: Method) -> Choice:
    mask = torch.zeros(len(game.players), dtype=torch.bool)
    mask[list(players)] = True
    places = (game.coalitions == mask).all(-1).nonzero()[:, 0].tolist()
    at: int | None = places[0] if places else None
    table = _table(game)
    return Choice(
        layers,
        players,
        tuple(head for head in game.heads(players) if head[0] in layers),
        None if at is None else game.dividends[at],
        None if at is None else game.standard_errors[at],
        None if at is None or method.name != "max_dividend" else game.frequency(at, method.least_size),
        None if at is None or table is None else float(table[at]),
    )
