"""A task: sets of sequences, the options that build it, and the number that is reported."""

from __future__ import annotations

import hashlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from diabat.checks import ArgumentError, ArgumentTypeError

Metric = Literal["perplexity", "accuracy"]

IGNORED = -100
"""Target of a position that is ignored by loss and metric (torch's convention)."""

PADDING, SEPARATOR, UNKNOWN = 0, 1, 2
"""Symbols of sentences that are no words; words begin behind them."""

Answers = Literal["positions", "sequence"]
"""What has a target and logits: every position, or the whole sequence."""
_ANSWERS = {"positions": "every position", "sequence": "a whole sequence"}


@dataclass(frozen=True, eq=False)
class Split:
    """Sequences with one target per position, or one for each sequence; ValueError for other forms, or no target.

    Args:
        inputs: Symbols, int64 [N, T], N >= 1.
        targets: Classes, int64 [N, T], or [N, 1] of whole sequences; :data:`IGNORED` where one does not count.
    """

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        for name, value in {"inputs": self.inputs, "targets": self.targets}.items():
            if value.dtype != torch.int64 or value.ndim != 2 or len(value) == 0:
                raise ArgumentError(name, "int64 [N, T] with N >= 1", f"{value.dtype} {list(value.shape)}")
        if self.targets.shape not in (self.inputs.shape, (len(self.inputs), 1)):
            expected = f"the shape of inputs {list(self.inputs.shape)}"
            raise ArgumentError("targets", expected, list(self.targets.shape))
        if not bool((self.targets != IGNORED).any()):
            raise ArgumentError("targets", "at least one target that counts", "only ignored ones")

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets [B, T] of the chosen sequences, int64 [B]."""
        return self.inputs[chosen], self.targets[chosen]

    def counted(self, chosen: Tensor) -> int:
        """Return the number of targets of the chosen sequences that are not ignored."""
        return int((self.targets[chosen] != IGNORED).sum())

    def parts(self, masks: Mapping[str, Tensor]) -> dict[str, Split]:
        """Return the same sequences with the targets of each mask only, bool as they are; none for an empty mask."""
        named = {name: self.targets.where(mask, IGNORED) for name, mask in masks.items() if bool(mask.any())}
        return {name: Split(self.inputs, targets) for name, targets in named.items()}

    def to(self, device: torch.device) -> Split:
        """Return the same sequences on a device."""
        return Split(self.inputs.to(device), self.targets.to(device))

    def fingerprint(self) -> str:
        """Hexadecimal sha256 of the tensors, so that a run is not resumed on other data."""
        content = hashlib.sha256()
        for tensor in (self.inputs, self.targets):
            content.update(repr(tuple(tensor.shape)).encode())
            content.update(tensor.cpu().contiguous().numpy().tobytes())
        return content.hexdigest()


@dataclass(frozen=True)
class TextForm:
    """How a text becomes symbols, and what a model predicts at each of them.

    Attributes:
        characters: Character of each input symbol, in the order of the symbols.
        classes: Name of each class.
        targets: Maps symbols, int64 [1, n], to the class of each position, int64 [1, n]; :data:`IGNORED` where there
            is none, or where it is not known.
    """

    characters: str
    classes: tuple[str, ...]
    targets: Callable[[Tensor], Tensor]

    def encode(self, text: str) -> Tensor:
        """Symbols of a text, int64 [n]; ValueError if it is empty, or has a character that is no symbol."""
        if not isinstance(text, str):
            raise ArgumentTypeError("text", "a string", type(text).__name__)
        if not text:
            raise ArgumentError("text", "at least one character", "an empty text")
        index = {character: symbol for symbol, character in enumerate(self.characters)}
        for position, character in enumerate(text):
            if character not in index:
                got = f"{character!r} at position {position}"
                raise ArgumentError("text", f"the characters {self.characters!r} of the task", got)
        return torch.tensor([index[character] for character in text])


@dataclass(frozen=True)
class SentenceForm:
    """How sentences become symbols: words in lower case and marks of punctuation, [UNK] for one that is not known.

    Attributes:
        words: Words of the symbols UNKNOWN + 1, ...
        classes: Name of each class.
        window: Largest number of tokens, the separator between two sentences included.
        sentences: Sentences of a sequence, 1 or 2.
    """

    words: tuple[str, ...]
    classes: tuple[str, ...]
    window: int
    sentences: int

    @cached_property
    def _symbols(self) -> dict[str, int]:
        return {word: symbol for symbol, word in enumerate(self.words, UNKNOWN + 1)}

    def encode(self, *sentences: str, truncate: bool = False) -> Tensor:
        """Symbols of a sequence, int64 [n]: the words of one sentence, or of two with a separator between them.

        ``truncate`` drops the last words of the longer one until they fit.  ValueError if there are more or fewer
        sentences, one has no word, or they are too long.
        """
        if len(sentences) != self.sentences:
            raise ArgumentError("sentences", f"{self.sentences} sentences", len(sentences))
        parts = [words_of(sentence) for sentence in sentences]
        for sentence, words in zip(sentences, parts, strict=True):
            if not words:
                raise ArgumentError("sentences", "at least one word in each", f"{sentence!r}")
        while truncate and sum(map(len, parts)) + len(parts) - 1 > self.window:
            max(parts, key=len).pop()
        of_parts = [[self._symbols.get(word, UNKNOWN) for word in words] for words in parts]
        symbols = [symbol for words in of_parts for symbol in (SEPARATOR, *words)][1:]
        if len(symbols) > self.window:
            raise ArgumentError("sentences", f"at most {self.window} tokens", len(symbols))
        return torch.tensor(symbols)

    def tokens(self, symbols: Tensor) -> list[str]:
        """The text of each symbol."""
        return [("[PAD]", "[SEP]", "[UNK]", *self.words)[symbol] for symbol in symbols.tolist()]


def words_of(sentence: str) -> list[str]:
    """Words in lower case, and marks of punctuation."""
    return re.findall(r"\w+(?:['\u2019-]\w+)*|[^\w\s]", sentence.lower())


@dataclass(frozen=True, eq=False)
class Task:
    """What a model is trained on.

    Attributes:
        name: Name in configurations and reports.
        window: Largest length T of a sequence.
        vocab_size: Number of input symbols; inputs lie in 0 .. vocab_size - 1.
        num_classes: Number of output classes; targets lie in 0 .. num_classes - 1 or are ignored.
        metric: ``perplexity`` = exp(mean cross-entropy in nats), lower is better; ``accuracy`` = share of counted
            targets that are the most probable class, in 0 .. 1, higher is better.
        train: Training sequences.
        validation: Validation sequences.
        test: Test sequences, or None.
        text: How texts become symbols; None if the symbols have no characters.
        sentences: How sentences become symbols; None if the sequences are no sentences.
        parts: Splits a set into named parts whose metric is reported as well; None if there are none.
    """

    name: str
    window: int
    vocab_size: int
    num_classes: int
    metric: Metric
    train: Split
    validation: Split
    test: Split | None = None
    text: TextForm | None = None
    sentences: SentenceForm | None = None
    parts: Callable[[Split], Mapping[str, Split]] | None = None

    @property
    def sets(self) -> Mapping[str, Split]:
        """The sets by name."""
        sets = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: split for name, split in sets.items() if split is not None}

    def metric_value(self, loss: float, accuracy: float) -> float:
        """Return the task's metric from the mean cross-entropy in nats and the accuracy in 0 .. 1."""
        return accuracy if self.metric == "accuracy" else math.exp(min(loss, 700.0))  # float64 ends at e^709


class TaskOptions(ABC):
    """What the options of every task have: a frozen dataclass whose field ``name`` is the name of the task."""

    answers: ClassVar[Answers] = "positions"
    """What has a target."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the task."""

    @property
    @abstractmethod
    def window(self) -> int | None:
        """Largest length T of a sequence; None for that of the data."""

    def check_model(self, model: Any) -> None:
        """Refuse options of a model that cannot learn the task by a ValueError; by default one with other answers."""
        if model.answers != self.answers:
            expected = f"a model with one answer for {_ANSWERS[self.answers]}, as the task '{self.name}' asks"
            raise ArgumentError("model.name", expected, f"'{model.name}'")

    def as_built(self, task: Task) -> Self:
        """The options that a run stores, which build this task again whatever its data become."""
        return self

    @abstractmethod
    def build(self) -> Task:
        """Build the task, reading its data: DataError if that fails, ValueError if the options do not allow it."""
