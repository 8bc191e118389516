"""Questions from JSON lines: ``prompt``, ``messages`` or ``input_ids``, with ``choices`` and ``answer``."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from diabat.checks import ArgumentError
from diabat.files import parse_json, read_file
from diabat.heads.games.samples import check_sample

_MAX_BYTES = 1 << 30


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
        got = f"got other bytes at {error.start}."
        raise ArgumentError("data", f"expected UTF-8 text in '{path}', {got}") from None
    questions = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            place = f"'{path}', line {number}"
            try:
                questions[place] = parse_json(line)
            except ValueError as error:
                reason = error.args[0] if type(error) is ValueError else "no valid JSON"
                raise ArgumentError(place, f"expected a JSON object, got {reason}.") from None
            check_sample(questions[place], place)
    if not questions:
        raise ArgumentError("data", f"expected questions in '{path}', one JSON object per line, got none.")
    if count is not None and count < len(questions):
        questions = dict(random.Random(seed).sample(list(questions.items()), count))
    return questions
