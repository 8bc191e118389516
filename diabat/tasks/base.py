"""A task: training and validation sequences, and the number that is reported for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol, Self

import torch
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.tasks.text import TextForm

Metric = Literal["perplexity", "accuracy"]

IGNORED = -100
"""Target of a position that is ignored by loss and metric (torch's convention)."""


class TaskOptions(Protocol):
    """What the options of every task have."""

    @property
    def name(self) -> str:
        """Name of the task."""

    @property
    def window(self) -> int:
        """Largest length T of an example."""


class Examples(Protocol):
    """Interface of training or validation data."""

    def __len__(self) -> int:
        """Return the number of examples."""

    def to(self, device: torch.device) -> Self:
        """Return the same examples on a device."""

    def batch(self, chosen: Tensor) -> tuple[Any, Tensor]:
        """Return what the model is given for the chosen examples (int64 [B]), and their targets."""

    def counted(self, chosen: Tensor) -> int:
        """Return the number of targets of the chosen examples that count."""

    def tensors(self) -> tuple[Tensor, ...]:
        """Return everything that makes up the data, for a checksum."""

    @property
    def lengths(self) -> Tensor | None:
        """Positions of each example, int64 [N] on the CPU; None if all are equally long."""


@dataclass(frozen=True, eq=False)
class Split:
    """Sequences with one target per position.

    Args:
        inputs: Symbols, int64 [N, T].
        targets: Classes, int64 [N, T]; :data:`IGNORED` where a position does not count.

    Raises:
        ValueError: If the tensors are not int64 of one shape [N, T] with N >= 1, or if every target is
            ignored.
    """

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        for name, value in (("inputs", self.inputs), ("targets", self.targets)):
            if value.dtype != torch.int64 or value.ndim != 2 or len(value) == 0:
                raise ArgumentError(
                    name, f"expected int64 [N, T] with N >= 1, got {value.dtype} {list(value.shape)}."
                )
        if self.inputs.shape != self.targets.shape:
            raise ArgumentError(
                "targets",
                f"expected the shape of inputs {list(self.inputs.shape)}, got {list(self.targets.shape)}.",
            )
        if not bool((self.targets != IGNORED).any()):
            raise ArgumentError("targets", "expected at least one target that counts, got only ignored ones.")

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device) -> Split:
        """Return the same split on a device."""
        return Split(self.inputs.to(device), self.targets.to(device))

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets [B, T] of the chosen sequences."""
        return self.inputs[chosen], self.targets[chosen]

    def counted(self, chosen: Tensor) -> int:
        """Return the number of targets of the chosen sequences that are not ignored."""
        return int((self.targets[chosen] != IGNORED).sum())

    def tensors(self) -> tuple[Tensor, ...]:
        """Return inputs and targets."""
        return self.inputs, self.targets

    @property
    def lengths(self) -> None:
        """None: all sequences are equally long."""
        return None


@dataclass(frozen=True, eq=False)
class Task:
    """What a model is trained on.

    Args:
        name: Name in configurations and reports.
        window: Length T of every sequence.
        vocab_size: Number of input symbols; inputs lie in 0 .. vocab_size - 1.
        num_classes: Number of output classes; targets lie in 0 .. num_classes - 1 or are ignored.
        metric: ``perplexity`` = exp(mean cross-entropy in nats), lower is better; ``accuracy`` = share of
            counted positions whose most probable class is the target, in 0 .. 1, higher is better.
        train: Training sequences.
        validation: Validation sequences.
        text: How texts become symbols; None if the symbols have no characters.
    """

    name: str
    window: int
    vocab_size: int
    num_classes: int
    metric: Metric
    train: Split
    validation: Split
    text: TextForm | None = None

    def __post_init__(self) -> None:
        for name, split in (("train", self.train), ("validation", self.validation)):
            if split.inputs.shape[1] != self.window:
                raise ArgumentError(
                    name, f"expected sequences of window = {self.window}, got {split.inputs.shape[1]}."
                )

    @property
    def sets(self) -> Mapping[str, Split]:
        """The sets by name; sequences have none for testing."""
        return {"train": self.train, "validation": self.validation}

    @property
    def classes(self) -> None:
        """None: the classes of positions have no names, and no scores of their own are reported."""
        return None

    @property
    def dropped(self) -> Mapping[str, int]:
        """Examples that were left out, by set: none."""
        return MappingProxyType({})

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger metric is a better one."""
        return self.metric == "accuracy"

    def metric_value(self, loss: float, accuracy: float) -> float:
        """Return the task's metric from the mean cross-entropy in nats and the accuracy in 0 .. 1."""
        if self.metric == "accuracy":
            return accuracy
        return math.exp(loss) if loss < 700 else math.inf
