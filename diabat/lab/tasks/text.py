"""Language modelling on the characters of a text: one of the user, or Tiny Shakespeare."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, Self

import torch
from torch import Tensor

from diabat.checks import ArgumentError, check_number, keep_count
from diabat.compute.memory import require_memory
from diabat.lab.tasks.base import IGNORED, Split, Task, TaskOptions, TextForm
from diabat.lab.tasks.data import DataError, fetch, read_data, text_of

TRAIN_FRACTION = 0.9
"""Share of a text that is trained on, from its beginning, without a file for validation."""


@dataclass(frozen=True)
class TextOptions(TaskOptions):
    """Options of a text of the user.

    Attributes:
        name: Name of the task.
        window: Context length T >= 1.
        characters: Length of the part of the text that is used, from its beginning; None uses all of it.
        data: The text, a file in UTF-8.
        validation: A second text, all of which is for validation; all of ``data`` is then trained on.
        train_fraction: Share of ``data``, from its beginning, that is trained on; the rest is for validation.  None
            takes 0.9, and is required with a second text.
        symbols: The characters that may occur, symbol by symbol; None takes those of ``data`` in the order of their
            code points.  A run stores its own.
    """

    name: Literal["text"] = field(default="text", kw_only=True)
    window: int = 64
    characters: int | None = None
    data: str | None = None
    validation: str | None = None
    train_fraction: float | None = None
    symbols: str | None = None

    def __post_init__(self) -> None:
        keep_count(self, "window")
        keep_count(self, "characters", optional=True)
        check_number("train_fraction", self.train_fraction, "(0, 1)", optional=True)
        if self.validation is not None and self.train_fraction is not None:
            raise ArgumentError("train_fraction", "None with a text for validation", self.train_fraction)
        if self.symbols is not None and not 0 < len(set(self.symbols)) == len(self.symbols):
            raise ArgumentError("symbols", "different characters", f"{self.symbols!r:.60}")

    def read(self) -> str:
        """Read ``data``; a DataError says what is wrong with it."""
        if self.data is None:
            raise DataError("task.data: expected a text file in UTF-8, got none; give task.data=FILE.")
        return text_of("task.data", self.data)

    def build(self) -> Task:
        """Build the task: predict every next character; the metric is perplexity over all positions.

        Training windows of T + 1 characters begin every max(1, T // 2) characters; those for validation every T, so
        that no character is predicted twice.

        Raises:
            DataError: If a text cannot be read, is shorter than a window, or has a character that is no symbol.
        """
        text, T = self.read()[: self.characters], self.window
        characters = self.symbols or "".join(sorted(set(text)))
        form = TextForm(characters, tuple(characters), next_symbols)
        if self.validation is None:
            cut = int(len(text) * (self.train_fraction or TRAIN_FRACTION))
            places, texts = ("task.data",) * 2, (text[:cut], text[cut:])
        else:
            places = ("task.data", "task.validation")
            texts = (text, text_of("task.validation", self.validation))
        require_memory(80 * sum(map(len, texts)), f"windows of {len(text)} characters", "characters")
        strides = {"training": max(1, T // 2), "validation": T}
        train, validation = (
            _windows(self._encoded(form, *named), T, stride)
            for *named, stride in zip(places, texts, strides, strides.values(), strict=True)
        )
        sizes = (T, len(characters), len(characters))
        return Task(self.name, *sizes, "perplexity", train, validation, text=form)

    def _encoded(self, form: TextForm, place: str, text: str, use: str) -> Tensor:
        """Symbols of a text for ``use``, int64 [n]; ``place`` is the option that names its file."""
        if len(text) <= self.window:
            expected = f"at least {self.window + 1} characters for {use}, task.window and the next one"
            raise DataError(f"{place}: expected {expected}, got {len(text)}.")
        known = set(form.characters)
        first = next((i for i, character in enumerate(text) if character not in known), None)
        if first is not None:
            got = f"got {text[first]!r} in line {text.count(chr(10), 0, first) + 1} of the text for {use}"
            whose, fix = "task.symbols", ""
            if self.symbols is None:
                whose, fix = "task.data", "; give all that may occur as task.symbols"
            raise DataError(f"{place}: expected the characters of {whose} only, {got}{fix}.")
        return form.encode(text)

    def as_built(self, task: Task) -> Self:
        """The options with the symbols of the task, which are then the same on any text."""
        assert task.text is not None
        return replace(self, symbols=task.text.characters)


@dataclass(frozen=True)
class ShakespeareOptions(TextOptions):
    """A text task on Tiny Shakespeare, which is checked against its sha256.

    ``data`` is the file or the folder that it lies in; None looks in DIABAT_DATA and in the user cache, then downloads.
    The first 100,000 characters (the published protocol) have 61 different symbols.
    """

    name: Literal["shakespeare"] = field(default="shakespeare", kw_only=True)  # type: ignore[assignment]  # of another task
    window: int = 8
    characters: int | None = 100_000

    def read(self) -> str:
        """Read the text; a DataError if it cannot be found, verified or downloaded."""
        return read_data(fetch("tinyshakespeare", self.data)).decode()


def next_symbols(symbols: Tensor) -> Tensor:
    """The symbol behind each position, :data:`IGNORED` behind the last one; int64 [count, T]."""
    return torch.cat((symbols[:, 1:], torch.full_like(symbols[:, :1], IGNORED)), 1)


def _windows(codes: Tensor, window: int, stride: int) -> Split:
    windows = codes.unfold(0, window + 1, stride)  # [N, T + 1]
    return Split(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())
