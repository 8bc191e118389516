"""Questions put to a decoder: token ids, the choices that may follow them, and which one is right.

A question is a dict, a line of a JSON lines file, with one of

    prompt       a text
    messages     a chat, [{"role": "user", "content": ...}, ...], written by the chat template of the tokenizer
    input_ids    token ids

and optionally ``choices`` (texts or token ids) with ``answer`` (a choice or its position).  ``corrupted``, in the form
of the prompt, is a counterfactual one of as many tokens.  Other keys are refused, but for a value that is a function.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diabat.checks import ArgumentError, did_you_mean, is_integer
from diabat.files import parse_json, read_file

KINDS = ("prompt", "messages", "input_ids")
_KEYS = (*KINDS, "choices", "answer", "corrupted")
_MAX_BYTES = 1 << 30


@dataclass(frozen=True, eq=False)
class Sample:
    """One question put to the model.

    Attributes:
        tokens: int64 [T], T >= 1.
        choices: Token ids of every choice, each int64 [>= 1]; empty if there are none.
        answer: Position of the right choice; None if there are no choices.
        given: The question as it was given.
        corrupted: Tokens of the counterfactual prompt, int64 [T]; None if it was not asked for.
    """

    tokens: Tensor
    choices: tuple[Tensor, ...]
    answer: int | None
    given: Mapping[str, Any]
    corrupted: Tensor | None = None


def read_questions(path: Path, count: int | None = None, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Questions of a file of one JSON object per line (UTF-8), by their place: "'file.jsonl', line 3".

    ``count`` of them are drawn without replacement by ``seed``; None takes all, in their order.

    Raises:
        ArgumentError: If the file is not UTF-8, has no question, or a line is none; the message has its number.
        OSError: If it cannot be read.
    """
    try:
        text = read_file(path, _MAX_BYTES, follow=True).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArgumentError("data", f"UTF-8 text in '{path}'", f"other bytes at {error.start}") from None
    questions = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            place = f"'{path}', line {number}"
            try:
                questions[place] = parse_json(line)
            except ValueError as error:
                reason = error.args[0] if type(error) is ValueError else "no valid JSON"
                raise ArgumentError(place, "a JSON object", reason) from None
            check_question(questions[place], place)
    if not questions:
        raise ArgumentError("data", f"questions in '{path}', one JSON object per line", "none")
    if count is not None and count < len(questions):
        questions = dict(random.Random(seed).sample(list(questions.items()), count))
    return questions


def tokenised(
    questions: Iterable[Mapping[str, Any]],
    tokenizer: Any,
    vocabulary: int,
    *,
    corrupted: bool = False,
    more: bool = False,
) -> tuple[Sample, ...]:
    """Questions as token ids; see the module.

    Choices that follow a text are tokenised behind it.  White space at the end of the text stays there if the tokens of
    every choice then follow those of the text, as behind a line break; else it goes to the choices, as most tokenizers
    write "Answer: " with "yes" as "Answer:" with " yes".  Behind ``input_ids`` a choice is tokenised by itself.

    Args:
        questions: At least one.
        tokenizer: Of Hugging Face; needed for whatever is a text.
        vocabulary: Number of tokens that the model knows.
        corrupted: Every question needs a counterfactual prompt, which is read as well.
        more: Questions may have other keys.

    Raises:
        ValueError: If one is no question; the message says which, counted from 0.
    """
    # Tensors of no dimensions are iterable by their type.
    single = isinstance(questions, Mapping | str | bytes | Tensor | np.ndarray)
    if single or not isinstance(questions, Iterable):
        raise ArgumentError("samples", "a sequence of dicts", type(questions).__name__)
    numbered = enumerate(questions)
    samples = [_tokenised(q, tokenizer, vocabulary, f"samples[{k}]", corrupted, more) for k, q in numbered]
    if not samples:
        raise ArgumentError("samples", "at least one", "none")
    return tuple(samples)


def digest(samples: Iterable[Sample]) -> str:
    """Return a checksum of what samples say, for files that must belong to them."""
    content = hashlib.sha256()
    for sample in samples:
        parts = [sample.tokens.tolist(), [c.tolist() for c in sample.choices], sample.answer]
        if sample.corrupted is not None:
            parts.append(sample.corrupted.tolist())
        content.update(repr(parts).encode())
    return content.hexdigest()


def check_question(given: Any, name: str, *, more: bool = False) -> int | None:
    """Check what can be checked without a tokenizer; the position of the answer, None without choices.

    Keys that are not known are refused, unless there may be ``more``.

    Raises:
        ArgumentError: If it is no question; ``name`` is what the message calls it.
    """
    if not isinstance(given, Mapping):
        raise ArgumentError(name, "a dict", type(given).__name__)
    if sum(kind in given for kind in KINDS) != 1:
        got = ", ".join(map(repr, given))[:200] or "no key"
        raise ArgumentError(name, "one of prompt, messages and input_ids", got)
    for key in () if more else given:
        if key not in _KEYS:
            expected = f"expected keys among {', '.join(_KEYS)}"
            raise ArgumentError(name, f"{expected}, got {key!r:.60}.{did_you_mean(key, _KEYS)}")
    if "prompt" in given:
        _check_text(given["prompt"], f"{name}.prompt")
    elif "messages" in given:
        messages = given["messages"]
        if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
            raise ArgumentError(f"{name}.messages", "a list of messages", f"{messages!r:.60}")
        for message in messages:
            if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
                raise ArgumentError(f"{name}.messages", "role and content", f"{message!r:.60}")
            _check_text(message["content"], f"{name}.messages")
    else:
        _ids(given["input_ids"], f"{name}.input_ids")
    choices = given.get("choices", ())
    if isinstance(choices, str) or not isinstance(choices, Sequence):
        raise ArgumentError(f"{name}.choices", "a list", type(choices).__name__)
    for k, choice in enumerate(choices):
        place = f"{name}.choices[{k}]"
        _check_text(choice, place) if isinstance(choice, str) else _ids(choice, place)
    return _position(choices, given.get("answer"), f"{name}.answer") if len(choices) else None


