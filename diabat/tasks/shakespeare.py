"""Character-level language modelling on the beginning of Tiny Shakespeare."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from diabat.checks import check_count
from diabat.tasks.base import IGNORED, Split, Task, TaskOptions, TextForm
from diabat.tasks.data import fetch, read_data


@dataclass(frozen=True)
class ShakespeareOptions(TaskOptions):
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
        check_count("window", self.window)
        # A tenth of the text is for validation and must hold one window and its last target.
        check_count("characters", self.characters, least=10 * (self.window + 1))

    def build(self, tokenizer: Any = None) -> Task[Split]:
        """Build the task: predict every next character; the metric is perplexity over all positions.

        The first nine tenths of the text are for training, in windows of T + 1 characters with stride max(1, T // 2);
        the rest is for validation, with stride T, so that no character is predicted twice.

        Raises:
            DataError: If the text cannot be found, verified or downloaded.
        """
        text = read_data(fetch("tinyshakespeare", self.data)).decode()[: self.characters]
        characters = "".join(sorted(set(text)))  # in the order of their code points
        form = TextForm(characters, tuple(characters), next_symbols)
        codes, T = form.encode(text), self.window
        cut = len(codes) * 9 // 10
        train = _windows(codes[:cut], T, stride=max(1, T // 2))
        validation = _windows(codes[cut:], T, stride=T)
        sizes = (T, len(characters), len(characters))
        return Task(self.name, *sizes, "perplexity", train, validation, text=form)


def next_symbols(symbols: Tensor) -> Tensor:
    """The symbol behind each position, :data:`IGNORED` behind the last one; int64 [count, T]."""
    return torch.cat((symbols[:, 1:], torch.full_like(symbols[:, :1], IGNORED)), 1)


def _windows(codes: Tensor, window: int, *, stride: int) -> Split:
    windows = codes.unfold(0, window + 1, stride)  # [N, T + 1]
    return Split(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())
