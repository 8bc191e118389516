"""Dividends of the heads of a decoder, layer by layer: everything follows from the values in one file."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import numpy as np
import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.documents.errors import explain
from diabat.documents.overrides import apply_overrides
from diabat.extras import extra
from diabat.heads.calibration.file import load_gac, stored_calibration
from diabat.heads.games.ablation import Kind
from diabat.heads.games.coalitions import HeadCoalitions
from diabat.heads.games.decoder import Groups, Head, layers_of
from diabat.heads.games.dividends import Dividends, finite, small_coalitions, standard_error
from diabat.heads.games.questions import read_questions
from diabat.heads.games.store import ValueStore
from diabat.huggingface.loading import DTYPES, check_adapter, load_adapter, load_decoder
from diabat.huggingface.model_digest import ROUNDED, model_digest
from diabat.progress import new_bar
from diabat.version import __version__

OPTIONS = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(ge=0, le=1)]
Layers = tuple[Annotated[int, Field(ge=0)], ...]
LEAST_SAMPLES = 8
"""A bootstrap frequency of fewer looks certain and is not: of one sample it is 1, whatever others would say."""
FILE = "values.safetensors"
# Seconds over which the speed is averaged: a batch of coalitions of a large model takes many.
WINDOW = 600.0


@dataclass(frozen=True, config=OPTIONS)
class GameOptions:
    """The model and the questions of games, and how coalitions are evaluated.

    Attributes:
        layers: Those of the players; None for all.
        value: Name of the value; None for ``log_odds`` with choices, ``option_log_likelihood`` with one, else
            ``perplexity``.
        ablation: What an absent head gives: ``uniform``, ``scaled``, ``zero``, ``mean`` or ``corrupted``.
        count: Questions drawn from the file; None for all.
        seed: Of what is drawn.
        calibration: Take the model with this ``gac.json``, a file or its folder.
        adapter: Take the model with this LoRA adapter of peft.
        dtype: Of the model's parameters; half precision moves dividends.
        device: As torch names it.
        batch_size: Coalitions in one forward pass, which bounds memory.
        local_files_only: Do not ask the hub.
    """

    layers: Layers | None = None
    value: str | None = None
    ablation: Kind = "uniform"
    count: Count | None = None
    seed: Seed = 0
    calibration: Path | None = None
    adapter: Path | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "cpu"
    batch_size: Count = 16
    local_files_only: bool = False


@dataclass(frozen=True, config=OPTIONS)
class AnalysisOptions(GameOptions):
    """What is analysed, and how; one game for each layer, unless something else is said.

    Attributes:
        joint: One game of the players of all these layers.
        heads_per_player: Players of so many consecutive heads; None for key/value groups.
        players: One game of these groups of heads (layer, head), in place of layers.
        max_size: Dividends of coalitions of at most so many players; None for all, at most 20 players.
        resamples: Bootstrap resamples.
    """

    joint: bool = False
    heads_per_player: Count | None = None
    players: Groups | None = None
    max_size: Count | None = None
    resamples: Count = 1000


Options = TypeVar("Options")


def read_options(kind: type[Options], overrides: Iterable[str]) -> Options:
    """Options from ``key=value``, values in YAML; a ConfigError names a key that is unknown or has a bad value."""
    content, known = apply_overrides({}, overrides), get_type_hints(kind)
    try:
        return TypeAdapter(kind).validate_json(json.dumps(content))
    except ValidationError as error:
        raise explain(error, known) from error


@dataclasses.dataclass(frozen=True, eq=False)
class AnalysedGame:
    """Values of one game, and the dividends that follow.

    Attributes:
        players: Heads (layer, head) of every player.
        values: float64 [samples, M], of :func:`needed_coalitions`.
        options: Those of the analysis.
    """

    players: Groups
    values: Tensor
    options: AnalysisOptions

    @cached_property
    def dividends(self) -> Dividends:
        """Dividends of all coalitions, or of those up to the largest size of the options."""
        n, most = len(self.players), self.options.max_size
        return Dividends.of(self.values[:, : len(small_coalitions(n, most))], n, most)

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of the players, ascending."""
        return layers_of(self.players)

    @property
    def ends(self) -> dict[str, Any]:
        """v(∅) and v(N), as of :func:`ends_of`."""
        return ends_of(self.values[:, [0, -1]])  # in this order in all games

    @property
    def table(self) -> Tensor | None:
        """Values v of all coalitions, float64 [2^n]; None if only those up to a size are known."""
        return self.values.mean(0) if self.options.max_size is None else None

    def frequency(self, position: int, min_size: int = 1) -> float | None:
        """Share of bootstrap resamples in which a coalition has the largest dividend of those of ``min_size`` players.

        None with fewer than :data:`LEAST_SAMPLES` samples, or if there is no other coalition.
        """
        if len(self.values) < LEAST_SAMPLES or int((self.dividends.sizes >= min_size).sum()) == 1:
            return None
        resamples, seed = self.options.resamples, self.options.seed
        shares = self.dividends.selection_frequency(min_size=min_size, resamples=resamples, seed=seed)
        return float(shares[position])

    def as_dict(self) -> dict[str, Any]:
        """Players, values of no player and of all, and dividends with their errors, as plain values."""
        return {
            "players": self.players, "max_size": self.options.max_size, "samples": len(self.values), **self.ends,
            "dividends": self.dividends.value.tolist(),
            "standard_errors": finite(self.dividends.standard_error),
        }  # fmt: skip


