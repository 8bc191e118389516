"""The run folder: locked by one process at a time, created for a new run, checked for a resumed one."""

from __future__ import annotations

import errno
import json
import os
import socket
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import filelock
import torch
from torch import nn

from diabat.files import TEMPORARY_PREFIX, discard, open_file, replace_file, to_json
from diabat.training.checkpoint import (
    find_checkpoints,
    load_weights,
    read_checkpoint,
    reading,
    remove_leftovers,
)
from diabat.training.errors import CheckpointError, OutputError
from diabat.training.options import TrainOptions
from diabat.training.recipe import Average, Scaler
from diabat.training.report import METRICS
from diabat.training.state import TrainState, checked_state, restore_training

LOCK = ".lock"
"""Lock file of a run folder; it contains the process and the host that train there."""

_NO_LOCKS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK})
# Windows locks the first byte of the file, and prevents other processes from reading it.
_LOCKED_BYTE = " "
_MOST_READ = 4096


@contextmanager
def locked(folder: Path, *, name: str = "run_dir", work: str = "training") -> Iterator[None]:
    """Lock a run folder while the block runs; readers need no lock.

    The system releases the lock when the process ends, also by kill -9; a file without a lock is ignored.

    Args:
        folder: An existing folder.
        name: The argument that names it, for messages.
        work: What is done there, for messages.

    Raises:
        OutputError: If another process, or another run of this process, is training there (the message names it), the
            folder cannot be written, or its lock file is a link.
    """
    try:
        descriptor = _acquire(folder / LOCK)
    except OSError as error:
        raise OutputError(f"{name}: cannot write the folder {folder} ({error.strerror}).") from error
    if descriptor is None:
        raise OutputError(
            f"{name}: expected a folder that nobody else is {work} in, got {folder}, "
            f"where {_holder(folder / LOCK)} is at work."
        )
    try:
        yield
    finally:
        try:
            with suppress(OSError):  # a remaining file is harmless, and the run is saved
                (folder / LOCK).unlink()  # before the lock is released: it is still ours
        finally:
            os.close(descriptor)


def _acquire(path: Path) -> int | None:
    """Open and lock the file and write process and host into it; None if it is locked."""
    while True:
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            if not _lock(descriptor):
                os.close(descriptor)
                return None
            if _is_at(descriptor, path):
                name = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
                os.truncate(descriptor, 0)
                os.write(descriptor, (_LOCKED_BYTE + name).encode())
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # a run ended, and deleted the file, between our two calls


def _lock(descriptor: int) -> bool:
    """Lock an open file; False if it is locked already.  We open it ourselves: filelock would also lock pipes."""
    try:
        return filelock.lock_descriptor(descriptor, blocking=False)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        warnings.warn(
            "run_dir: the file system does not support locks; make sure that only one process trains in the folder.",
            stacklevel=5,
        )
        return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(len(_LOCKED_BYTE))
            told = json.loads(file.read(_MOST_READ))
        return f"process {told['pid']} on {told['host']}"
    except (OSError, ValueError, LookupError, TypeError):  # it has only just got the lock
        return "another process"


CONFIG = "config.json"
FORMAT = 1
"""Version of the content of a ``step`` checkpoint."""

FREE_ON_RESUME = frozenset({"max_epochs", "max_steps", "patience", "checkpoint_every", "tensorboard"})
"""Options that may change when a run is resumed, because the steps taken so far do not depend on them."""


def prepare_folder(folder: Path, resume: bool) -> None:
    """Create the folder of a new run, or check that a run can be resumed there; no file is written yet.

    Args:
        folder: New or empty; with ``resume``, the folder of a run, possibly one that was killed while it started.
        resume: Whether to resume a run.

    Raises:
        OutputError: If there is already a run, no run to resume, or the folder cannot be created.
    """
    try:
        if not resume:
            _require_empty(folder)
            folder.mkdir(parents=True, exist_ok=True)
        elif not find_checkpoints(folder, "step"):
            _require_unstarted(folder)
    except OSError as error:
        raise OutputError(f"run_dir: cannot write the folder {folder} ({error.strerror}).") from error


