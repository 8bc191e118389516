"""Lines of text files: numbered, and as JSON objects; an error has the file and the number of the line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from diabat.checks import ArgumentError
from diabat.files import parse_json, read_file

MAX_BYTES = 1 << 30
"""Largest file that is read."""

T = TypeVar("T")


def numbered_lines(path: Path, most_bytes: int = MAX_BYTES) -> Iterator[tuple[int, str]]:
    """Lines of a UTF-8 file with their numbers from 1; empty lines are skipped.

    Raises:
        ArgumentError: If the file is not UTF-8.
        OSError: If it cannot be read.
    """
    try:
        text = read_file(path, most_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"'{path}': expected UTF-8 text, got other bytes at offset {error.start}."
        ) from None
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line


def parsed_lines(
    path: Path, parse: Callable[[dict[str, Any]], T], most_bytes: int = MAX_BYTES
) -> Iterator[T]:
    """What ``parse`` makes of each line of a file of one JSON object per line.

    Raises:
        ArgumentError: If the file is not UTF-8, a line is not a JSON object, or ``parse`` refuses it.
        OSError: If the file cannot be read.
    """
    for number, line in numbered_lines(path, most_bytes):
        try:
            yield parse(_json_object(line))
        except ArgumentError as error:
            raise ArgumentError(f"'{path}', line {number}: {error}") from None


def check_text_or_ids(line: dict[str, Any]) -> None:
    """Refuse a line with both ``text`` and ``input_ids``, or with neither."""
    if ("text" in line) == ("input_ids" in line):
        raise ArgumentError(f"expected either 'text' or 'input_ids', got {', '.join(line) or 'no key'}.")


def _json_object(line: str) -> dict[str, Any]:
    try:
        found = parse_json(line)
    except ValueError as error:
        reason = error.args[0] if type(error) is ValueError else "not valid JSON"
        raise ArgumentError(f"expected a JSON object, got {reason}.") from None
    if not isinstance(found, dict):
        raise ArgumentError(f"expected a JSON object, got a {type(found).__name__}.")
    return found
