"""Configuration of ``diabat heads train``: model, data, adapters, losses on heads, and the Trainer of transformers."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from diabat.checks import ArgumentError
from diabat.config.errors import ConfigError, explain
from diabat.config.loading import apply_overrides
from diabat.config.sections import STRICT
from diabat.config.yaml_files import dump_yaml, read_mapping
from diabat.huggingface.game.config import GameOptions

Count = Annotated[int, Field(ge=1)]


class GameData(BaseModel):
    """The section ``data``: texts that are packed into sequences of equal length.

    Attributes:
        file: A text file, one document per line, or ``.jsonl`` with the key ``column``.
        dataset: The name of a data set on the Hugging Face hub, which is streamed; in place of ``file``.
        split: Its split.
        column: Key or column of the text.
        length: Tokens of a sequence; documents are joined with the end-of-sequence token between them.
    """

    model_config = STRICT

    file: Path | None = None
    dataset: str | None = None
    split: str = "train"
    column: str = "text"
    length: Annotated[int, Field(ge=2)] = 1024

    @model_validator(mode="after")
    def _one_source(self) -> GameData:
        if (self.file is None) == (self.dataset is None):
            raise ArgumentError("file", "expected either file or dataset, got both or none.")
        return self


class GameLora(BaseModel):
    """The section ``lora``: adapters of peft.

    Attributes:
        r: Rank.
        alpha: Scale; the mean over layers if there is a peak.
        dropout: Dropout in front of the adapters.
        targets: Names of the modules.
        layers: Layers with adapters, null for all.
        peak: Layer of the largest alpha of a triangular pattern, null for the same alpha everywhere.
        range: Difference between the largest and the least alpha of the pattern.
    """

    model_config = STRICT

    r: Count = 16
    alpha: Annotated[float, Field(gt=0)] = 32
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("q_proj", "k_proj", "v_proj", "o_proj")
    layers: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    peak: Annotated[int, Field(ge=0)] | None = None
    range: Annotated[float, Field(gt=0)] = 50


class GameConfig(BaseModel):
    """A fine-tuning with losses on heads.

    Attributes:
        model: A folder, or a name on the hub.
        dtype: Type of the frozen weights.
        data: Texts.
        lora: Adapters.
        game: Losses on heads.
        trainer: Arguments of ``TrainingArguments`` of transformers by their names there, except ``output_dir``.
        output: Folder of checkpoints and of the adapter.
    """

    model_config = STRICT

    model: str
    dtype: Literal["float32", "bfloat16"] = "float32"
    data: GameData
    lora: GameLora = GameLora()
    game: GameOptions = GameOptions()
    trainer: dict[str, Any] = {}
    output: Path

    @model_validator(mode="after")
    def _no_folder_twice(self) -> GameConfig:
        if "output_dir" in self.trainer:
            raise ArgumentError("trainer.output_dir", "expected the folder as output, got it here.")
        return self


def shipped_trainings() -> dict[str, Path]:
    """Configurations of ``diabat heads train`` that come with diabat, by name."""
    folder = Path(str(files("diabat") / "configs" / "heads"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load_game_config(name: str | Path, overrides: Iterable[str] = ()) -> GameConfig:
    """Read, override and validate a configuration.

    Args:
        name: YAML file, or the name of a shipped configuration.
        overrides: ``dotted.key=value``, values in YAML.

    Raises:
        ConfigError: If the file or an override is not valid; one sentence that names the key.
    """
    path, shipped = Path(name), shipped_trainings()
    if not path.exists():
        stem = str(name).removesuffix(".yaml")
        if stem not in shipped:
            near = difflib.get_close_matches(stem, shipped, n=1)
            hint = f"Did you mean '{near[0]}'?" if near else f"Shipped are {', '.join(shipped)}."
            raise ConfigError(
                f"'{name}'", f"no such file, and no shipped configuration has this name. {hint}"
            )
        path = shipped[stem]
    document = apply_overrides(read_mapping(path), tuple(overrides))
    try:
        return GameConfig.model_validate_json(json.dumps(document))
    except ValidationError as error:
        raise explain(error, _keys()) from error


def game_config_yaml(config: GameConfig) -> str:
    """The resolved configuration as YAML; loading it gives an equal one."""
    return dump_yaml(config.model_dump(mode="json"))


def _keys() -> list[str]:
    sections: dict[str, Iterable[str]] = {
        "data": GameData.model_fields,
        "lora": GameLora.model_fields,
        "game": [field.name for field in dataclasses.fields(GameOptions)],
    }
    return [*GameConfig.model_fields, *(f"{s}.{key}" for s, keys in sections.items() for key in keys)]
