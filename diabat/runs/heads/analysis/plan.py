"""The games of an analysis: their players, their values in files, and how much work each is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diabat.attention.games.tables import MAX_PLAYERS
from diabat.attention.heads import HeadCoalitions
from diabat.attention.heads.players import Groups, given_groups, key_value_groups
from diabat.attention.heads.replay import Replay
from diabat.checks import ArgumentError, check_count
from diabat.huggingface.loading import DTYPES
from diabat.runs.heads.analysis.request import Options
from diabat.runs.heads.questions.sets import QuestionSet
from diabat.studies.heads.measure import game_size

_SAMPLE = re.compile(r"samples\[(\d+)\](.*)", re.DOTALL)


class Plan:
    """The games of an analysis, in the order in which they are evaluated.

    Args:
        model: A decoder of transformers.
        tokenizer: Its tokenizer, or None.
        sets: Questions, whose samples are pooled.
        value: Name of the value.
        options: Layers, players, what an absent head gives.
        batch_size: Coalitions in one forward pass.

    Attributes:
        games: Players of every game.

    Raises:
        ArgumentError: If an option does not suit the model, or a sample the value.
        UnsupportedError: If the attention of the model cannot be switched.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        sets: Sequence[QuestionSet],
        value: str,
        options: Options,
        batch_size: int,
    ) -> None:
        self._model, self._tokenizer, self._sets = model, tokenizer, sets
        self._value, self._options, self._batch_size = value, options, batch_size
        decoder = Replay(model, options.absent, options.epsilon).decoder
        self._blocks = len(decoder.blocks)
        self.games = _groups(decoder.sites, options)
        for players in self.games:
            _check_order(options.order, len(players))
        self.game(0)  # checks samples and value before anything is written

    def game(
        self, index: int, values: Path | None = None, progress: Callable[[int, int], None] | None = None
    ) -> HeadCoalitions:
        """One game; ``values`` is the folder that keeps what it evaluates."""
        samples = [sample for questions in self._sets for sample in questions.samples]
        with _naming_samples(self._sets):
            return HeadCoalitions(
                self._model,
                samples,
                players=self.games[index],
                value=self._value,
                tokenizer=self._tokenizer,
                absent=self._options.absent,
                epsilon=self._options.epsilon,
                batch_size=self._batch_size,
                dtype=DTYPES[self._options.dtype],
                store=None if values is None else values / f"{self.name(index)}.safetensors",
                progress=progress,
            )

    def name(self, index: int) -> str:
        """Name of a game: layer-05, joint, or players."""
        if self._options.players is not None:
            return "players"
        return "joint" if self._options.joint else f"layer-{self._first_layer(index):02d}"

    def evaluations(self, index: int) -> int:
        """Samples times coalitions of a game."""
        size = game_size(len(self.games[index]), self._options.order)
        return size * sum(len(questions.samples) for questions in self._sets)

    def blocks(self, index: int) -> int:
        """Blocks that one evaluation runs: those from the first layer with a player on, all if text is generated."""
        return self._blocks if self._value == "f1" else self._blocks - self._first_layer(index)

    def _first_layer(self, index: int) -> int:
        return min(layer for group in self.games[index] for layer, _ in group)


def _groups(sites: Any, options: Options) -> list[Groups]:
    if options.players is not None:
        return [given_groups(sites, options.players)]
    layers = sorted(sites) if options.layers is None else list(options.layers)
    joint = key_value_groups(
        sites, layers, options.heads_per_player
    )  # also refuses a layer that is given twice
    if options.joint:
        return [joint]
    return [key_value_groups(sites, layer, options.heads_per_player) for layer in layers]


def _check_order(order: int | None, players: int) -> None:
    if order is None and players > MAX_PLAYERS:
        raise ArgumentError(
            "order",
            f"expected an order (3, for example) for more than {MAX_PLAYERS} players, got none for {players}.",
        )
    check_count("order", order, most=players, optional=True)


@contextmanager
def _naming_samples(sets: Sequence[QuestionSet]) -> Iterator[None]:
    """Report errors about a sample with the set that it is from, and its position there."""
    try:
        yield
    except ArgumentError as error:
        found = _SAMPLE.fullmatch(error.argument or "")
        if found is None:
            raise
        index = int(found[1])
        for questions in (member for one in sets for member in one.members()):
            if index < len(questions.samples):
                place = f"{questions.name}, question {index}{found[2].replace('.', ', ')}"
                raise ArgumentError("sets", f"{place}: {error.reason}") from error
            index -= len(questions.samples)
        raise
