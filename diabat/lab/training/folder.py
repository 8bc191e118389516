"""The folder of a run: its lock, what may lie in it, and its metrics; the errors of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from diabat.checkpoints import LOCK, CheckpointError, OutputError, TrainingError, locked
from diabat.files import TEMPORARY_PREFIX, open_file

CONFIG, METRICS = "config.json", "metrics.jsonl"
LATEST, BEST = "latest.safetensors", "best.safetensors"
"""Names of the files: the configuration, a line per event, and the two checkpoints."""


class TrainingInterrupted(TrainingError):  # noqa: N818 (it is not an error of the run)
    """The run was stopped by Ctrl-C or SIGTERM; its state is saved."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn every OSError in the block into an OutputError of one sentence."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"run_dir: cannot write {path} ({error.strerror}).") from error


@contextmanager
def opened(folder: Path, resume: bool) -> Iterator[None]:
    """Make the folder of a new run, or find one to resume (perhaps killed while it started), and lock it in the block.

    OutputError if there is already a run, no run to resume, or the folder cannot be written, or is locked.
    """
    with writing(folder):
        _check_content(folder, resume)
        if not resume:
            folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        with writing(folder):
            _check_content(folder, resume)  # again: another run may have had the lock
            for leftover in folder.glob(f"{TEMPORARY_PREFIX}*"):
                with suppress(OSError):
                    leftover.unlink()  # of a run that was killed
        yield


def _check_content(folder: Path, resume: bool) -> None:
    if resume and not folder.is_dir():
        got = f"got {folder}, which does not exist."
        raise OutputError(f"run_dir: expected the folder of a run to resume, {got}")
    names = {path.name for path in folder.iterdir()} - {LOCK} if folder.exists() else set()
    if names and not resume:
        fix = "continue its run with resume=True, or name another folder."
        raise OutputError(f"run_dir: expected a new or empty folder, got {folder} with files in it; {fix}")
    others = {n for n in names - {CONFIG, METRICS} if not n.startswith(TEMPORARY_PREFIX)}
    # A run without a checkpoint has written no lines.
    lines = METRICS in names and (folder / METRICS).lstat().st_size
    if resume and LATEST not in names and (others or lines):
        raise OutputError(f"run_dir: expected a run with a checkpoint to resume, got none in {folder}.")


@contextmanager
def metrics_file(folder: Path) -> Iterator[BinaryIO]:
    """Open metrics.jsonl for appending, create it if missing; a link is not followed.

    Lines of event ``step`` hold the loss of one batch, lines of event ``epoch`` the mean training loss of an epoch, the
    validation loss and the metric, lines of event ``sampler`` what sampled this validation
    (:func:`diabat.lab.training.diagnostics.observed`); all hold ``step`` (steps taken), ``epoch`` (epochs completed),
    ``wall_s`` and ``cpu_s`` (wall-clock and processor time of the run so far).  OutputError if the system refuses.
    """
    path = folder / METRICS
    with writing(path), os.fdopen(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
        yield file


def cut_metrics(folder: Path, length: int) -> None:
    """Remove the lines that a killed run wrote after its last checkpoint; CheckpointError if the file is shorter."""
    with metrics_file(folder) as file:
        if (got := os.fstat(file.fileno()).st_size) < length:
            damage = f"expected at least {length} bytes, got {got}."
            raise CheckpointError(f"checkpoint: {folder / METRICS} is damaged: {damage}")
        os.truncate(file.fileno(), length)
