"""Texts for language modelling from JSON lines, as batches of Hugging Face.

A line has ``text``, all tokens of which are targets; or ``text`` and ``completion``, where only the tokens of the
completion are; or ``input_ids`` and optionally ``labels``, for models without a tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diabat.attention.heads.interaction.targets import IGNORED
from diabat.checks import ArgumentError, check_count, is_integer
from diabat.files import parse_json, read_file

_MAX_BYTES = 1 << 30
_KEYS = {"text", "completion", "input_ids", "labels"}


@dataclass(frozen=True)
class TokenText:
    """One text.

    Attributes:
        tokens: Its token ids.
        labels: The same where the token is a target, -100 elsewhere.
    """

    tokens: tuple[int, ...]
    labels: tuple[int, ...]


def read_texts(
    path: Path, tokenizer: Any, vocabulary: int, *, max_length: int = 1024, most: int | None = None
) -> list[TokenText]:
    """Read and tokenise a file of one JSON object per line; empty lines are skipped.

    Args:
        path: The file, UTF-8.
        tokenizer: The fast tokenizer of the model; None if all lines have ``input_ids``.
        vocabulary: Number of tokens of the model.
        max_length: Tokens behind so many are cut off.
        most: Read this many texts at most.

    Raises:
        ArgumentError: If a line is not valid, has no target among its tokens, or there is no text; the message has
            the number of the line.
        OSError: If the file cannot be read.
    """
    check_count("max_length", max_length, least=2)
    check_count("most", most, optional=True)
    try:
        content = read_file(path, _MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArgumentError(
            "data", f"expected UTF-8 text, got other bytes at offset {error.start} of '{path}'."
        ) from None
    texts: list[TokenText] = []
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        if most is not None and len(texts) == most:
            break
        try:
            texts.append(_text(_parsed(line), tokenizer, vocabulary, max_length))
        except ArgumentError as error:
            raise ArgumentError("data", f"'{path}', line {number}: {error}") from None
    if not texts:
        raise ArgumentError("data", f"expected texts, one JSON object per line, got none in '{path}'.")
    return texts


def batches_of(texts: Sequence[TokenText], batch_size: int) -> list[dict[str, Tensor]]:
    """Batches of so many texts each, padded on the right: ``input_ids``, ``attention_mask`` and ``labels``, [B, T]."""
    check_count("batch_size", batch_size)
    return [_padded(texts[start : start + batch_size]) for start in range(0, len(texts), batch_size)]


def _padded(texts: Sequence[TokenText]) -> dict[str, Tensor]:
    width = max(len(text.tokens) for text in texts)

    def rows(values: Sequence[Sequence[int]], padding: int) -> Tensor:
        return torch.tensor([[*row, *[padding] * (width - len(row))] for row in values])

    return {
        "input_ids": rows([text.tokens for text in texts], 0),
        "attention_mask": rows([[1] * len(text.tokens) for text in texts], 0),
        "labels": rows([text.labels for text in texts], IGNORED),
    }


def _parsed(line: str) -> Mapping[str, Any]:
    try:
        found = parse_json(line)
    except ValueError as error:
        reason = error.args[0] if type(error) is ValueError else "not valid JSON"
        raise ArgumentError(f"expected a JSON object, got {reason}.") from None
    if not isinstance(found, dict):
        raise ArgumentError(f"expected a JSON object, got a {type(found).__name__}.")
    if ("text" in found) == ("input_ids" in found):
        raise ArgumentError(f"expected either 'text' or 'input_ids', got {', '.join(found) or 'no key'}.")
    partner = "labels" if "text" in found else "completion"
    if partner in found:
        raise ArgumentError(partner, f"cannot be combined with {'text' if 'text' in found else 'input_ids'}.")
    return found


def _text(line: Mapping[str, Any], tokenizer: Any, vocabulary: int, max_length: int) -> TokenText:
    tokens, labels = _ids(line) if "input_ids" in line else _tokenised(line, tokenizer)
    outside = [token for token in tokens if not 0 <= token < vocabulary]
    if outside:
        raise ArgumentError("input_ids", f"expected token ids in 0 .. {vocabulary - 1}, got {outside[0]}.")
    tokens, labels = tokens[:max_length], labels[:max_length]
    if all(label == IGNORED for label in labels[1:]):
        raise ArgumentError(
            f"expected a target behind the first token, got none among the first {max_length} tokens."
        )
    return TokenText(tuple(tokens), tuple(labels))


def _ids(line: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    tokens = line["input_ids"]
    labels = line.get("labels", tokens)
    for name, ids in (("input_ids", tokens), ("labels", labels)):
        if not isinstance(ids, list) or not all(is_integer(i) for i in ids):
            raise ArgumentError(name, f"expected a list of token ids, got {ids!r:.60}.")
    if len(labels) != len(tokens) or any(
        label not in (token, IGNORED) for token, label in zip(tokens, labels, strict=True)
    ):
        raise ArgumentError(
            "labels", "expected the token ids, or -100 where a token is not a target, got others."
        )
    return tokens, labels


def _tokenised(line: Mapping[str, Any], tokenizer: Any) -> tuple[list[int], list[int]]:
    if tokenizer is None:
        raise ArgumentError("text", "expected 'input_ids', since the model has no tokenizer, got a text.")
    text, completion = line["text"], line.get("completion")
    for name, value in (("text", text), ("completion", completion or "")):
        if not isinstance(value, str):
            raise ArgumentError(name, f"expected a text, got {value!r:.60}.")
    encoded = tokenizer(text + (completion or ""), return_offsets_mapping=True)
    tokens: list[int] = encoded["input_ids"]
    if completion is None:
        return tokens, tokens
    # A token that reaches into the completion is a target, also if it starts in the text.
    ends = [end for _, end in encoded["offset_mapping"]]
    return tokens, [token if end > len(text) else IGNORED for token, end in zip(tokens, ends, strict=True)]
