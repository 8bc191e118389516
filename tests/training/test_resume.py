from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_checks import assert_same_run, metrics

from diabat.training import CheckpointError, OutputError, load_model
from diabat.training.checkpoint import find_checkpoints
from fuzz.tiny import tiny_model, tiny_task, tiny_train

DISK_CALLS = ("write", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "truncate")


class Killed(BaseException):
    """Stands for kill -9: nothing in the package may catch it."""


def kill_at(monkeypatch: pytest.MonkeyPatch, moment: int) -> list[int]:
    """Die at the moment-th call that changes the disk; the returned list grows with every call."""
    calls: list[int] = []

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            if len(calls) >= moment:
                raise Killed
            return real(*args, **kwargs)

        return call

    for name in DISK_CALLS:
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    return calls


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    tiny_train(folder)
    return folder


def test_death_at_any_disk_access_loses_nothing(tmp_path: Path, straight: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        calls = kill_at(patch, 10**9)
        tiny_train(tmp_path / "counted")
        total = len(calls)
    assert total > 60
    for moment in sorted(random.Random(0).sample(range(1, total + 1), 16)):
        folder = tmp_path / str(moment)
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, moment)
            with pytest.raises(Killed):
                tiny_train(folder)
        if not folder.exists():  # died while making the folder
            folder.mkdir()
        tiny_train(folder, resume=True)
        assert_same_run(folder, straight)
        assert not list(folder.rglob(".tmp-*")), f"leftovers after death at disk access {moment}"


SCRIPT = """
import sys
from pathlib import Path
from fuzz.tiny import tiny_train
tiny_train(Path(sys.argv[1]), resume=sys.argv[2] == "resume", max_epochs=24, checkpoint_every=2, log_every=1)
"""


def test_kill_9_in_a_real_process(tmp_path: Path) -> None:
    tiny_train(tmp_path / "straight", max_epochs=24, checkpoint_every=50)
    folder, delays = tmp_path / "run", random.Random(20)
    for attempt, wanted in enumerate((2, 30)):
        command = [
            sys.executable,
            "-c",
            SCRIPT,
            str(folder),
            "resume" if attempt else "new",
        ]
        process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
        while not _newest_step(folder) >= wanted and process.poll() is None:
            time.sleep(0.01)
        time.sleep(delays.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "the run ended before it was killed"
        load_model(folder, "latest")
    tiny_train(folder, resume=True, max_epochs=24, checkpoint_every=2)
    assert_same_run(folder, tmp_path / "straight")


def _newest_step(folder: Path) -> int:
    found = find_checkpoints(folder, "step")
    return int(found[0].name.removeprefix("step-")) if found else -1


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    first = tiny_train(tmp_path / "run")
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    again = tiny_train(tmp_path / "run", resume=True)
    assert again == first
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before


def test_a_finished_run_can_be_prolonged(tmp_path: Path) -> None:
    tiny_train(tmp_path / "long", max_epochs=5)
    tiny_train(tmp_path / "run", max_epochs=2)
    tiny_train(tmp_path / "run", max_epochs=5, resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "long")


def test_metrics_after_the_checkpoint_are_cut_off(tmp_path: Path, straight: Path) -> None:
    tiny_train(tmp_path / "run", max_epochs=2)
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"event": "step", "step": 7}\n{"event": "st')
    tiny_train(tmp_path / "run", resume=True)
    assert metrics(tmp_path / "run") == metrics(straight)


def test_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    tiny_train(tmp_path / "run")
    before = metrics(tmp_path / "run")
    with pytest.raises(
        OutputError, match=r"run_dir: expected a new or empty folder, got .*run with files in it.*resume=True"
    ):
        tiny_train(tmp_path / "run")
    assert metrics(tmp_path / "run") == before


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert tiny_train(tmp_path / "run").steps == 9


def test_resume_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"expected the folder of a run to resume, got .*does not exist"):
        tiny_train(tmp_path / "nowhere", resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("x")
    with pytest.raises(OutputError, match=r"expected a run with a checkpoint to resume, got none in .*other"):
        tiny_train(tmp_path / "other", resume=True)


@pytest.mark.parametrize(("name", "value"), [("seed", 4), ("batch_size", 8), ("learning_rate", 0.5)])
def test_resume_refuses_other_options(tmp_path: Path, name: str, value: Any) -> None:
    tiny_train(tmp_path / "run", max_epochs=1)
    with pytest.raises(
        CheckpointError, match=rf"{name}: expected .* as in .*step-.*, got {value}; a resumed run"
    ):
        tiny_train(tmp_path / "run", resume=True, **{name: value})


def test_resume_refuses_other_data_and_another_model(tmp_path: Path) -> None:
    tiny_train(tmp_path / "run", max_epochs=1)
    with pytest.raises(CheckpointError, match=r"task: expected the training data of .*step-"):
        tiny_train(tmp_path / "run", resume=True, task=tiny_task(num_train=41))
    with pytest.raises(
        CheckpointError, match=r"of another model: .*coupling_pairs: expected no such weight, got \[1, 6\]"
    ):
        tiny_train(tmp_path / "run", resume=True, model=tiny_model(tiny_task(), "softmax"))


def test_resume_refuses_another_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_train(tmp_path / "run", max_epochs=1)
    monkeypatch.setattr("diabat.training.folder.FORMAT", 2)
    with pytest.raises(CheckpointError, match=r"expected format 2, got 1 in .*step-.*another version"):
        tiny_train(tmp_path / "run", resume=True)


def test_unwritable_folder_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OutputError, match=r"run_dir: cannot write the folder .*Not a directory"):
        tiny_train(tmp_path / "file" / "run")


def test_read_only_folder_is_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)  # root may write anywhere, so the refusal is played
    with pytest.raises(OutputError, match=r"run_dir: cannot write the folder .*Permission denied"):
        tiny_train(tmp_path / "run")
