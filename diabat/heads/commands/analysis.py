"""Dividends of the heads of a decoder, layer by layer: computed with the values in a store, and kept as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

import diabat
from diabat.attention.games.tables import MAX_PLAYERS
from diabat.checks import ArgumentError, check_count
from diabat.config.errors import explain
from diabat.config.loading import apply_overrides
from diabat.config.sections import STRICT
from diabat.extras import extra
from diabat.files import parse_json, read_file, replace_file, to_json
from diabat.heads.calibration.file import load_gac, stored_calibration
from diabat.heads.commands.questions import read_questions
from diabat.heads.commands.report import shown_questions
from diabat.heads.games.ablation import Kind
from diabat.heads.games.coalitions import HeadCoalitions
from diabat.heads.games.decoder import Groups
from diabat.heads.games.summary import DividendSummary, summary_coalitions
from diabat.huggingface.loading import DTYPES, check_adapter, load_adapter, load_decoder
from diabat.huggingface.model_digest import ROUNDED, model_digest
from diabat.progress import new_bar

OPTIONS = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(ge=0, le=1)]
Layers = tuple[Annotated[int, Field(ge=0)], ...]


@dataclass(frozen=True, config=OPTIONS)
class GameOptions:
    """The model and the questions of games, and how coalitions are evaluated.

    Attributes:
        layers: Those of the players; None for all.
        value: Name of the value; None for ``log_odds`` with choices, ``f1`` with an answer alone, else ``perplexity``.
        ablation: What an absent head gives: ``uniform``, ``scaled``, ``zero``, ``mean`` or ``corrupted``.
        epsilon: Factor of the logits with ``scaled``.
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
    epsilon: Annotated[float, Field(gt=0)] = 1e-5
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

    def __post_init__(self) -> None:
        for name in ("layers", "joint", "heads_per_player"):
            if self.players is not None and getattr(self, name):
                raise ArgumentError(
                    name, f"expected none with players, which say it, got {getattr(self, name)}."
                )


Options = TypeVar("Options")


def read_options(kind: type[Options], overrides: Iterable[str]) -> Options:
    """Options from ``key=value``, values in YAML; a ConfigError names a key that is unknown or has a bad value."""
    given: dict[str, Any] = apply_overrides({}, overrides)
    try:
        return TypeAdapter(kind).validate_json(json.dumps(given))
    except ValidationError as error:
        raise explain(error, get_type_hints(kind)) from error


FILE = "analysis.json"
STORE = "values.safetensors"
_MAX_BYTES = 1 << 30
# Seconds over which the speed is averaged: a batch of coalitions of a large model takes many.
WINDOW = 600.0


class Analysis(BaseModel):
    """Content of ``analysis.json``: what was analysed (``digest`` tells the model from others), how, and the games."""

    model_config = STRICT

    format: Literal["diabat-heads"] = "diabat-heads"
    version: Literal[1] = 1
    model: str
    digest: dict[str, str]
    data: str
    value: str
    options: AnalysisOptions
    versions: dict[str, str]
    games: tuple[DividendSummary, ...]

    @property
    def heading(self) -> str:
        """What was analysed, in two lines."""
        return heading(self.model, self.data, self.games[0].samples, self.value, self.options)


def heading(model: str, data: str, samples: int, value: str, options: GameOptions) -> str:
    """What was evaluated, in two lines."""
    calibrated = "" if options.calibration is None else ", calibrated"
    adapted = "" if options.adapter is None else f", adapter {options.adapter}"
    count = shown_questions(samples)
    return f"{model}{adapted}{calibrated}\n{data} ({count}); {value}, ablation {options.ablation}"


