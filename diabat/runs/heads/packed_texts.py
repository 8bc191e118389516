"""Texts as training examples: tokenised, joined, and cut into sequences of equal length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from diabat.config.game import GameData
from diabat.extras import extra
from diabat.files import parse_json
from diabat.tasks.data import DataError


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
        return PackedTexts(_column(stream, data.column), tokenizer, data.length)
    assert data.file is not None
    examples = list(PackedTexts(_lines(data.file, data.column), tokenizer, data.length))
    if not examples:
        raise DataError(f"data.file: expected {data.length} tokens or more in '{data.file}', got fewer.")
    return examples


class _column:  # noqa: N801 - an iterable that can be iterated again
    def __init__(self, rows: Any, column: str) -> None:
        self._rows, self._column = rows, column

    def __iter__(self) -> Iterator[str]:
        return (row[self._column] for row in self._rows)


def _lines(path: Path, column: str) -> Iterator[str]:
    """Documents of a file; empty lines are skipped."""
    try:
        lines = path.expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"data.file: expected UTF-8 text in '{path}', got: {error}.") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if path.suffix != ".jsonl":
            yield line
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            raise DataError(f"'{path}' line {number}: expected a JSON object, got: {error}.") from None
        if not isinstance(row, dict) or not isinstance(row.get(column), str):
            raise DataError(f"'{path}' line {number}: expected a text under '{column}', got none.")
        yield row[column]
