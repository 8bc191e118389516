"""Runs with a damaged file: loaded and resumed, or refused with the name of the file.

A checkpoint has no checksum: a change of its numbers may give any answer, but no crash.  A file that is too short or
too long must be refused.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from diabat.training import load_model
from diabat.training.folder import LATEST
from fuzz.dice import Dice
from fuzz.files.mutations import damaged, other_header, tampered
from fuzz.outcome import REFUSALS, Wrong, demand, refusal_flaw
from fuzz.tiny import tiny_train


@cache
def original() -> Path:
    """The folder of a run of three epochs."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-run-")) / "run"
    tiny_train(folder)
    return folder


def checkpoint(dice: Dice, folder: Path) -> None:
    """The checkpoint of a run, changed; then the run goes on for an epoch."""
    run = folder / "run"
    shutil.copytree(original(), run)
    path = run / LATEST
    before = path.read_bytes()
    how = dice.weighted({"bytes": 2, "header": 1, "facts": 3, "tensors": 3, "length": 1})
    if how == "length":
        path.write_bytes(before[:-1] if dice.chance(0.5) else before + b"x")
    else:
        path.write_bytes(_changed(dice, before, how))
    _use(run, str(path), must_refuse=how == "length")


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
        raise Wrong(f"accepted: {name}, which is too short or too long")


def _changed(dice: Dice, content: bytes, how: str) -> bytes:
    import safetensors.torch

    if how == "bytes":
        return damaged(dice, content, [content])
    if how == "header":
        return other_header(dice, content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    facts: str = header["__metadata__"]["facts"]
    tensors = safetensors.torch.load(content)
    if how == "facts":
        facts = json.dumps(tampered(dice, json.loads(facts)))
    else:
        tensors = _other_tensors(dice, tensors)
    return safetensors.torch.save(tensors, {"facts": facts})


def _other_tensors(dice: Dice, tensors: dict[str, Any]) -> dict[str, Any]:
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
    return tensors
