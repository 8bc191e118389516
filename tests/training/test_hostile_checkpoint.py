"""Checkpoints that somebody changed and sealed again: every checksum is right, what they hold is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from diabat.files import digest, seal
from diabat.training import CheckpointError, load_model
from diabat.training.checkpoint import find_checkpoints, read_checkpoint
from fuzz.tiny import tiny_train

Tensors = dict[str, Tensor]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    tiny_train(tmp_path / "run", max_epochs=1, ema_decay=0.5)
    return tmp_path / "run"


def newest(run: Path) -> Path:
    return find_checkpoints(run, "step")[0]


def reseal(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    facts = json.loads((folder / "state.json").read_bytes())
    del facts["sha256"]
    change(facts)
    (folder / "state.json").write_bytes(seal(facts))


def change_tensors(folder: Path, name: str, change: Callable[[Tensors], Any]) -> None:
    path = folder / f"{name}.safetensors"
    tensors = safetensors.torch.load(path.read_bytes())
    change(tensors)
    replace_bytes(folder, name, safetensors.torch.save(tensors))


def replace_bytes(folder: Path, name: str, content: bytes) -> None:
    (folder / f"{name}.safetensors").write_bytes(content)
    listed = {"bytes": len(content), "sha256": digest(content)}
    reseal(folder, lambda facts: facts["files"].update({f"{name}.safetensors": listed}))


def first(tensors: Tensors, start: str) -> str:
    return next(name for name in sorted(tensors) if name.startswith(start) and tensors[name].ndim)


def cut(start: str) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.update({first(tensors, start): torch.zeros(1)})


def other_type(start: str) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.update({(n := first(tensors, start)): tensors[n].double()})


TRAINING: dict[str, tuple[Callable[[Tensors], Any], str]] = {
    # Without the check the fused AdamW writes beyond the end of these, and the process dies.
    "first moments": (
        cut("optimizer.exp_avg."),
        r"optimizer\.exp_avg\..*: expected torch.float32 \[.*, got .* \[1\]",
    ),
    "second moments": (cut("optimizer.exp_avg_sq."), r"optimizer\.exp_avg_sq\..*: expected torch.float32"),
    "type": (other_type("optimizer.exp_avg."), r"expected torch.float32 .*, got torch.float64"),
    "steps": (
        lambda t: t.update({n: torch.zeros(3) for n in t if n.startswith("optimizer.step.")}),
        r"optimizer\.step\..*: expected torch.float32 \[\], got torch.float32 \[3\]",
    ),
    "a missing moment": (
        lambda t: t.pop(first(t, "optimizer.exp_avg.")),
        r"expected the entry 'optimizer\.exp_avg\..*', got none",
    ),
    "no generator": (lambda t: t.pop("rng.cpu"), r"expected the entry 'rng\.cpu', got none"),
    "another generator": (
        lambda t: t.update({"rng.cpu": torch.zeros(3)}),
        r"rng\.cpu: expected torch.uint8 \[\d+\], got torch.float32 \[3\]",
    ),
    "a broken generator": (
        lambda t: t.update({"rng.cpu": torch.full_like(t["rng.cpu"], 255)}),
        "rng: expected the state of a generator",
    ),
}


@pytest.mark.parametrize("name", TRAINING)
def test_training_state_of_another_form_is_refused(name: str, run: Path) -> None:
    change, message = TRAINING[name]
    change_tensors(newest(run), "training", change)
    with pytest.raises(CheckpointError, match=rf"training\.safetensors is damaged: .*{message}") as caught:
        tiny_train(run, resume=True, ema_decay=0.5)
    assert "to go on from the previous checkpoint" in str(caught.value)


@pytest.mark.parametrize("change", [cut(""), lambda tensors: tensors.pop(first(tensors, ""))])
def test_averages_of_another_form_are_refused(change: Any, run: Path) -> None:
    change_tensors(newest(run), "average", change)
    with pytest.raises(CheckpointError, match=r"average\.safetensors is damaged: .*expected .*, got"):
        tiny_train(run, resume=True, ema_decay=0.5)


@pytest.mark.parametrize("change", [cut(""), other_type(""), lambda tensors: tensors.pop(first(tensors, ""))])
def test_weights_of_another_form_are_refused(change: Any, run: Path) -> None:
    change_tensors(newest(run), "model", change)
    with pytest.raises(CheckpointError, match=r"is of another model: .*: expected .*, got"):
        tiny_train(run, resume=True, ema_decay=0.5)


@pytest.mark.parametrize(
    "content", [b"", b"\x08" + b"\0" * 7, b"\xff" * 8, (2).to_bytes(8, "little") + b"{}x", b"\x80\x04N."]
)
def test_files_without_valid_tensors_are_refused(content: bytes, run: Path) -> None:
    replace_bytes(newest(run), "training", content)
    with pytest.raises(
        CheckpointError, match=r"training\.safetensors is damaged: expected safetensors, got '"
    ):
        read_checkpoint(newest(run))


STATES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no state": (lambda f: f.pop("state"), "expected the entry 'state', got none"),
    "a state that is none": (lambda f: f.update(state=[1]), r"state: expected step, epoch, .*, got \[1\]"),
    "an unknown entry": (lambda f: f["state"].update(more=1), "state: expected step, epoch"),
    "text": (lambda f: f["state"].update(step="9"), "state: expected a count as step, got '9'"),
    "a negative count": (lambda f: f["state"].update(metrics_bytes=-1), "a count as metrics_bytes, got -1"),
    "a part of a step": (lambda f: f["state"].update(batch=0.5), "a count as batch, got 0.5"),
    "no loss": (lambda f: f["state"].update(loss_sum=None), "a finite number as loss_sum, got None"),
    "no options": (lambda f: f.pop("options"), "expected the entry 'options', got none"),
    "no data": (lambda f: f.pop("data"), "expected the entry 'data', got none"),
    "no files": (lambda f: f.pop("files"), r"expected files with model\.safetensors among them, got None"),
    "files elsewhere": (
        lambda f: f["files"].update({"../../../x.safetensors": {"bytes": 1, "sha256": ""}}),
        r"expected names of safetensors files in the folder, got '\.\./",
    ),
    "a file without a size": (
        lambda f: f["files"].update({"model.safetensors": {}}),
        r"expected bytes and sha256 of model\.safetensors",
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_facts_of_another_form_are_refused(name: str, run: Path) -> None:
    change, message = STATES[name]
    reseal(newest(run), change)
    with pytest.raises(CheckpointError, match=rf"state\.json is damaged: .*{message}"):
        tiny_train(run, resume=True, ema_decay=0.5)


def test_a_place_beyond_the_epoch_is_refused(run: Path) -> None:
    """Such a run would never come to the end of its epoch."""
    reseal(newest(run), lambda facts: facts["state"].update(batch=3))
    with pytest.raises(
        CheckpointError, match=r"expected fewer than 3 batches of the current epoch .* got 3 in"
    ):
        tiny_train(run, resume=True, ema_decay=0.5, max_epochs=2)


def test_a_large_file_is_refused_unread(run: Path) -> None:
    (best,) = find_checkpoints(run, "best")
    with (best / "model.safetensors").open("wb") as file:
        file.truncate(1 << 40)  # takes no room, and fits into no memory
    with pytest.raises(CheckpointError, match=r"expected \d+ bytes, got 1099511627776"):
        load_model(run)
