"""Character-level language modelling on the beginning of Tiny Shakespeare."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.tasks.base import IGNORED, Split, Task
from diabat.tasks.data import fetch
from diabat.tasks.text import TextForm


@dataclass(frozen=True)
class ShakespeareOptions:
    """Options of the Tiny Shakespeare task.

    Attributes:
        name: Name of the task.
        window: Context length T >= 1.
        characters: Length of the part of the text that is used, from its beginning.  100,000 characters (the
            published protocol) have 61 different symbols.
        data: The text file or the folder it lies in; None looks in DIABAT_DATA and in the user cache, then
            downloads.
    """

    name: Literal["shakespeare"] = field(default="shakespeare", kw_only=True)
    window: int = 8
    characters: int = 100_000
    data: str | None = None

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ArgumentError("window", f"expected an integer >= 1, got {self.window}.")
        # A tenth of the text is for validation and must hold one window and its last target.
        least = 10 * (self.window + 1)
        if self.characters < least:
            raise ArgumentError(
                "characters", f"expected at least {least} for window = {self.window}, got {self.characters}."
            )


def shakespeare(options: ShakespeareOptions | None = None) -> Task:
    """Build the task: predict every next character; the metric is perplexity over all positions.

    The first nine tenths of the text are for training, in windows of T + 1 characters with stride max(1, T
    // 2); the rest is for validation, with stride T, so that no character is predicted twice.

    Raises:
        DataError: If the text cannot be found, verified or downloaded.
    """
    options = options or ShakespeareOptions()
    text = fetch("tinyshakespeare", options.data).read_text(encoding="utf-8")[: options.characters]
    characters = "".join(sorted(set(text)))  # in the order of their code points
    form = TextForm(characters, tuple(characters), next_symbols)
    codes, vocab_size = form.encode(text), len(characters)
    cut = len(codes) * 9 // 10
    return Task(
        name=options.name,
        window=options.window,
        vocab_size=vocab_size,
        num_classes=vocab_size,
        metric="perplexity",
        train=_windows(codes[:cut], options.window, stride=max(1, options.window // 2)),
        validation=_windows(codes[cut:], options.window, stride=options.window),
        text=form,
    )


def next_symbols(symbols: Tensor) -> Tensor:
    """The symbol behind each position, :data:`IGNORED` behind the last one; int64 [count, T]."""
    return torch.cat((symbols[:, 1:], torch.full_like(symbols[:, :1], IGNORED)), 1)


def _windows(codes: Tensor, window: int, *, stride: int) -> Split:
    windows = codes.unfold(0, window + 1, stride)  # [N, T + 1]
    return Split(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())
