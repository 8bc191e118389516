"""Checkpoints: what comes back, and what is refused."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from diabat.checkpoints import read_checkpoint, save_checkpoint
from diabat.files import create_file, replace_file
from diabat.lab.training import CheckpointError, load_model
from diabat.lab.training.folder import BEST, LATEST
from fuzz.tiny import tiny_task, tiny_train

Tensors = dict[str, Tensor]
Facts = dict[str, Any]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One epoch of three steps."""
    folder = tmp_path_factory.mktemp("original") / "run"
    tiny_train(folder, max_epochs=1)
    return folder


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be damaged."""
    return Path(shutil.copytree(original, tmp_path / "run"))


def resume(run: Path, **changes: Any) -> None:
    tiny_train(run, resume=True, **{"max_epochs": 2, **changes})


def test_tensors_and_facts_come_back_bit_for_bit(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 2), "step/a": torch.arange(4), "b": torch.tensor(0.1).double()}
    facts = {"loss": 0.1 + 0.2, "none": None, "state": {"step": 7}}
    for _ in range(2):  # over one that is there
        save_checkpoint(tmp_path / "x", tensors, facts)
    back, read = read_checkpoint(tmp_path / "x")
    assert read == facts
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[k], t) and back[k].dtype == t.dtype for k, t in tensors.items())


def test_weights_have_the_names_of_the_state_dict(run: Path) -> None:
    best = safetensors.torch.load_file(run / BEST)
    latest, _ = read_checkpoint(run / LATEST)
    weights = load_model(run, "latest")
    assert best.keys() == weights.keys() == load_model(run).keys()
    assert {name for name in latest if "/" not in name} == weights.keys()
    assert {f"exp_avg/{name}" for name in weights} <= latest.keys()


def changed(path: Path, change: Callable[[Tensors, Facts], Any]) -> None:
    """Write the checkpoint again with other tensors or facts."""
    tensors, facts = read_checkpoint(path)
    change(tensors, facts)
    save_checkpoint(path, tensors, facts)


def put(start: str, make: Callable[[Tensor], Tensor] | None) -> Callable[[Tensors, Facts], Any]:
    """Replace the first tensor whose name begins so, or remove it."""

    def change(tensors: Tensors, facts: Facts) -> None:
        name = next(name for name in sorted(tensors) if name.startswith(start) and tensors[name].ndim)
        tensor = tensors.pop(name)
        if make is not None:
            tensors[name] = make(tensor)

    return change


def state(**values: Any) -> Callable[[Tensors, Facts], Any]:
    return lambda tensors, facts: facts["state"].update(values)


def short(tensor: Tensor) -> Tensor:
    return torch.zeros(1)


DAMAGE: dict[str, tuple[Callable[[Tensors, Facts], Any], str]] = {
    "no generator": (put("rng/cpu", None), "expected the entry 'rng/cpu', got none"),
    "another generator": (put("rng/cpu", short), "rng: expected the state of a generator"),
    "a broken generator": (put("rng/cpu", lambda t: torch.full_like(t, 255)), "rng: expected the state"),
    "no state": (lambda _, f: f.pop("state"), "expected the entry 'state', got none"),
    "a list": (lambda _, f: f.update(state=[1]), "TrainState|argument after"),
    "an unknown entry": (state(more=1), "unexpected keyword argument 'more'"),
    "text": (state(step="9"), "state: expected a number >= 0 as step, got '9'"),
    "a negative count": (state(metrics_bytes=-1), "a number >= 0 as metrics_bytes, got -1"),
    "a part of a step": (state(batch=0.5), "a number >= 0 as batch, got 0.5"),
    "no loss": (state(loss_sum=None), "a number >= 0 as loss_sum, got None"),
    # Such a run would never come to the end of its epoch.
    "a place beyond the epoch": (state(batch=3), "expected fewer than 3 batches of an epoch, got 3"),
    "no options": (lambda _, f: f.pop("options"), "expected the entry 'options', got none"),
    "no data": (lambda _, f: f.pop("data"), "expected the entry 'data', got none"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_content_of_another_form_is_refused(name: str, run: Path) -> None:
    change, message = DAMAGE[name]
    changed(run / LATEST, change)
    with pytest.raises(CheckpointError, match=rf"latest\.safetensors is damaged: .*({message})"):
        resume(run)


# Weights; moments, beyond whose end the fused AdamW would write without the check.
@pytest.mark.parametrize("start", ["blocks.", "exp_avg/"])
@pytest.mark.parametrize(("make", "message"), [
    (short, r"expected float32 \[.*, got float32 \[1\]"),
    (Tensor.double, r"expected float32 (\[.*\]), got float64 \1"),
    (None, r"expected float32 \[.*, got none"),
])  # fmt: skip
def test_tensors_of_another_form_are_refused(start: str, make: Any, message: str, run: Path) -> None:
    changed(run / LATEST, put(start, make))
    with pytest.raises(CheckpointError, match=rf"latest.* is of another model: {start}.*: {message}\.$"):
        resume(run)


def test_a_finished_run_without_a_validation_is_refused(run: Path) -> None:
    changed(run / LATEST, state(best_loss=None, best_metric=None, best_step=None))
    with pytest.raises(CheckpointError, match="damaged: expected a run with a validation, got none"):
        resume(run, max_epochs=1)


@pytest.mark.parametrize("content", [b"", b"\x08" + b"\0" * 7, b"\xff" * 8, b"\x80\x04N.", None])
def test_files_of_another_form_or_length_are_refused(content: bytes | None, run: Path) -> None:
    path = run / LATEST
    whole = path.read_bytes()
    for damaged in (content,) if content is not None else (whole[:-1], whole + b"x"):
        path.write_bytes(damaged)
        for use in (lambda: load_model(run, "latest"), lambda: resume(run)):
            with pytest.raises(
                CheckpointError, match=r"checkpoint: .*latest\.safetensors is (damaged: |not a )\w.*\w\.$"
            ):
                use()
    assert load_model(run)


def test_a_file_without_facts_is_refused(run: Path) -> None:
    (run / LATEST).write_bytes(safetensors.torch.save(load_model(run)))
    with pytest.raises(CheckpointError, match="expected the entry '__metadata__', got none"):
        resume(run)


def test_a_large_file_is_refused_unread(run: Path) -> None:
    with (run / BEST).open("r+b") as file:
        file.truncate(1 << 40)  # takes no room, and fits into no memory
    with pytest.raises(CheckpointError, match="is damaged"):
        load_model(run)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"checkpoint: expected the file .*best\.safetensors, got none\.$"
    ):
        load_model(tmp_path)
    with pytest.raises(ValueError, match="which: expected one of best, latest, got 'worst'"):
        load_model(tmp_path, "worst")  # type: ignore[arg-type]  # on purpose


def test_metrics_shorter_than_the_checkpoint_says_are_damage(run: Path) -> None:
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(
        CheckpointError, match=r"metrics.jsonl is damaged: expected at least \d+ bytes, got 0"
    ):
        resume(run)


@pytest.mark.parametrize("call", ["fsync", "replace", "write"])
def test_a_file_is_replaced_whole_or_not_at_all(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_file(tmp_path / "a", b"old")

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, broken)
        with pytest.raises(OSError, match="Input/output error"):
            replace_file(tmp_path / "a", b"new")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a": b"old"}
    replace_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_checkpoint_before_is_named_only_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "latest.safetensors"
    for said in ("there is none before it", "the one before is intact"):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", broken)
            with pytest.raises(
                CheckpointError, match=rf"cannot save .* \(No space left on device\); {said}\.$"
            ):
                save_checkpoint(path, {"a": torch.zeros(1)}, {})
        save_checkpoint(path, {"a": torch.zeros(1)}, {})


@pytest.mark.parametrize(("name", "value"), [("seed", 4), ("batch_size", 8), ("learning_rate", 0.5)])
def test_other_options_are_refused(run: Path, name: str, value: Any) -> None:
    with pytest.raises(
        CheckpointError, match=rf"{name}: expected .* as in .*latest.*, got {value}; a resumed"
    ):
        resume(run, **{name: value})


def test_other_data_are_refused(run: Path) -> None:
    with pytest.raises(CheckpointError, match=r"task: expected the training data of .*latest.* got other"):
        resume(run, task=tiny_task(num_train=41))
