"""The command line in this process, and short runs through it."""

import json
from pathlib import Path
from typing import Any

from typer import testing
from typer.main import get_command
from typer.testing import CliRunner, Result

from diabat.cli import app

# Else every call builds all commands, which takes longer than most of them.
COMMANDS = get_command(app)
vars(testing)["_get_command"] = lambda _: COMMANDS

SMALL = [
    "task.num_train=32",
    "task.num_validation=16",
    "task.window=4",
    "model.embed_dim=8",
    "model.ffn_dim=0",
    "training.batch_size=8",
]


def run(*arguments: str | Path, piped: str | None = None) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], input=piped)


def run_json(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def train(folder: Path, *arguments: str, steps: int = 2) -> Result:
    limits = [f"training.max_steps={steps}", "training.checkpoint_every=1", f"output={folder}"]
    return run("train", "brackets-t8", *SMALL, *limits, "--no-progress", *arguments)
