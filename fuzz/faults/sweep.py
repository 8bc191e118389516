"""Every file operation of a training fails in every way, one at a time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from diabat.training import TrainingError, load_model
from fuzz.faults.disk import Disk, How
from fuzz.faults.session import difference, saved_step, session

OPTIONS: dict[str, Any] = {"max_epochs": 2}
"""Six steps, four checkpoints, and two validations."""


def count(folder: Path, begun: Path | None = None) -> list[str]:
    """Names of the file operations of a session in a new folder, or of one that goes on from ``begun``."""
    run = _fresh(folder, begun)
    ending = session(run, disk=Disk(folder), **OPTIONS)
    if ending.kind != "done":
        raise RuntimeError(f"a session without faults failed: {ending.text}")
    return ending.operations


def sweep(
    folder: Path, straight: Path, how: How, moments: Iterator[int], begun: Path | None = None
) -> Iterator[tuple[str, str]]:
    """For each moment: the ending of the session, and what was lost, if anything.

    Args:
        folder: To work in.
        straight: The run that nothing disturbed.
        how: What happens at the moment.
        moments: Numbers of the operations.
        begun: A run to go on from; None begins one.
    """
    for moment in moments:
        run = _fresh(folder, begun)
        ending = session(run, disk=Disk(folder, moment, how), **OPTIONS)
        if lost := _lost(run, straight, ending.step, ending.kind, ending.text):
            lost = f"operation {moment} ({ending.fault}): {lost}"
        yield ending.kind, lost


def _fresh(folder: Path, begun: Path | None) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if begun is not None:
        shutil.copytree(begun, folder / "run")
    return folder / "run"


def _lost(run: Path, straight: Path, step: int, kind: str, text: str) -> str:
    if kind == "raw":
        return f"an error that is not a sentence: {text}"
    if step >= 0:
        try:
            load_model(run, "latest")
        except TrainingError as error:
            return f"the checkpoint does not load: {error}"
        if saved_step(run) < step:
            return f"step {step} is gone"
    again = session(run, **OPTIONS)
    if again.kind != "done":
        return f"does not resume: {again.text}"
    return difference(run, straight)


def half_way(folder: Path) -> Path:
    """A run that was killed at two thirds of its operations."""
    total = len(count(folder / "counted"))
    run = _fresh(folder / "begun", None)
    ending = session(run, disk=Disk(folder, 2 * total // 3, "killed"), **OPTIONS)
    if ending.kind != "killed":
        raise RuntimeError(f"expected a killed session, got {ending.kind}: {ending.text}")
    return run


WAYS: tuple[How, ...] = get_args(How)
