"""Checkpoints, one safetensors file each, and the lock of the folder in which they lie; nothing is pickled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diabat import files
from diabat.checks import escaped
from diabat.compute.memory import require_file_memory
from diabat.files import parse_tensor_file, read_file, replace_file, tensor_file

if TYPE_CHECKING:
    from torch import Tensor

LOCK = ".lock"
"""Name of the lock, an empty file."""


class TrainingError(RuntimeError):
    """The run cannot continue; the message is one sentence that tells what to do."""

    def __str__(self) -> str:
        return escaped(super().__str__())


class OutputError(TrainingError):
    """The run folder is locked, cannot be written, contains another run, or contains no run to resume."""


class CheckpointError(TrainingError):
    """A checkpoint is missing, damaged, of another run, or could not be saved."""


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors, and facts as metadata, atomically; a CheckpointError leaves what was there intact."""
    try:
        replace_file(path, tensor_file(tensors, facts))
    except OSError as error:
        kept = "the one before is intact" if path.exists() else "there is none before it"
        raise CheckpointError(f"checkpoint: cannot save {path} ({error.strerror}); {kept}.") from error


def read_checkpoint(path: Path, *, follow: bool = False) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the facts of a checkpoint; a CheckpointError names a file that is missing or damaged.

    ``follow``: whether it may be a link, as the files in the cache of the Hugging Face Hub are.
    """
    with reading(path):
        # At once: safe_open opens the path several times, and a training may replace the file meanwhile.
        return parse_tensor_file(read_file(path, follow=follow, check=require_file_memory))


def reading(path: Path) -> AbstractContextManager[None]:
    """Turn every error of the system, of safetensors or about a value in the block into a CheckpointError."""
    return files.reading(path, "checkpoint", CheckpointError)


@contextmanager
def locked(folder: Path, argument: str = "run_dir") -> Iterator[None]:
    """Lock an existing folder, which ``argument`` names, while the block runs; readers need no lock.

    The system releases the lock when the process ends, also by kill -9.  OutputError if another run has it.
    """
    import filelock

    lock = filelock.FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise OutputError(f"{argument}: run folder {folder} is locked by another process.") from None
    except OSError as error:
        raise OutputError(f"{argument}: cannot lock the folder {folder} ({error.strerror}).") from error
    try:
        yield
    finally:
        with suppress(OSError):  # the run is saved, and the lock ends with the process
            lock.release()
