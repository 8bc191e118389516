"""Questions in JSON lines: ``text`` or ``input_ids``, with ``choices`` and ``label``, with ``answers``, or alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diabat.attention.heads.samples import label_position
from diabat.checks import ArgumentError, is_integer
from diabat.runs.heads.json_lines import check_text_or_ids, parsed_lines
from diabat.tasks.data import DataError


def read_questions(path: Path) -> list[dict[str, Any]]:
    """Read a file of one JSON object per line; empty lines are skipped.

    Other keys are kept, for values that are functions of the sample.

    Raises:
        DataError: If the file cannot be read, has no question, or a line is not valid; the message has its number.
    """
    questions: list[dict[str, Any]] = []

    def same_kind(line: dict[str, Any]) -> dict[str, Any]:
        _check_question(line)
        first = questions[0] if questions else line
        if default_value(line) != default_value(first):
            raise ArgumentError(f"expected {_needs(first)} as in the lines before, got {', '.join(line)}.")
        return line

    try:
        for question in parsed_lines(path, same_kind):
            questions.append(question)  # same_kind compares with the first
    except FileNotFoundError:
        raise DataError(f"'{path}': no such file.") from None
    except OSError as error:
        raise DataError(f"'{path}': cannot be read ({error.strerror}).") from None
    except ArgumentError as error:
        raise DataError(str(error)) from None
    if not questions:
        raise DataError(f"'{path}': expected questions, one JSON object per line, got none.")
    return questions


def default_value(question: Mapping[str, Any]) -> str:
    """The value that a question is meant for: ``log_odds``, ``f1`` or ``perplexity``."""
    if "choices" in question:
        return "log_odds"
    return "f1" if "answers" in question else "perplexity"


def _check_question(question: dict[str, Any]) -> None:
    check_text_or_ids(question)
    if "text" in question:
        _check_text("text", question["text"])
    elif not _are_ids(question["input_ids"]):
        raise ArgumentError("input_ids", f"expected a list of token ids, got {question['input_ids']!r:.60}.")
    if "choices" in question:
        _check_choices(question)
    elif "label" in question:
        raise ArgumentError("label", "expected 'choices' beside it, got none.")
    if "answers" in question:
        _check_answers(question["answers"])


def _check_choices(question: dict[str, Any]) -> None:
    choices = question["choices"]
    if not isinstance(choices, list) or len(choices) < 2:
        raise ArgumentError("choices", f"expected a list of two or more, got {choices!r:.60}.")
    for choice in choices:
        if isinstance(choice, str):
            _check_text("choices", choice)
        elif not _are_ids([choice] if is_integer(choice) else choice):
            raise ArgumentError("choices", f"expected texts or token ids, got {choice!r:.60}.")
    try:
        label_position(question, choices, "")
    except ArgumentError as error:
        raise ArgumentError("label", error.reason) from None


def _check_answers(answers: Any) -> None:
    if not isinstance(answers, list) or not answers:
        raise ArgumentError("answers", f"expected a list of texts, got {answers!r:.60}.")
    for answer in answers:
        _check_text("answers", answer)


def _check_text(name: str, text: Any) -> None:
    if not isinstance(text, str) or not text.strip():
        raise ArgumentError(name, f"expected a text that is not empty, got {text!r:.60}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can contain half a surrogate pair, which no tokenizer accepts
        raise ArgumentError(name, f"expected text, got {text[error.start]!r} alone.") from None


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(is_integer(i) and i >= 0 for i in value)


def _needs(question: Mapping[str, Any]) -> str:
    needed = {"log_odds": "choices and label", "f1": "answers", "perplexity": "neither choices nor answers"}
    return needed[default_value(question)]
