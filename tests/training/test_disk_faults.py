"""A disk that fails where a run only looks, waits or tidies up: one sentence, or nothing at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_checks import assert_same_run

from diabat.training import OutputError, train
from diabat.training.checkpoint import remove_leftovers
from diabat.training.folder import LOCK
from fuzz.tiny import OPTIONS, tiny_model, tiny_task, tiny_train


def failing(real: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The same call, but for paths that end with a name."""

    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        if str(path).endswith(name):
            raise OSError(errno.EIO, "Input/output error")
        return real(path, *args, **kwargs)

    return call


def test_failed_writes_of_metrics_are_reported_with_their_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, metrics = os.fsync, tmp_path / "run" / "metrics.jsonl"

    def fsync(descriptor: int) -> None:
        if metrics.exists() and os.path.samestat(os.fstat(descriptor), os.stat(metrics)):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OutputError, match=r"cannot write .*metrics.jsonl \(No space left on device\)"):
        tiny_train(tmp_path / "run")


def test_a_lock_that_cannot_be_deleted_does_not_fail_a_run_that_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_train(tmp_path / "straight")
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", failing(os.unlink, LOCK))
        tiny_train(tmp_path / "run", max_epochs=2)
    assert (tmp_path / "run" / LOCK).exists()
    tiny_train(tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "straight")


@pytest.mark.parametrize("works", [0, 1])
def test_a_folder_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: int) -> None:
    tiny_train(tmp_path / "run", max_epochs=1)
    task, options, real = tiny_task(), replace(OPTIONS, max_epochs=2), os.scandir
    broken, calls = failing(real, "checkpoints"), iter(range(1000))
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", lambda path: real(path) if next(calls) < works else broken(path))
        with pytest.raises(OutputError, match=r"the folder .*run \(Input/output error\)"):
            train(tiny_model(task), task, options, tmp_path / "run", resume=True, progress=False)
    tiny_train(tmp_path / "run", resume=True, max_epochs=2)


def test_leftovers_that_cannot_be_listed_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checkpoints" / ".tmp-step-00000001").mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", failing(os.scandir, "checkpoints"))
        remove_leftovers(tmp_path)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    remove_leftovers(tmp_path)
    assert not list((tmp_path / "checkpoints").iterdir())
