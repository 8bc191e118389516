"""Options of ``diabat heads analyse`` and ``diabat heads calibrate``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from diabat.attention.heads.decoder import Groups
from diabat.checks import ArgumentError
from diabat.config.errors import explain
from diabat.config.loading import apply_overrides

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(ge=0, le=1)]
Layers = tuple[Annotated[int, Field(ge=0)], ...]


@dataclass(frozen=True, config=_STRICT)
class AnalysisOptions:
    """What is analysed, and how.

    Attributes:
        layers: One game for each of these layers; None for all.
        joint: One game of the players of all these layers.
        heads_per_player: Players of so many consecutive heads; None for key/value groups.
        players: One game of these groups of heads (layer, head), in place of layers.
        value: Name of the value; None for ``log_odds`` with choices, ``f1`` with an answer alone, else ``perplexity``.
        ablation: What an absent head gives: ``mean``, ``scaled`` or ``zero``.
        epsilon: Factor of the logits with ``scaled``.
        max_size: Dividends of coalitions of at most so many players; None for all, at most 20 players.
        count: Questions drawn from the file; None for all.
        seed: Of what is drawn, and of the bootstrap resamples.
        resamples: Bootstrap resamples.
        calibration: Analyse the model with this ``gac.json``, a file or its folder.
        adapter: Analyse the model with this LoRA adapter of peft.
        dtype: Of the model's parameters; half precision moves dividends.
        device: As torch names it.
        batch_size: Coalitions in one forward pass, which bounds memory.
        local_files_only: Do not ask the hub.
    """

    layers: Layers | None = None
    joint: bool = False
    heads_per_player: Count | None = None
    players: Groups | None = None
    value: str | None = None
    ablation: Literal["mean", "scaled", "zero"] = "mean"
    epsilon: Annotated[float, Field(gt=0)] = 1e-5
    max_size: Count | None = None
    count: Count | None = None
    seed: Seed = 0
    resamples: Count = 1000
    calibration: Path | None = None
    adapter: Path | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "cpu"
    batch_size: Count = 16
    local_files_only: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "joint", "heads_per_player"):
            if self.players is not None and getattr(self, name):
                raise ArgumentError(
                    name, f"expected none with players, which say it, got {getattr(self, name)}."
                )


@dataclass(frozen=True, config=_STRICT)
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


Options = TypeVar("Options", AnalysisOptions, CalibrationOptions)


def read_options(kind: type[Options], overrides: Iterable[str]) -> Options:
    """Options from ``key=value``, values in YAML.

    Raises:
        ConfigError: If a key is unknown or a value is not valid; one sentence that names the key.
    """
    given: dict[str, Any] = apply_overrides({}, overrides)
    try:
        return TypeAdapter(kind).validate_json(json.dumps(given))
    except ValidationError as error:
        raise explain(error, [field.name for field in fields(kind)]) from error