def analyse(
    model: str, data: Path, folder: Path, options: AnalysisOptions, *, progress: bool = False
) -> Analysis:
    """Dividends of the heads of a model, a folder or a name on the hub, on the questions of a file; a game per layer.

    The folder, new or that of the same analysis, keeps the values of every question and coalition, from which it goes
    on, and the result.  ``progress`` shows a bar on standard error.

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
    analysis = Analysis(
        model=model,
        digest=model_digest(loaded, ("weights", *ROUNDED)),
        data=str(data),
        value=value,
        options=options,
        versions={"diabat": diabat.__version__, "torch": str(torch.__version__),
                  "transformers": extra("transformers").__version__},
        games=tuple(_summaries(games, options, progress)),
    )  # fmt: skip
    replace_file(folder / FILE, to_json(analysis.model_dump(mode="json")))
    return analysis


def open_game(model: str, data: Path, folder: Path, options: GameOptions) -> tuple[Any, HeadCoalitions, str]:
    """The model, its game on the questions of a file with the values in a folder, and the name of the value.

    Errors are those of :func:`analyse`.
    """
    # Whatever can be refused without a model.
    if folder.exists() and not folder.is_dir():
        raise ArgumentError("output", f"expected a folder, got the file '{folder}'.")
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
    value = options.value or (
        "log_odds" if "choices" in first else "f1" if "answer" in first else "perplexity"
    )
    settings: dict[str, Any] = {
        name: getattr(options, name) for name in ("ablation", "epsilon", "batch_size")
    }
    settings |= {"value": value, "dtype": DTYPES[options.dtype], "store": folder / STORE}
    try:
        return loaded, HeadCoalitions(loaded, questions.values(), tokenizer=tokenizer, **settings), value
    except ArgumentError as error:  # a sample is named by its file and line
        found = re.fullmatch(r"samples\[(\d+)\](.*)", error.argument or "", re.DOTALL)
        if found is None:
            raise
        raise ArgumentError(f"{list(questions)[int(found[1])]}{found[2]}", error.reason) from error


def read_analysis(path: Path) -> Analysis:
    """Read the result of an analysis from its folder or its file; ArgumentError if there is none, or it is not ours."""
    file = path / FILE if path.is_dir() else path
    if not file.exists():
        raise ArgumentError("analysis", f"expected a finished analysis, got '{path}' without {FILE}.")
    content = read_file(file, _MAX_BYTES, follow=file == path)
    try:
        parse_json(content)  # stricter about keys and numbers than the next
        return Analysis.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        got = f"got {'.'.join(map(str, first['loc']))}: {first['msg']}."
        raise ArgumentError("analysis", f"expected one of heads in {file}, {got}") from None
    except ValueError as error:  # also what is no JSON or no text
        raise ArgumentError("analysis", f"expected JSON in {file}, got {error}.") from None


def _games(game: HeadCoalitions, options: AnalysisOptions) -> list[HeadCoalitions]:
    """The games that are asked for, with the questions and the store of one."""
    size = options.heads_per_player
    if options.players is not None:
        games = [game.of(players=options.players)]
    else:
        games = [game.of(options.layers, heads_per_player=size)]  # also refuses a layer that is given twice
        if not options.joint:
            games = [game.of(layer, heads_per_player=size) for layer in options.layers or game.layers]
    for one in games:
        most = one.num_players
        check_count("max_size", options.max_size, most=most, optional=True)
        if options.max_size is None and most > MAX_PLAYERS:
            raise ArgumentError(
                "max_size", f"expected 3, for example, for a game of {most} players, got none."
            )
    return games


def _summaries(
    games: list[HeadCoalitions], options: AnalysisOptions, progress: bool
) -> Iterator[DividendSummary]:
    """Evaluate one game after the other, with one bar; a deep layer runs fewer blocks."""
    settings: dict[str, Any] = {name: getattr(options, name) for name in ("max_size", "resamples", "seed")}
    layers = [sorted({layer for group in game.groups for layer, _ in group}) for game in games]
    work = [
        len(summary_coalitions(game.num_players, options.max_size)) * (max(game.layers) + 1 - own[0])
        for game, own in zip(games, layers, strict=True)
    ]
    with new_bar(percent=True, window=WINDOW, shown=progress) as bar:
        task, before = bar.add_task("", total=sum(work)), 0
        for game, own, planned in zip(games, layers, work, strict=True):
            bar.update(task, description=f"layer {own[0]}" if len(own) == 1 else f"{len(own)} layers")
            game.progress = lambda done, total, start=before, planned=planned: bar.update(
                task, completed=start + planned * done / total
            )
            yield DividendSummary.of(game, **settings)
            before += planned
            bar.update(task, completed=before)