def start_run(folder: Path, metadata: Mapping[str, Any], resume: bool) -> None:
    """Store the configuration of a new run in the folder from :func:`prepare_folder`.

    Raises:
        OutputError: If there is already a run, or the folder cannot be written.
    """
    try:
        if not resume:
            _require_empty(folder)  # again: another process may have had the lock and started one
        for leftover in folder.glob(f"{TEMPORARY_PREFIX}{CONFIG}*"):
            discard(leftover)  # of a run that was killed here
        replace_file(folder / CONFIG, to_json(dict(metadata)))
    except OSError as error:
        raise OutputError(f"run_dir: cannot write the folder {folder} ({error.strerror}).") from error


def continue_run(
    folder: Path,
    parts: tuple[nn.Module, torch.optim.Optimizer, Average, Scaler],
    options: TrainOptions,
    data: str,
) -> TrainState | None:
    """Load the newest checkpoint into the parts of a run and torch's random number generators.

    Args:
        folder: Folder of the run.
        parts: Model, optimiser, average of the weights and loss scaler.
        options: Options of the run.
        data: Fingerprint of the training data.

    Returns:
        State of the run, or None if it was killed before its first checkpoint.

    Raises:
        OutputError: If the folder contains no run or cannot be read.
        CheckpointError: If the checkpoint is damaged, or was made with another model, options or data.
    """
    try:
        found = find_checkpoints(folder, "step")
        if not found:
            _require_unstarted(folder)
            return None
    except OSError as error:
        raise OutputError(f"run_dir: cannot read the folder {folder} ({error.strerror}).") from error
    tensors, facts = read_checkpoint(found[0])
    remove_leftovers(folder)
    model, optimizer, average, scaler = parts
    with reading(found[0] / "state.json"):
        _require_same_run(found[0], facts, options, data)
        # Processor time was not recorded by older versions.
        known = facts["state"]
        state = checked_state({"cpu_seconds": None} | known if isinstance(known, dict) else known)
    load_weights(model, tensors["model"], found[0])
    with reading(found[0] / "training.safetensors"):
        restore_training(model, optimizer, tensors["training"])
        scaler.restore(tensors["training"])
    with reading(found[0] / "average.safetensors"):
        average.restore(tensors.get("average", {}))
    return state


def is_finished(folder: Path, options: TrainOptions) -> bool:
    """Whether the run in a folder has used up the epochs, steps or patience of these options; False if there is none.

    Raises:
        CheckpointError: If the newest checkpoint is damaged.
    """
    found = find_checkpoints(folder, "step")
    if not found:
        return False
    _, facts = read_checkpoint(found[0])
    with reading(found[0] / "state.json"):
        return checked_state(facts["state"]).finished(options)


def _require_empty(folder: Path) -> None:
    if folder.exists() and any(path.name != LOCK for path in folder.iterdir()):
        raise OutputError(
            f"run_dir: expected a new or empty folder, got {folder} with files in it; "
            "continue its run with resume=True, or name another folder."
        )


def _require_unstarted(folder: Path) -> None:
    if not folder.is_dir():
        raise OutputError(
            f"run_dir: expected the folder of a run to resume, got {folder}, which does not exist."
        )
    ours = {CONFIG, METRICS, "checkpoints", LOCK}
    names = [p.name for p in folder.iterdir() if not p.name.startswith(TEMPORARY_PREFIX)]
    metrics = folder / METRICS
    if not ours.issuperset(names) or (metrics.exists() and metrics.stat().st_size):
        raise OutputError(f"run_dir: expected a run with a checkpoint to resume, got none in {folder}.")


def _require_same_run(source: Path, facts: Mapping[str, Any], options: TrainOptions, data: str) -> None:
    if facts.get("format") != FORMAT:
        raise CheckpointError(
            f"checkpoint: expected format {FORMAT}, got {facts.get('format')!r} in {source}; "
            "it was saved by another version of diabat."
        )
    # Options that are missing in a checkpoint of an older version had their default values.
    before = {field.name: field.default for field in fields(options)} | facts["options"]
    for name, value in asdict(options).items():
        value = list(value) if isinstance(value, tuple) else value
        was = list(before[name]) if isinstance(before[name], tuple) else before[name]
        # The warm-up is a share of all steps, so that the number of epochs is a part of it.
        free = name in FREE_ON_RESUME and not (name == "max_epochs" and options.warmup)
        if not free and was != value:
            raise CheckpointError(
                f"{name}: expected {was!r} as in {source}, got {value!r}; a resumed run keeps its options."
            )
    if facts["data"] != data:
        raise CheckpointError(
            f"task: expected the training data of {source} (sha256 {facts['data']}), "
            f"got other data (sha256 {data})."
        )
