"""Checkpoints: folders of safetensors files sealed by checksums; nothing is pickled.

    RUN/checkpoints/step-00001000/model.safetensors      weights
                                  training.safetensors   optimiser state and random number generators
                                  state.json             position in the data, options, size and sha256 of
                                  each file
    RUN/checkpoints/best-00000700/model.safetensors, state.json

A checkpoint is created by renaming a complete folder.  The two newest ``step`` folders and the newest ``best``
folder are kept; an old one is deleted after the new one is complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from diabat.checks import ArgumentError
from diabat.files import (
    TEMPORARY_PREFIX,
    create_folder,
    digest,
    discard,
    remove_folder,
    seal,
    unseal,
)
from diabat.samplers.state import weights_of
from diabat.training.errors import CheckpointError

Kind = Literal["step", "best"]
_KEPT: dict[Kind, int] = {"step": 2, "best": 1}
_STATE = "state.json"
_MODEL = "model"


def save_checkpoint(
    run_dir: Path,
    kind: Kind,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    facts: Mapping[str, Any],
) -> None:
    """Save a checkpoint and delete the old ones that it replaces.

    Args:
        run_dir: Folder of the run.
        kind: ``step`` to resume from, ``best`` for the weights of the lowest validation loss.
        step: Number of steps taken; part of the name.
        tensors: Tensors by name by file, e.g. {"model": {...}} for model.safetensors.
        facts: JSON object stored in state.json.

    Raises:
        CheckpointError: If writing fails; earlier checkpoints are then intact.
    """
    import safetensors.torch

    folder = _home(run_dir) / f"{kind}-{step:08d}"
    try:
        files = {
            f"{name}.safetensors": safetensors.torch.save({k: _for_file(t) for k, t in group.items()})
            for name, group in tensors.items()
        }
        sizes = {name: {"bytes": len(content), "sha256": digest(content)} for name, content in files.items()}
        files[_STATE] = seal({**facts, "step": step, "files": sizes})
        _home(run_dir).mkdir(exist_ok=True)
        # A resumed run repeats saves from before it was killed; an existing checkpoint is kept.
        if not _holds(folder, files):
            create_folder(folder, files)
        _tidy(run_dir, kind, folder)
    except OSError as error:
        raise CheckpointError(_refusal(run_dir, folder, error)) from error


def _for_file(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()


def _holds(folder: Path, files: Mapping[str, bytes]) -> bool:
    try:
        return all((folder / name).read_bytes() == content for name, content in files.items())
    except FileNotFoundError:
        return False


def _tidy(run_dir: Path, kind: Kind, newest: Path) -> None:
    others = [folder for folder in find_checkpoints(run_dir, kind) if folder != newest]
    for folder in others[_KEPT[kind] - 1 :]:
        remove_folder(folder)
    remove_leftovers(run_dir)


def remove_leftovers(run_dir: Path) -> None:
    """Delete what a killed run left half-written or half-deleted; errors are ignored."""
    with suppress(OSError):
        for leftover in _home(run_dir).glob(f"{TEMPORARY_PREFIX}*"):
            discard(leftover)


def _refusal(run_dir: Path, folder: Path, error: OSError) -> str:
    saved = find_checkpoints(run_dir, "step")
    intact = f"{saved[0]} is intact" if saved else "no checkpoint was saved before"
    return f"checkpoint: cannot save {folder} ({error.strerror}); {intact}."


def _home(run_dir: Path) -> Path:
    return run_dir / "checkpoints"


def find_checkpoints(run_dir: Path, kind: Kind) -> list[Path]:
    """List the complete checkpoints of a kind, newest first."""
    return sorted(_home(run_dir).glob(f"{kind}-*"), reverse=True)


def read_checkpoint(folder: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Read a checkpoint and verify every checksum.

    Returns:
        Tensors by name by file, as given to :func:`save_checkpoint`, and the facts.

    Raises:
        CheckpointError: If a file is missing, truncated or altered; the message names the file, expected and actual
            content, and the previous checkpoint if there is one.  No other checkpoint is loaded instead.
    """
    import safetensors.torch

    with reading(folder / _STATE):
        facts = unseal((folder / _STATE).read_bytes())
        files = _listed(facts)
    tensors = {}
    for name, expected in files.items():
        path = folder / name
        with reading(path):
            content = _as_listed(path, expected)
            try:
                found = safetensors.torch.load(content)
            except Exception as error:  # of safetensors' own types, or whatever a wrong header makes of it
                raise ValueError(
                    f"expected safetensors, got '{' '.join(str(error).split())[:120]}'"
                ) from None
        tensors[path.stem] = {_name_today(name): tensor for name, tensor in found.items()}
    return tensors, facts