@dataclass(frozen=True, config=OPTIONS)
class About:
    """What was analysed (``digest`` tells the model from others), how, and the players of the games."""

    model: str
    digest: dict[str, str]
    data: str
    value: str
    options: AnalysisOptions
    versions: dict[str, str]
    players: Annotated[tuple[Annotated[Groups, Field(min_length=1)], ...], Field(min_length=1)]


@dataclasses.dataclass(frozen=True, eq=False)
class Analysis:
    """What was analysed, the games, and all heads (layer, head) of the model."""

    about: About
    games: tuple[AnalysedGame, ...]
    heads: AbstractSet[Head]

    @property
    def heading(self) -> str:
        """What was analysed, in two lines."""
        about = self.about
        return heading(about.model, about.data, len(self.games[0].values), about.value, about.options)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        about: dict[str, Any] = TypeAdapter(About).dump_python(self.about, mode="json")
        return {**about, "games": [game.as_dict() for game in self.games]}


def ends_of(values: Tensor) -> dict[str, Any]:
    """v(∅) and v(N), means over samples of values [samples, 2], each with its standard error, None with one sample."""
    (empty, full), errors = values.mean(0).tolist(), finite(standard_error(values))
    return {"v_empty": empty, "v_empty_error": errors[0], "v_full": full, "v_full_error": errors[1]}


def heading(model: str, data: str, samples: int, value: str, options: GameOptions) -> str:
    """What was evaluated, in two lines."""
    calibrated = "" if options.calibration is None else ", calibrated"
    adapted = "" if options.adapter is None else f", adapter {options.adapter}"
    return f"{model}{adapted}{calibrated}\n{data} ({shown_questions(samples)}); {value}, ablation {options.ablation}"


def shown_questions(count: int) -> str:
    """A number of questions in words: 1 question, 16 questions."""
    return f"{count} question{'s' * (count != 1)}"


def analyse(
    model: str, data: Path, folder: Path, options: AnalysisOptions, *, progress: bool = False
) -> Analysis:
    """Dividends of the heads of a model, a folder or a name on the hub, on the questions of a file; a game per layer.

    The folder, new or that of the same analysis, keeps the values of every question and coalition, from which it goes
    on, and what was analysed.  ``progress`` shows a bar on standard error.

    Raises:
        ArgumentError: If a file is not valid, an option does not suit the model, a question not the value, or the
            folder holds values of another model or other questions.
        UnsupportedError: If the attention of the model cannot be switched, or its parameters have another dtype.
        OSError: If a file cannot be read or written.
        ImportError: If the extra ``hf`` is not installed.
    """
    loaded, game, value = open_game(model, data, folder, options)
    games = _games(game, options)
    folder.mkdir(parents=True, exist_ok=True)
    about = About(
        model=model,
        digest=model_digest(loaded, ("weights", *ROUNDED)),
        data=str(data),
        value=value,
        options=options,
        versions={"diabat": __version__, "torch": str(torch.__version__),
                  "transformers": extra("transformers").__version__},
        players=tuple(game.groups for game, _ in games),
    )  # fmt: skip
    analysed = tuple(_evaluated(games, options, progress))
    game.store.note(TypeAdapter(About).dump_python(about, mode="json"))
    return Analysis(about, analysed, game.store.heads)


