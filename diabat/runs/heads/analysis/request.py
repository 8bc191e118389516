"""What an analysis of heads is asked for: options, data, model and calibration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from pydantic import BaseModel

from diabat.attention.heads.attention import ABSENT, Absent
from diabat.attention.heads.calibration import Calibration
from diabat.attention.heads.players import Groups
from diabat.checks import ArgumentError, check_choice, check_count, check_flag
from diabat.huggingface.loading import DTYPES
from diabat.runs.heads.questions.sets import QuestionSet
from diabat.studies.heads.measure import STRICT


@dataclass(frozen=True)
class Options:
    """What decides the result of an analysis besides model and data.

    Attributes:
        layers: Analyse these; None for all.
        players: One game of these groups of heads (layer, head), instead of ``layers``.
        joint: The players of all layers form one game.
        value: Name of the value; None for that of the data.
        absent: What an absent head gives: ``uniform``, ``scaled`` or ``dropped``.
        epsilon: Factor of the logits with ``scaled``.
        heads_per_player: Players of so many consecutive heads; None for key/value groups.
        order: Dividends of coalitions of at most so many players; None for all, at most 20 players.
        dtype: Of the model's parameters.
        resamples: Bootstrap resamples.
        seed: Of the resamples.

    Raises:
        ArgumentError: If one is out of range.
    """

    layers: Sequence[int] | None = None
    players: Groups | None = None
    joint: bool = False
    value: str | None = None
    absent: Absent = "uniform"
    epsilon: float = 1e-5
    heads_per_player: int | None = None
    order: int | None = None
    dtype: str = "float32"
    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_flag("joint", self.joint)
        check_choice("absent", self.absent, ABSENT)
        check_choice("dtype", self.dtype, DTYPES)
        check_count("order", self.order, optional=True)
        check_count("resamples", self.resamples)
        check_count("seed", self.seed, least=0, most=2**63 - 1)
        others = {"layers": self.layers, "heads_per_player": self.heads_per_player, "joint": self.joint}
        for name, given in others.items():
            if self.players is not None and given not in (None, False):
                raise ArgumentError(name, f"cannot be combined with players, got {given}.")


class Data(BaseModel):
    """One set of questions: its name, where it comes from, and a checksum of its samples."""

    model_config = STRICT

    name: str
    source: dict[str, Any]
    samples: int
    sha256: str

    @property
    def identity(self) -> tuple[str, int, str]:
        """What two sets of the same questions have in common, wherever the file is."""
        return self.name, self.samples, self.sha256


class Request(BaseModel):
    """What is analysed: name of the model, data, options, and the calibration that is enabled."""

    model_config = STRICT

    model: str
    data: tuple[Data, ...]
    options: dict[str, Any]
    calibration: dict[str, Any] | None

    @classmethod
    def of(
        cls, name: str, sets: Sequence[QuestionSet], options: Options, calibration: Calibration | None
    ) -> Request:
        """Describe an analysis; the value is that of the data unless the options name one.

        Raises:
            ArgumentError: If there is no set, or the sets have different values and none is given.
        """
        value = options.value or common_value(sets)
        data = tuple(
            Data(name=s.name, source=s.source, samples=len(s.samples), sha256=_digest(s)) for s in sets
        )
        # As JSON holds it, so that what is read back is equal.
        plain = json.loads(json.dumps({**asdict(options), "value": value}))
        return cls(
            model=name,
            data=data,
            options=plain,
            calibration=None if calibration is None else calibration.as_dict(),
        )


def common_value(sets: Sequence[QuestionSet]) -> str:
    """The value that all sets have.

    Raises:
        ArgumentError: If there is no set, or they have different ones.
    """
    if not sets:
        raise ArgumentError("sets", "expected at least one set of questions, got none.")
    values = {one.value: one.name for one in sets}
    if len(values) > 1:
        got = ", ".join(f"{value} ({name})" for value, name in values.items())
        raise ArgumentError("value", f"expected one for sets with different values, got none: {got}.")
    return next(iter(values))


def _digest(questions: QuestionSet) -> str:
    content = json.dumps(list(questions.samples), sort_keys=True, default=_plain, ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    raise ArgumentError(
        "sets", f"expected samples of plain values and tensors, got a {type(value).__name__}."
    )
