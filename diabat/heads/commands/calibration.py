"""The salient group of every analysed layer, and the calibration that leaves it alone; no model is needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from diabat.checks import ArgumentError
from diabat.heads.calibration.mathematics import Calibration
from diabat.heads.commands.analysis import OPTIONS, AnalysedGame, Analysis, Count, Layers, Seed, Share
from diabat.heads.games.decoder import Head
from diabat.heads.games.dividends import common, finite, max_dividend
from diabat.heads.games.search import surrogate
from diabat.samplers.registry import sampler


@dataclass(frozen=True, config=OPTIONS)
class CalibrationOptions:
    """How salient groups are chosen, and what a calibration does to all other heads.

    Attributes:
        method: ``max_dividend``, ``common`` (to a share of the positive coalitions) or ``surrogate`` (a search).
        min_size: Least number of players, of ``max_dividend``.
        share: Share of the positive coalitions that hold the group, of ``common``.
        penalty: λ, the price of a player in units of v, of ``surrogate``.
        sampler: Name of the backend that proposes coalitions, of ``surrogate``.
        evaluations: Coalitions that the search may look at.
        seed: Of the search.
        layers: Layers to calibrate; None for all that were analysed.
        alpha: A column is focused above this average attention.
        beta: What is left of a focused weight; 1 changes nothing.
        rows: Rows that are averaged: ``running``, or ``prompt`` as in the paper.
        redistribution: Of what is taken: ``proportional`` or ``uniform``.
    """

    method: Literal["max_dividend", "common", "surrogate"] = "max_dividend"
    min_size: Count = 1
    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    penalty: Annotated[float, Field(ge=0)] = 0.3
    sampler: str = "exact"
    evaluations: Annotated[int, Field(ge=8)] = 200
    seed: Seed = 0
    layers: Layers | None = None
    alpha: Share = 0.1
    beta: Share = 0.1
    rows: Literal["running", "prompt"] = "running"
    redistribution: Literal["proportional", "uniform"] = "proportional"


@dataclasses.dataclass(frozen=True)
class SalientGroup:
    """The salient group of one game: its layers that are calibrated, its players and their heads (layer, head) there.

    dividend w with its standard error, and v, are those of the group; None where the analysis does not have them.
    selection_frequency, of ``max_dividend`` only, with eight questions or more and another candidate, is the share of
    bootstrap resamples in which w is the largest.
    """

    layers: tuple[int, ...]
    players: tuple[int, ...]
    heads: tuple[Head, ...]
    dividend: float | None = None
    dividend_error: float | None = None
    selection_frequency: float | None = None
    value: float | None = None


def salient_groups(analysis: Analysis, options: CalibrationOptions) -> list[SalientGroup]:
    """The salient group of every game; ArgumentError if a layer was not analysed, or the method does not apply."""
    known = sorted({layer for game in analysis.games for layer in game.layers})
    wanted = known if options.layers is None else options.layers
    for layer in wanted:
        if layer not in known:
            raise ArgumentError("layers", f"layers that were analysed, {known}", layer)
    chosen = ((game, tuple(layer for layer in game.layers if layer in wanted)) for game in analysis.games)
    return [_group(game, here, options) for game, here in chosen if here]


def calibration_of(groups: Sequence[SalientGroup], options: CalibrationOptions) -> Calibration:
    """The calibration of all heads outside the salient groups."""
    salient = {
        layer: [head for at, head in group.heads if at == layer] for group in groups for layer in group.layers
    }
    return Calibration(salient, options.alpha, options.beta, options.rows, options.redistribution)


def without_calibration(analysis: Analysis, groups: Sequence[SalientGroup]) -> list[int]:
    """Layers of which all heads are salient, so that none is calibrated; ArgumentError if there is no other layer."""
    salient = {head for group in groups for head in group.heads}
    left = {layer for layer, head in analysis.heads - salient}
    layers = [layer for group in groups for layer in group.layers]
    idle = sorted(layer for layer in layers if layer not in left)
    if len(idle) == len(layers):
        fix = "take a smaller min_size, or analyse with fewer heads_per_player"
        expected = "heads outside the salient groups, which are calibrated"
        raise ArgumentError("analysis", expected, f"all heads of layers {idle} in them; {fix}")
    return idle


def _players(game: AnalysedGame, options: CalibrationOptions) -> tuple[int, ...]:
    if options.method == "max_dividend":
        return max_dividend(game.dividends, options.min_size)
    if options.method == "common":
        return common(game.dividends, options.share)
    table, count = game.table, len(game.players)
    if table is None:
        expected = f"max_dividend or common for dividends of at most {game.options.max_size} players"
        got = "surrogate, which needs the values of all coalitions; analyse again without max_size"
        raise ArgumentError("method", expected, got)
    bits = 1 << torch.arange(count)
    return surrogate(
        lambda masks: table[(masks * bits).sum(-1)], count, sampler(options.sampler),
        penalty=options.penalty, evaluations=options.evaluations, seed=options.seed,
    ).players  # fmt: skip


def _group(game: AnalysedGame, layers: tuple[int, ...], options: CalibrationOptions) -> SalientGroup:
    players, dividends, table = _players(game, options), game.dividends, game.table
    heads = tuple(sorted(head for player in players for head in game.players[player] if head[0] in layers))
    places = (dividends.sizes == len(players)) & dividends.coalitions[:, list(players)].all(-1)
    if not bool(places.any()):  # larger than those that were evaluated
        return SalientGroup(layers, players, heads)
    at = int(places.nonzero()[0])
    dividend, error = float(dividends.value[at]), finite(dividends.standard_error)[at]
    frequency = game.frequency(at, options.min_size) if options.method == "max_dividend" else None
    value = None if table is None else float(table[at])
    return SalientGroup(layers, players, heads, dividend, error, frequency, value)
