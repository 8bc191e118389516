"""Texts for language modelling from JSON lines, as token ids and labels.

A line has ``text``, all tokens of which are targets; or ``text`` and ``completion``, where only the tokens of the
completion are; or ``input_ids`` and optionally ``labels``, for models without a tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from diabat.attention.heads.interaction.targets import IGNORED
from diabat.checks import ArgumentError, check_count, is_integer
from diabat.runs.heads.json_lines import check_text_or_ids, parsed_lines


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
    lines = parsed_lines(path, lambda line: _text(line, tokenizer, vocabulary, max_length))
    try:
        texts = list(islice(lines, most))
    except ArgumentError as error:
        raise ArgumentError("data", str(error)) from None
    if not texts:
        raise ArgumentError("data", f"expected texts, one JSON object per line, got none in '{path}'.")
    return texts


def _text(line: dict[str, Any], tokenizer: Any, vocabulary: int, max_length: int) -> TokenText:
    check_text_or_ids(line)
    given, other = ("text", "labels") if "text" in line else ("input_ids", "completion")
    if other in line:
        raise ArgumentError(other, f"cannot be combined with {given}.")
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
