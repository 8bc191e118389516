from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from run_checks import assert_same_run, metrics

from diabat.files import create_folder, open_file, replace_file, seal, unseal
from diabat.training import CheckpointError, OutputError, load_model
from diabat.training.checkpoint import find_checkpoints, read_checkpoint, save_checkpoint
from fuzz.tiny import tiny_train


@pytest.fixture
def run(tmp_path: Path) -> Path:
    tiny_train(tmp_path / "run")
    return tmp_path / "run"


def test_two_newest_step_checkpoints_and_one_best_are_kept(run: Path) -> None:
    assert [p.name for p in find_checkpoints(run, "step")] == ["step-00000009", "step-00000008"]
    assert len(find_checkpoints(run, "best")) == 1
    assert sorted(p.name for p in run.iterdir()) == ["checkpoints", "config.json", "metrics.jsonl"]


def test_tensors_and_facts_come_back_bit_for_bit(tmp_path: Path) -> None:
    tensors = {
        "model": {"a": torch.randn(3, 2), "b": torch.arange(4)},
        "training": {"c": torch.tensor(0.1).double()},
    }
    facts = {"loss": 0.1 + 0.2, "none": None}
    save_checkpoint(tmp_path, "step", 7, tensors, facts)
    (folder,) = find_checkpoints(tmp_path, "step")
    back, read = read_checkpoint(folder)
    assert {file: set(group) for file, group in back.items()} == {"model": {"a", "b"}, "training": {"c"}}
    assert all(
        torch.equal(back[f][k], t) and back[f][k].dtype == t.dtype
        for f, g in tensors.items()
        for k, t in g.items()
    )
    assert (read["loss"], read["none"], read["step"]) == (0.1 + 0.2, None, 7)


def test_nothing_is_pickled(run: Path) -> None:
    assert {p.suffix for p in run.rglob("*") if p.is_file()} == {".safetensors", ".json", ".jsonl"}


@pytest.mark.parametrize("name", ["model.safetensors", "training.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["truncated", "altered", "missing", "empty"])
def test_damage_is_named_and_nothing_else_is_loaded(run: Path, name: str, damage: str) -> None:
    newest, previous = find_checkpoints(run, "step")
    path = newest / name
    content = path.read_bytes()
    got = {
        "truncated": content[:-9],
        "altered": content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
        "empty": b"",
    }
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(got[damage])
    with pytest.raises(
        CheckpointError, match=rf"checkpoint: .*{name} is damaged: expected .*, got .*"
    ) as caught:
        tiny_train(run, resume=True, max_epochs=4)
    assert f"previous checkpoint {previous}, delete {newest}" in str(caught.value)
    with pytest.raises(CheckpointError, match="is damaged"):
        load_model(run, "latest")


def test_the_way_out_that_the_message_names_works(run: Path, tmp_path: Path) -> None:
    newest, _ = find_checkpoints(run, "step")
    (newest / "model.safetensors").unlink()
    for path in newest.iterdir():
        path.unlink()
    newest.rmdir()
    tiny_train(run, resume=True)
    tiny_train(tmp_path / "straight")
    assert_same_run(run, tmp_path / "straight")


def test_damaged_only_checkpoint_names_no_previous_one(run: Path) -> None:
    (best,) = find_checkpoints(run, "best")
    (best / "model.safetensors").write_bytes(b"x")
    with pytest.raises(
        CheckpointError, match=r"best-.*model.safetensors is damaged: expected \d+ bytes, got 1\.$"
    ):
        load_model(run)


def test_metrics_shorter_than_the_checkpoint_says_is_damage(run: Path) -> None:
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(
        CheckpointError, match=r"metrics.jsonl is damaged: expected at least \d+ bytes, got 0"
    ):
        tiny_train(run, resume=True, max_epochs=4)


def test_load_model_refuses_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="expected a run with a best checkpoint, got none in"):
        load_model(tmp_path)
    with pytest.raises(ValueError, match="which: expected 'best' or 'latest', got 'worst'"):
        load_model(tmp_path, "worst")  # type: ignore[arg-type]  # on purpose or by keyword


def test_full_disk_while_saving_keeps_the_previous_checkpoint(tmp_path: Path) -> None:
    real, calls = os.write, []

    def full(descriptor: int, content: Any) -> int:
        calls.append(1)
        # config.json, three files at step 0, three at step 2: the disk fills up in the second checkpoint.
        if len(calls) > 5:
            real(descriptor, bytes(content)[:10])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(
            CheckpointError, match=r"cannot save .*step-00000002 \(No space left.*step-00000000 is intact"
        ):
            tiny_train(tmp_path / "run")
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000000"]
    tiny_train(tmp_path / "run", resume=True)
    tiny_train(tmp_path / "straight")
    assert_same_run(tmp_path / "run", tmp_path / "straight")


def test_full_disk_while_writing_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = open_file

    def full(path: Path, flags: int) -> int:
        if path.name == "metrics.jsonl" and path.exists() and len(metrics(tmp_path / "run")) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, flags)

    monkeypatch.setattr("diabat.training.report.open_file", full)
    with pytest.raises(
        OutputError, match=r"cannot write .*metrics.jsonl \(No space left on device\); the checkpoints"
    ):
        tiny_train(tmp_path / "run")
    assert load_model(tmp_path / "run", "latest")


def test_create_folder_cleans_up_and_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_folder(tmp_path / "a", {"x": b"old"})

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output error"):
        create_folder(tmp_path / "a", {"x": b"new"})
    with pytest.raises(OSError, match="Input/output error"):
        replace_file(tmp_path / "a" / "x", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a" / "x").read_bytes() == b"old"
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["x"]


def test_create_folder_replaces_a_folder_of_that_name(tmp_path: Path) -> None:
    create_folder(tmp_path / "a", {"x": b"old", "y": b"old"})
    create_folder(tmp_path / "a", {"x": b"new"})
    assert {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()} == {"x": b"new"}
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_seal_detects_every_kind_of_change() -> None:
    content = seal({"a": 1.5, "b": [None, "x"]})
    assert unseal(content) == {"a": 1.5, "b": [None, "x"]}
    for broken in (
        content.replace(b"1.5", b"1.6"),
        content[:-4],
        b"",
        b"[1]",
        json.dumps({"a": 1.5}).encode(),
    ):
        with pytest.raises(ValueError, match=r"expected .*, got "):
            unseal(broken)
