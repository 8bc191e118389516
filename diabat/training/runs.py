"""The run folder: made for a new run, found again for a resumed one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from diabat.files import TEMPORARY_PREFIX, discard, replace_file, to_json
from diabat.training.average import Average
from diabat.training.checkpoint import (
    find_checkpoints,
    load_weights,
    read_checkpoint,
    reading,
    remove_leftovers,
)
from diabat.training.errors import CheckpointError, OutputError
from diabat.training.lock import LOCK
from diabat.training.options import TrainOptions
from diabat.training.precision import Scaler
from diabat.training.report import METRICS
from diabat.training.state import TrainState, checked_state, restore_training

CONFIG = "config.json"
FORMAT = 1
"""Version of what a ``step`` checkpoint holds."""

FREE_ON_RESUME = frozenset({"max_epochs", "max_steps", "patience", "checkpoint_every", "tensorboard"})
"""Options that may change when a run is resumed, because the steps taken so far do not depend on them."""


def prepare_folder(folder: Path, resume: bool) -> None:
    """Make the folder of a new run, or see that a run can be resumed there; nothing is put into it yet.

    Args:
        folder: Must be new or empty, unless ``resume``: then it holds a run, or one that was killed while it
            started.
        resume: Whether a run should be there.

    Raises:
        OutputError: If there is a run already, none to resume, or the folder cannot be made.
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
    """Store the configuration of a new run in its folder, as :func:`prepare_folder` made it.

    Raises:
        OutputError: If there is a run already, or the folder cannot be written.
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
        Where the run stands, or None if it was killed before it had a checkpoint.

    Raises:
        OutputError: If the folder holds no run or cannot be read.
        CheckpointError: If the checkpoint is damaged, or was made with another model, other options or other
            data.
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
        # The processor time of a run that an older version began is not known.
        known = facts["state"]
        state = checked_state({"cpu_seconds": None} | known if isinstance(known, dict) else known)
    load_weights(model, tensors["model"], found[0])
    with reading(found[0] / "training.safetensors"):
        restore_training(model, optimizer, tensors["training"])
        scaler.restore(tensors["training"])
    with reading(found[0] / "average.safetensors"):
        average.restore(tensors.get("average", {}))
    return state


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
    # Options that a checkpoint of an older version does not know had their defaults.
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
