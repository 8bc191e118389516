"""Texts as training examples: tokenised, joined, and cut into sequences of equal length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from diabat.checks import ArgumentError
from diabat.config.game import GameData
from diabat.extras import extra
from diabat.runs.heads.json_lines import numbered_lines, parsed_lines
from diabat.tasks.data import DataError

_MOST_BYTES = 1 << 36


class PackedTexts(IterableDataset):
    """Sequences of equal length from a stream of texts, in their order: ``input_ids``, ``labels``, int64 [length].

    Args:
        texts: Texts; iterated anew each time.
        tokenizer: A tokenizer of transformers.
        length: Tokens of a sequence; what is left at the end is dropped.
    """

    def __init__(self, texts: Iterable[str], tokenizer: Any, length: int) -> None:
        self._texts, self._tokenizer, self._length = texts, tokenizer, length

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        between = [] if self._tokenizer.eos_token_id is None else [self._tokenizer.eos_token_id]
        pending: list[int] = []
        for text in self._texts:
            pending += [*self._tokenizer(text, add_special_tokens=False)["input_ids"], *between]
            while len(pending) >= self._length:
                ids = torch.tensor(pending[: self._length])
                yield {"input_ids": ids, "labels": ids}
                pending = pending[self._length :]


def training_examples(data: GameData, tokenizer: Any) -> Any:
    """The examples of a configuration: a list for a file, a stream for a data set of the hub.

    Raises:
        DataError: The file cannot be read, a line has no text, or there is not one sequence.
    """
    if data.dataset is not None:
        stream = extra("datasets").load_dataset(data.dataset, split=data.split, streaming=True)
        return PackedTexts(_Column(stream, data.column), tokenizer, data.length)
    assert data.file is not None
    examples = list(PackedTexts(_file_texts(data.file, data.column), tokenizer, data.length))
    if not examples:
        raise DataError(f"data.file: expected {data.length} tokens or more in '{data.file}', got fewer.")
    return examples


class _Column:
    """Texts of a column, which can be iterated again."""

    def __init__(self, rows: Any, column: str) -> None:
        self._rows, self._column = rows, column

    def __iter__(self) -> Iterator[str]:
        return (row[self._column] for row in self._rows)


def _file_texts(path: Path, column: str) -> Iterator[str]:
    """Texts of a file: the lines, or for JSON lines what they have under ``column``."""

    def text(line: dict[str, Any]) -> str:
        found = line.get(column)
        if not isinstance(found, str):
            raise ArgumentError(f"expected a text under '{column}', got none.")
        return found

    expanded = path.expanduser()
    try:
        if path.suffix == ".jsonl":
            yield from parsed_lines(expanded, text, _MOST_BYTES)
        else:
            yield from (line.removesuffix("\r") for _, line in numbered_lines(expanded, _MOST_BYTES))
    except OSError as error:
        raise DataError(f"data.file: expected UTF-8 text in '{path}', got: {error}.") from None
    except ArgumentError as error:
        raise DataError(f"data.file: {error}") from None
