"""Samples of a game on heads: token ids, the choices that may follow them, and which one is right."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diabat.checks import ArgumentError, is_integer

KEYS = ("text", "input_ids", "choices", "label", "answers")


@dataclass(frozen=True, eq=False)
class Sample:
    """One question put to the model.

    Attributes:
        tokens: int64 [T], T >= 1.
        choices: Token ids of every choice, each int64 [>= 1]; empty if there are none.
        label: Position of the right choice; None if there are no choices.
        answers: Texts that would be right, for values of generated answers.
        given: The sample as it was given.
    """

    tokens: Tensor
    choices: tuple[Tensor, ...]
    label: int | None
    answers: tuple[str, ...]
    given: Mapping[str, Any]


def read_samples(samples: Iterable[Mapping[str, Any]], tokenizer: Any, vocabulary: int) -> tuple[Sample, ...]:
    """Read samples, dicts of ``text`` or ``input_ids``, and optionally ``choices`` with ``label``, and ``answers``.

    Choices that follow ``text`` are tokenised behind it: white space at the end of the text goes to the choice, as
    "Sentiment: " with "positive" is written " positive" by most tokenisers.  Behind ``input_ids`` a choice is
    tokenised by itself.  Other keys are kept for values that know them.

    Args:
        samples: At least one.
        tokenizer: Of Hugging Face; needed for whatever is a text.
        vocabulary: Number of tokens that the model knows.

    Raises:
        ValueError: If a sample is none of these; the message says which, counted from 0.
    """
    # Tensors of no dimensions are iterable by their type.
    if isinstance(samples, Mapping | str | bytes | Tensor | np.ndarray) or not isinstance(samples, Iterable):
        raise ArgumentError("samples", f"expected a sequence of dicts, got {type(samples).__name__}.")
    read = tuple(
        _read(given, tokenizer, vocabulary, f"samples[{index}]") for index, given in enumerate(samples)
    )
    if not read:
        raise ArgumentError("samples", "expected at least one, got none.")
    return read


def digest(samples: Iterable[Sample]) -> str:
    """Return a checksum of what samples say, for files that must belong to them."""
    content = hashlib.sha256()
    for sample in samples:
        parts = [sample.tokens.tolist(), [c.tolist() for c in sample.choices], sample.label, sample.answers]
        content.update(repr(parts).encode())
    return content.hexdigest()


def _read(given: Mapping[str, Any], tokenizer: Any, vocabulary: int, name: str) -> Sample:
    if not isinstance(given, Mapping):
        raise ArgumentError(name, f"expected a dict, got {type(given).__name__}.")
    if ("text" in given) == ("input_ids" in given):
        keys = ", ".join(map(str, given)) or "neither"
        raise ArgumentError(name, f"expected either 'text' or 'input_ids', got {keys}.")
    choices: Sequence[Any] = given.get("choices", ())
    if isinstance(choices, str) or not isinstance(choices, Sequence):
        raise ArgumentError(f"{name}.choices", f"expected a list, got {type(choices).__name__}.")
    if "text" in given:
        tokens, parts = _tokenise(given["text"], choices, tokenizer, name)
    else:
        tokens = _ids(given["input_ids"], f"{name}.input_ids")
        parts = [_choice(c, tokenizer, f"{name}.choices[{k}]") for k, c in enumerate(choices)]
    for what, ids in (("input_ids", tokens), *((f"choices[{k}]", c) for k, c in enumerate(parts))):
        if bool(((ids < 0) | (ids >= vocabulary)).any()):
            raise ArgumentError(
                f"{name}.{what}", f"expected token ids in 0 .. {vocabulary - 1}, got {ids.tolist()}."
            )
    label = label_position(given, choices, name) if len(choices) else None
    return Sample(tokens, tuple(parts), label, _answers(given, name), given)


def _tokenise(text: Any, choices: Sequence[Any], tokenizer: Any, name: str) -> tuple[Tensor, list[Tensor]]:
    if not isinstance(text, str):
        raise ArgumentError(f"{name}.text", f"expected a text, got {type(text).__name__}.")
    _require(tokenizer, name)
    stem = text.rstrip() if any(isinstance(choice, str) for choice in choices) else text
    space = text[len(stem) :]
    tokens = _ids(_encoded(stem, tokenizer, f"{name}.text"), f"{name}.text")
    parts = []
    for k, choice in enumerate(choices):
        if not isinstance(choice, str):
            parts.append(_choice(choice, tokenizer, f"{name}.choices[{k}]"))
            continue
        whole = _encoded(stem + space + choice, tokenizer, f"{name}.choices[{k}]")
        whole = _ids(whole, f"{name}.choices[{k}]")
        if not torch.equal(whole[: len(tokens)], tokens):
            raise ArgumentError(
                f"{name}.choices[{k}]",
                f"expected a choice whose tokens follow those of the text, got {choice!r}, which merges with its "
                "end; end the text with a space.",
            )
        parts.append(_ids(whole[len(tokens) :], f"{name}.choices[{k}]"))
    return tokens, parts


def _choice(choice: Any, tokenizer: Any, name: str) -> Tensor:
    if isinstance(choice, str):
        _require(tokenizer, name)
        choice = _encoded(choice, tokenizer, name, add_special_tokens=False)
    return _ids([choice] if isinstance(choice, int) else choice, name)


def _encoded(text: str, tokenizer: Any, name: str, **options: Any) -> Any:
    """Token ids of a text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ArgumentError(name, f"expected text without surrogates, got {text!a:.60}.") from None
    return tokenizer(text, **options)["input_ids"]


