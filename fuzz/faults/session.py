"""One session of some work in a separate process, forked from one that has imported everything."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diabat.checkpoints import read_checkpoint
from diabat.lab.training import CheckpointError
from diabat.lab.training.folder import LATEST
from fuzz.faults.disk import Disk
from fuzz.properties import refusal_flaw


@dataclass(frozen=True)
class Ending:
    """How a session ended: ``done``, ``sentence``, ``raw`` for an error that is not a sentence, or ``killed``.

    ``text`` is the message of the error, ``operations`` names its file operations if it was not killed, ``fault`` the
    one that failed, and ``step`` is that of the checkpoint when it did; -1 if there was none, or no fault.
    """

    kind: str
    text: str = ""
    operations: list[str] = field(default_factory=list)
    step: int = -1
    fault: str = ""


def session(
    folder: Path, run: Callable[[Path], Any], *, disk: Disk | None = None, kill_after: float | None = None
) -> Ending:
    """Run some work in a folder, on from where it is, with these faults of the disk, or killed after some seconds."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(folder, run, disk, writer)
    os.close(writer)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reader, "rb") as pipe:
        told = [json.loads(line) for line in pipe]
    _, status = os.waitpid(child, 0)
    return Ending(**ChainMap(*reversed(told), {"kind": "killed" if os.WIFSIGNALED(status) else "raw"}))


def _child(folder: Path, run: Callable[[Path], Any], disk: Disk | None, writer: int) -> None:
    tell, finish = os.write, os._exit

    def say(**facts: Any) -> None:
        tell(writer, (json.dumps(facts) + "\n").encode())

    try:
        if disk is not None:
            disk.before = lambda: say(step=saved_step(folder), fault=disk.operations[-1])
            disk.watch()
        run(folder)
        say(kind="done", operations=disk.operations if disk else [])
    except BaseException as error:
        say(kind="raw" if refusal_flaw(error) else "sentence", text=f"{type(error).__name__}: {error}"[:500])
    finish(0)


def saved_step(folder: Path) -> int:
    """Steps taken when the checkpoint of a run was saved; -1 if there is none that can be read."""
    try:
        return int(read_checkpoint(folder / LATEST)[1]["state"]["step"])
    except CheckpointError:
        return -1
