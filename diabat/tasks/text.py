"""Texts of a task: a character for each symbol, a name for each class, and what is to be predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from diabat.checks import ArgumentError, ArgumentTypeError


@dataclass(frozen=True)
class TextForm:
    """How a text becomes symbols, and what a model predicts at each of them.

    Attributes:
        characters: Character of each input symbol, in the order of the symbols.
        classes: Name of each class.
        targets: Maps symbols, int64 [1, n], to the class of each position, int64 [1, n];
            :data:`diabat.tasks.IGNORED` where there is none, or where it is not known.
    """

    characters: str
    classes: tuple[str, ...]
    targets: Callable[[Tensor], Tensor]

    def encode(self, text: str) -> Tensor:
        """Symbols of a text, int64 [n].

        Raises:
            TypeError: If the text is no string.
            ValueError: If the text is empty, or has a character that is no symbol.
        """
        if not isinstance(text, str):
            raise ArgumentTypeError("text", f"expected a string, got {type(text).__name__}.")
        if not text:
            raise ArgumentError("text", "expected at least one character, got an empty text.")
        index = {character: symbol for symbol, character in enumerate(self.characters)}
        for position, character in enumerate(text):
            if character not in index:
                raise ArgumentError(
                    "text",
                    f"expected the characters {self.characters!r} of the task, "
                    f"got {character!r} at position {position}.",
                )
        return torch.tensor([index[character] for character in text])