def _require(tokenizer: Any, name: str) -> None:
    if tokenizer is None:
        raise ArgumentError("tokenizer", f"expected that of the model, since {name} is a text, got None.")


def _ids(value: Any, name: str) -> Tensor:
    try:
        ids = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(name, f"expected token ids, got {value!r:.60}.") from None
    if ids.ndim != 1 or not len(ids) or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ArgumentError(
            name, f"expected token ids [T] with T >= 1, got {list(ids.shape)} of {str(ids.dtype)[6:]}."
        )
    return ids.to("cpu", torch.int64)


def label_position(given: Mapping[str, Any], choices: Sequence[Any], name: str) -> int:
    """Position of the label: it may be the choice itself or its position."""
    if "label" not in given:
        raise ArgumentError(f"{name}.label", "expected one of the choices or its position, got none.")
    label = given["label"]
    named = [k for k, choice in enumerate(choices) if _same(choice, label)]
    position = is_integer(label) and 0 <= label < len(choices)
    found = {*named, *([label] if position else [])}
    if not found:
        raise ArgumentError(
            f"{name}.label", f"expected one of the choices {list(choices)} or its position, got {label!r}."
        )
    if len(found) > 1:
        raise ArgumentError(
            f"{name}.label",
            f"expected a label that means one choice, got {label!r}, which is choices {sorted(found)} of "
            f"{list(choices)}.",
        )
    return int(found.pop())


def _same(choice: Any, label: Any) -> bool:
    if isinstance(choice, str) and isinstance(label, str):
        return choice.strip() == label.strip()
    if isinstance(choice, Tensor | np.ndarray) and type(choice) is type(label):
        return torch.equal(torch.as_tensor(choice), torch.as_tensor(label))
    return type(choice) is type(label) and bool(choice == label)


def _answers(given: Mapping[str, Any], name: str) -> tuple[str, ...]:
    answers = given.get("answers", ())
    if isinstance(answers, str):
        answers = (answers,)
    if not isinstance(answers, Sequence) or not all(isinstance(answer, str) for answer in answers):
        raise ArgumentError(f"{name}.answers", f"expected a list of texts, got {answers!r:.60}.")
    return tuple(answers)
