"""Runs with a damaged file: loaded and resumed, or refused with the name of the file.

A change of a sealed file must be detected.  A resealed file has new checksums for the changed content, as an attacker
or faulty memory would produce: then any answer is correct, but a crash is not.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from diabat.files import digest, seal
from diabat.training import load_model
from fuzz.dice import Dice
from fuzz.files.mutations import damaged, other_header, tampered
from fuzz.outcome import REFUSALS, Wrong, demand, refusal_flaw
from fuzz.tiny import tiny_train

_FILES = ("model.safetensors", "training.safetensors", "state.json")


@cache
def original() -> Path:
    """The folder of a run of three epochs."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-run-")) / "run"
    tiny_train(folder)
    return folder


def checkpoint(dice: Dice, folder: Path) -> None:
    """One file of the newest checkpoint, changed or resealed; then the run goes on for an epoch."""
    run = folder / "run"
    shutil.copytree(original(), run)
    newest = sorted((run / "checkpoints").glob("step-*"))[-1]
    path = newest / dice.pick(_FILES)
    before = path.read_bytes()
    resealed = dice.chance(0.7)
    path.write_bytes(_changed(dice, path, before, structured=resealed or dice.chance(0.3)))
    if resealed:
        _reseal(newest, state=path.name != "state.json")
    # state.json is sealed over what it says, not over its bytes, and some of its changes are sealed by us.
    altered = path.suffix == ".safetensors" and path.read_bytes() != before
    _use(run, str(newest), must_refuse=altered and not resealed)


def record(dice: Dice, folder: Path) -> None:
    """The metrics or the configuration of a run, changed; then the run goes on for an epoch."""
    run = folder / "run"
    shutil.copytree(original(), run)
    path = run / dice.pick(["metrics.jsonl", "config.json"])
    path.write_bytes(damaged(dice, path.read_bytes(), [path.read_bytes()]))
    _use(run, str(run), must_refuse=False)


def _use(run: Path, name: str, *, must_refuse: bool) -> None:
    refused = None
    for use in (lambda: load_model(run, "latest"), lambda: tiny_train(run, resume=True, max_epochs=4)):
        try:
            use()
        except REFUSALS as error:
            if refusal_flaw(error):
                raise
            # What trains on is refused by its step, options and data by their names.
            names = (
                name,
                f" in {run}.",
                "metrics.jsonl",
                " as in ",
                "step ",
                "expected the training data of",
            )
            demand(any(word in str(error) for word in names), f"refusal without a name: {error}")
            refused = error
    if refused is not None:
        raise refused
    if must_refuse:
        raise Wrong(f"accepted: a file of {name} that is not what was sealed")


def _changed(dice: Dice, path: Path, content: bytes, *, structured: bool) -> bytes:
    if not structured or dice.chance(0.3):
        return damaged(dice, content, [other.read_bytes() for other in path.parent.iterdir()])
    if path.suffix == ".json":
        document = json.loads(content)
        document.pop("sha256")
        found = tampered(dice, document)
        try:
            return seal(found) if isinstance(found, dict) else json.dumps(found).encode()
        except (ValueError, TypeError):  # NaN, which JSON does not hold
            return json.dumps(found).encode()
    if dice.chance(0.5):
        return other_header(dice, content)
    return _other_tensors(dice, content)


def _other_tensors(dice: Dice, content: bytes) -> bytes:
    import safetensors.torch

    tensors: dict[str, Any] = safetensors.torch.load(content)
    name = dice.pick(sorted(tensors))
    tensor = tensors.pop(name)
    changes = {
        "missing": None,
        "other type": tensor.to(dice.pick([torch.float64, torch.int32, torch.uint8, torch.bfloat16])),
        "other shape": torch.zeros(dice.pick([(), (0,), (1,), (3,), (2, 2), (*tensor.shape, 1)])),
        "nan": torch.full(tensor.shape, torch.nan),
        "huge": torch.full(tensor.shape, 3e38),
        "negative": -torch.ones(tensor.shape),
        "renamed": tensor,
    }
    kind = dice.pick(list(changes))
    changed = changes[kind]
    if changed is not None:
        tensors[name + "x" * (kind == "renamed")] = changed
    return safetensors.torch.save(tensors)


def _reseal(folder: Path, *, state: bool) -> None:
    """Make the checksums fit what the files hold now, where the list of files can still be read."""
    path = folder / "state.json"
    try:
        facts = json.loads(path.read_bytes())
        facts.pop("sha256", None)
        if state:
            for name in facts["files"]:
                content = (folder / name).read_bytes()
                facts["files"][name] = {"bytes": len(content), "sha256": digest(content)}
        path.write_bytes(seal(facts))
    except (ValueError, TypeError, LookupError, AttributeError, OSError, RecursionError):
        return
