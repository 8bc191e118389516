"""Small question sets and analyses, for the tests of this folder."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from diabat.cli import app
from diabat.runs.heads import QuestionSet


def questions(name: str = "q", count: int = 6, seed: int = 0, value: str = "log_odds") -> QuestionSet:
    """Questions of token ids with three choices."""
    draw = random.Random(seed)
    samples = tuple(
        {
            "input_ids": [draw.randrange(4, 30) for _ in range(8 - k % 2)],
            "choices": [5, 9, 20],
            "label": draw.choice([5, 9, 20]),
        }
        for k in range(count)
    )
    return QuestionSet(name, value, samples, {"name": name})


def write(path: Path, samples: Any) -> Path:
    """Write samples as JSON lines."""
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def run_json(*arguments: str | Path) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)
