"""One session of a training in a separate process, forked from one that has imported everything."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from diabat.training import CheckpointError, load_model
from diabat.training.checkpoint import read_checkpoint
from diabat.training.folder import LATEST
from fuzz.faults.disk import Disk
from fuzz.outcome import refusal_flaw
from fuzz.tiny import tiny_train


@dataclass(frozen=True)
class Ending:
    """How a session ended.

    Attributes:
        kind: ``done``, ``sentence``, ``raw`` for an error that is not a sentence, or ``killed``.
        text: Message of the error.
        operations: Names of its file operations, if it was not killed.
        step: Step of the checkpoint when the fault came; -1 if there was none, or no fault.
        fault: Name of the operation that failed.
    """

    kind: str
    text: str = ""
    operations: list[str] = field(default_factory=list)
    step: int = -1
    fault: str = ""


def session(
    folder: Path,
    *,
    disk: Disk | None = None,
    kill_after: float | None = None,
    train: Callable[..., Any] = tiny_train,
    **options: Any,
) -> Ending:
    """Train in a folder, on from where it is if there is anything, in a forked process.

    Args:
        folder: Of the run.
        disk: What happens to its files.
        kill_after: Seconds from its first checkpoint until it is killed.
        train: What it does, as :func:`fuzz.tiny.tiny_train`.
        options: Handed on to ``train``.
    """
    # What a run that has a checkpoint is given to begin with must not matter.
    options = {"weights": 99 if saved_step(folder) >= 0 else 0, **options}
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(folder, disk, writer, train, options)
    os.close(writer)
    if kill_after is not None:
        _kill(child, folder, kill_after)
    with os.fdopen(reader, "rb") as pipe:
        lines = [json.loads(line) for line in pipe]
    _, status = os.waitpid(child, 0)
    facts: dict[str, Any] = {"kind": "killed" if os.WIFSIGNALED(status) else "raw"}
    for line in lines:
        facts |= line
    return Ending(**facts)


def _child(folder: Path, disk: Disk | None, writer: int, train: Callable[..., Any], options: Any) -> None:
    tell, finish = os.write, os._exit

    def say(**facts: Any) -> None:
        tell(writer, (json.dumps(facts) + "\n").encode())

    resume = folder.exists()
    try:
        if disk is not None:
            disk.before = lambda: say(step=saved_step(folder), fault=disk.operations[-1])
            disk.watch()
        train(folder, resume=resume, **options)
        say(kind="done", operations=disk.operations if disk else [])
    except BaseException as error:
        flaw = refusal_flaw(error)
        say(kind="raw" if flaw else "sentence", text=f"{type(error).__name__}: {error}"[:500])
    finish(0)


def _kill(child: int, folder: Path, delay: float) -> None:
    while saved_step(folder) < 0:
        time.sleep(0.002)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)


def saved_step(folder: Path) -> int:
    """Steps taken when the checkpoint of a run was saved; -1 if there is none that can be read."""
    try:
        return int(read_checkpoint(folder / LATEST)[1]["state"]["step"])
    except CheckpointError:
        return -1


def difference(folder: Path, straight: Path) -> str:
    """Describe the first bitwise difference of two runs, except times; empty if there is none."""
    if _metrics(folder) != _metrics(straight):
        return "metrics.jsonl differs"
    for which in ("latest", "best"):
        a, b = load_model(folder, which), load_model(straight, which)
        if a.keys() != b.keys() or not all(torch.equal(a[name], b[name]) for name in a):
            return f"the {which} weights differ"
    left = [path.name for path in folder.rglob(".tmp-*")]
    return f"left over: {', '.join(left)}" if left else ""


def _metrics(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("wall_s", "cpu_s")} for line in lines]