def _tokenised(given: Any, tokenizer: Any, vocabulary: int, name: str, corrupted: bool, more: bool) -> Sample:
    answer = check_question(given, name, more=more)
    kind, choices = next(kind for kind in KINDS if kind in given), given.get("choices", ())
    written = {k: choice for k, choice in enumerate(choices) if isinstance(choice, str)}
    if tokenizer is None and (written or kind != "input_ids"):
        text = f"{name}.choices[{min(written)}]" if kind == "input_ids" else name
        raise ArgumentError("tokenizer", f"that of the model, since {text} is a text", "None")
    if kind == "input_ids":
        tokens = given["input_ids"]
        following = {k: tokenizer(text, add_special_tokens=False)["input_ids"] for k, text in written.items()}
    else:
        tokens, following = _with_choices(given, written, tokenizer, name)
    parts = {f"{name}.{kind}": tokens}
    parts |= {f"{name}.choices[{k}]": following.get(k, choice) for k, choice in enumerate(choices)}
    ids = [_ids(part, place) for place, part in parts.items()]
    for part, place in zip(ids, parts, strict=True):
        if bool(((part < 0) | (part >= vocabulary)).any()):
            raise ArgumentError(place, f"token ids in 0 .. {vocabulary - 1}", part.tolist())
    sample = Sample(ids[0], tuple(ids[1:]), answer, given)
    if not corrupted:
        return sample
    name, count = f"{name}.corrupted", len(ids[0])
    if "corrupted" not in given:
        raise ArgumentError(name, "a prompt for ablation=corrupted", "none")
    other = _tokenised({**given, kind: given["corrupted"]}, tokenizer, vocabulary, name, False, more).tokens
    if len(other) != count:
        raise ArgumentError(name, f"{count} tokens, as many as the {kind}", len(other))
    return replace(sample, corrupted=other)


def _with_choices(
    given: Mapping[str, Any], written: Mapping[int, str], tokenizer: Any, name: str
) -> tuple[list[int], dict[int, list[int]]]:
    """Tokens of a text or a chat, and those of the choices behind it."""
    special = "prompt" in given  # a chat has its special tokens from the template
    text = given["prompt"] if special else _chat(given["messages"], tokenizer, name)
    kept = len(text)
    while True:
        tokens = tokenizer(text[:kept], add_special_tokens=special)["input_ids"]
        whole = {k: tokenizer(text + c, add_special_tokens=special)["input_ids"] for k, c in written.items()}
        merged = [k for k, ids in whole.items() if ids[: len(tokens)] != tokens or len(ids) == len(tokens)]
        if not merged:
            return tokens, {k: ids[len(tokens) :] for k, ids in whole.items()}
        if not text[:kept] or not text[kept - 1].isspace():
            expected = "a choice whose tokens follow those of the text"
            got = f"{written[merged[0]]!r}, which merges with its end; end the text with a space"
            raise ArgumentError(f"{name}.choices[{merged[0]}]", expected, got)
        kept -= 1  # white space that the tokenizer writes with a choice


def _chat(messages: Sequence[Mapping[str, Any]], tokenizer: Any, name: str) -> str:
    """A chat as text; a last message of the assistant is what the model continues."""
    begun = messages[-1]["role"] == "assistant"
    try:
        return tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=not begun, continue_final_message=begun
        )
    # Jinja raises what the template says, and transformers a ValueError where there is none.
    except Exception as error:
        reason = " ".join(str(error).split())
        sentence = f"expected a chat that the tokenizer has a template for, got: {reason:.120}"
        raise ArgumentError(f"{name}.messages", sentence) from None


def _check_text(text: Any, name: str) -> None:
    if not isinstance(text, str):
        raise ArgumentError(name, "a text", type(text).__name__)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ArgumentError(name, "text without surrogates", f"{text!a:.60}") from None


def _ids(value: Any, name: str) -> Tensor:
    """Token ids int64 [T]; those of a choice may be one number."""
    try:
        ids = torch.as_tensor([value] if isinstance(value, int) and "choices" in name else value)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(name, "token ids", f"{value!r:.60}") from None
    if ids.ndim != 1 or not len(ids) or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ArgumentError(name, "token ids [T] with T >= 1", f"{list(ids.shape)} of {str(ids.dtype)[6:]}")
    return ids.to("cpu", torch.int64)


def _position(choices: Sequence[Any], answer: Any, name: str) -> int:
    """Position of the answer: it may be the choice itself or its position."""
    wanted, known = _compared(answer), [_compared(choice) for choice in choices]
    places = {k for k, choice in enumerate(known) if type(choice) is type(wanted) and choice == wanted}
    if is_integer(answer) and 0 <= answer < len(choices):
        places.add(int(answer))
    if len(places) != 1:
        got = f"{answer!r}, which is choices {sorted(places)}" if places else repr(answer)
        raise ArgumentError(name, f"one of the choices {list(choices)} or its position", got)
    return places.pop()


def _compared(choice: Any) -> Any:
    """A choice to compare: a text without white space around it, token ids as a list."""
    if isinstance(choice, Tensor | np.ndarray):
        return choice.tolist()
    return choice.strip() if isinstance(choice, str) else choice