def _name_today(name: str) -> str:
    """Current name of a tensor; in earlier versions the angles of an anneal belonged to the layer."""
    former = "schedule_angles.0"
    return f"{name.removesuffix(former)}sampler.schedule_angles" if name.endswith(former) else name


def _listed(facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The files in the folder of a checkpoint, with their expected sizes and checksums."""
    files = facts.get("files")
    if not isinstance(files, dict) or f"{_MODEL}.safetensors" not in files:
        raise ValueError(f"expected files with {_MODEL}.safetensors among them, got {files!r:.120}")
    for name, expected in files.items():
        if Path(name).name != name or Path(name).suffix != ".safetensors":
            raise ValueError(f"expected names of safetensors files in the folder, got {name!r:.60}")
        if not isinstance(expected, dict) or expected.keys() != {"bytes", "sha256"}:
            raise ValueError(f"expected bytes and sha256 of {name}, got {expected!r:.60}")
    return files


def _as_listed(path: Path, expected: Mapping[str, Any]) -> bytes:
    size = path.stat().st_size
    if size != expected["bytes"]:  # before it is read: it may be of any size
        raise ValueError(f"expected {expected['bytes']} bytes, got {size}")
    content = path.read_bytes()
    if digest(content) != expected["sha256"]:
        raise ValueError(f"expected sha256 {expected['sha256']}, got {digest(content)}")
    return content


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Report any error that a damaged file of a checkpoint causes in one sentence.

    Raises:
        CheckpointError: For every OSError, ValueError, TypeError or KeyError in the block.
    """
    try:
        yield
    except OSError as error:
        raise CheckpointError(_damage(path, f"expected a readable file, got '{error.strerror}'")) from error
    except KeyError as error:
        raise CheckpointError(_damage(path, f"expected the entry {error}, got none")) from error
    except (TypeError, ValueError, LookupError) as error:
        raise CheckpointError(_damage(path, " ".join(str(error).split()).rstrip("."))) from error


def _damage(path: Path, problem: str) -> str:
    folder = path.parent
    kind: Kind = "best" if folder.name.startswith("best") else "step"
    older = [other for other in find_checkpoints(folder.parent.parent, kind) if other.name < folder.name]
    way_out = f"; to go on from the previous checkpoint {older[0]}, delete {folder}" if older else ""
    return f"checkpoint: {path} is damaged: {problem}{way_out}."


def load_model(run_dir: str | Path, which: Literal["best", "latest"] = "best") -> dict[str, Tensor]:
    """Read the weights of a run, for ``model.load_state_dict``.

    Args:
        run_dir: Folder of the run.
        which: ``best`` for the lowest validation loss, ``latest`` for the newest checkpoint.

    Raises:
        CheckpointError: If there is no such checkpoint or it is damaged.
        ValueError: If ``which`` is neither.
    """
    kinds: dict[str, Kind] = {"best": "best", "latest": "step"}
    if which not in kinds:
        raise ArgumentError("which", f"expected 'best' or 'latest', got {which!r}.")
    found = find_checkpoints(Path(run_dir), kinds[which])
    if not found:
        raise CheckpointError(f"run_dir: expected a run with a {which} checkpoint, got none in {run_dir}.")
    return read_checkpoint(found[0])[0][_MODEL]


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], source: Path) -> None:
    """Copy weights into a model of the same structure.

    Raises:
        CheckpointError: If names, shapes or types differ; the message names the first difference.
    """
    own = weights_of(model)
    for name in sorted(own.keys() | weights.keys()):
        mine, theirs = own.get(name), weights.get(name)
        expected, got = _shape(mine), _shape(theirs)
        if expected == got and mine is not None and theirs is not None:
            expected, got = str(mine.dtype), str(theirs.dtype)
        if expected != got:
            raise CheckpointError(
                f"checkpoint: {source} is of another model: {name}: expected {expected}, got {got}."
            )
    model.load_state_dict(dict(weights))


def _shape(tensor: Tensor | None) -> str:
    return "no such weight" if tensor is None else str(list(tensor.shape))