def open_game(model: str, data: Path, folder: Path, options: GameOptions) -> tuple[Any, HeadCoalitions, str]:
    """The model, its game on the questions of a file with the values in a folder, and the name of the value.

    Errors are those of :func:`analyse`.
    """
    # Whatever can be refused without a model.
    if folder.exists() and not folder.is_dir():
        raise ArgumentError("output", "a folder", f"the file '{folder}'")
    questions = read_questions(data, options.count, options.seed)
    if options.calibration is not None:
        stored_calibration(options.calibration)
    if options.adapter is not None:
        check_adapter(options.adapter)
    where = {"dtype": options.dtype, "device": options.device}
    loaded, tokenizer = load_decoder(model, **where, local_files_only=options.local_files_only)
    if options.adapter is not None:
        loaded = load_adapter(loaded, options.adapter)
    if options.calibration is not None:
        load_gac(loaded, options.calibration)
    first = next(iter(questions.values()))  # which says what the questions are meant for
    by_choices = ("perplexity", "option_log_likelihood", "log_odds")
    value = options.value or by_choices[min(len(first.get("choices", ())), 2)]
    try:
        game = HeadCoalitions(
            loaded, questions.values(), value=value, tokenizer=tokenizer, ablation=options.ablation,
            batch_size=options.batch_size, dtype=DTYPES[options.dtype], store=folder / FILE,
        )  # fmt: skip
    except ArgumentError as error:  # a sample is named by its file and line
        place = re.fullmatch(r"samples\[(\d+)\](.*)", error.argument or "", re.DOTALL)
        if place is None:
            raise
        raise ArgumentError(f"{list(questions)[int(place[1])]}{place[2]}", error.reason) from error
    return loaded, game, value


def read_analysis(path: Path) -> Analysis:
    """Read an analysis from its folder or its file; ArgumentError if there is none, or it is not ours."""
    file = path / FILE if path.is_dir() else path
    if not file.exists():
        raise ArgumentError("analysis", "a finished analysis", f"'{path}' without {FILE}")
    try:
        store = ValueStore.read(file, follow=file == path)
        if not store.analysis:
            raise ArgumentError("analysis", "expected a finished analysis, got values alone")
        about = TypeAdapter(About).validate_json(json.dumps(store.analysis))
        games = tuple(_stored(store, players, about.options) for players in about.players)
    except ValidationError as error:
        first = error.errors()[0]
        got = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise ArgumentError("analysis", f"one of heads in {file}", got) from None
    except ArgumentError as error:
        reason = error.reason.rstrip(".")
        where = "" if str(file) in reason else f" in {file}"
        raise ArgumentError("analysis", f"{reason}{where}.") from None
    return Analysis(about, games, store.heads)


def _stored(store: ValueStore, players: Groups, options: AnalysisOptions) -> AnalysedGame:
    """A game whose values are all there."""
    if {head for group in players for head in group} - store.heads:
        raise ArgumentError("players", "expected heads of the model, got others")
    columns = store.columns(players, needed_coalitions(len(players), options.max_size))
    values = store.values[:, columns]
    if np.isnan(values).any() or not len(values):
        raise ArgumentError("values", "expected values of all coalitions, got fewer")
    return AnalysedGame(players, torch.from_numpy(values), options)


def needed_coalitions(n: int, max_size: int | None) -> Tensor:
    """Coalitions whose values are analysed, bool [M, n]: the first is empty, and the last one that of all players."""
    masks = small_coalitions(n, max_size)
    return torch.cat((masks, torch.ones(1, n, dtype=torch.bool))) if max_size and max_size < n else masks


def _games(game: HeadCoalitions, options: AnalysisOptions) -> list[tuple[HeadCoalitions, Tensor]]:
    """The games that are asked for, with the questions and the store of one, and their coalitions."""
    size = options.heads_per_player
    games = [game.of(options.layers, players=options.players, heads_per_player=size)]
    if options.players is None and not options.joint:
        games = [game.of(layer, heads_per_player=size) for layer in options.layers or game.layers]
    return [(one, needed_coalitions(one.num_players, options.max_size)) for one in games]


def _evaluated(
    games: list[tuple[HeadCoalitions, Tensor]], options: AnalysisOptions, progress: bool
) -> Iterator[AnalysedGame]:
    """Evaluate one game after the other, with one bar; a deep layer runs fewer blocks."""
    work = [len(masks) * (game.layers[-1] + 1 - layers_of(game.groups)[0]) for game, masks in games]
    with new_bar(percent=True, window=WINDOW, shown=progress) as bar:
        task, before = bar.add_task("", total=sum(work)), 0
        for (game, masks), planned in zip(games, work, strict=True):
            own = layers_of(game.groups)
            bar.update(task, description=f"layer {own[0]}" if len(own) == 1 else f"{len(own)} layers")
            game.progress = lambda done, total, start=before, planned=planned: bar.update(
                task, completed=start + planned * done / total
            )
            yield AnalysedGame(game.groups, game.sample_values(masks), options)
            before += planned
            bar.update(task, completed=before)
