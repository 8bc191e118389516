"""Two processes that train in one run folder are kept apart; readers are not held up."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_checks import assert_same_run

from diabat.training import OutputError, load_model
from diabat.training.checkpoint import find_checkpoints
from diabat.training.folder import LOCK, locked
from fuzz.tiny import tiny_train

SCRIPT = """
import sys
from pathlib import Path
from fuzz.tiny import tiny_train
tiny_train(Path(sys.argv[1]), max_epochs=100_000, patience=100_000, checkpoint_every=1)
"""
OTHER = r"run_dir: expected a folder that nobody else is training in, got .*run, where process {} on .+ is at work"


@pytest.fixture
def training(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that trains in ``run`` and does not end by itself."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "run")]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    while not find_checkpoints(tmp_path / "run", "best"):
        assert process.poll() is None
        time.sleep(0.01)
    yield process
    process.kill()
    process.wait()


def test_a_second_process_is_refused_until_the_first_is_killed(
    tmp_path: Path, training: subprocess.Popen[bytes]
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(OutputError, match=OTHER.format(training.pid)):
        tiny_train(folder, resume=True)
    load_model(folder)  # readers need no lock
    training.send_signal(signal.SIGKILL)
    training.wait()
    step = int(find_checkpoints(folder, "step")[0].name.removeprefix("step-"))
    tiny_train(folder, resume=True, max_epochs=step // 3 + 2, patience=100_000, checkpoint_every=1)
    tiny_train(tmp_path / "straight", max_epochs=step // 3 + 2, patience=100_000, checkpoint_every=1)
    assert_same_run(folder, tmp_path / "straight")


def test_two_runs_of_one_process_are_kept_apart(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with locked(tmp_path / "run"), pytest.raises(OutputError, match=OTHER.format(os.getpid())):
        tiny_train(tmp_path / "run", max_steps=1)
    assert not list((tmp_path / "run").iterdir())
    (tmp_path / "run" / LOCK).write_text("left by kill -9")
    tiny_train(tmp_path / "run", max_steps=1)


def test_the_lock_of_a_deleted_file_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Between our opening the file and locking it, its owner deletes it, and a third process makes a new one.
    real, opened = os.open, []

    def slow(path: Path, *arguments: int) -> int:
        opened.append(real(path, *arguments))
        if len(opened) == 1:
            Path(path).unlink()
            Path(path).write_text("")
        return opened[-1]

    monkeypatch.setattr(os, "open", slow)
    with locked(tmp_path):
        assert len(opened) == 2
        with pytest.raises(OutputError), locked(tmp_path):
            pass


def test_nothing_is_put_into_a_folder_that_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    for resume in (False, True):
        with pytest.raises(OutputError):
            tiny_train(tmp_path, resume=resume)
    assert [p.name for p in tmp_path.iterdir()] == ["letters.txt"]


def test_a_holder_that_has_not_given_its_name_yet(tmp_path: Path) -> None:
    with locked(tmp_path):
        (tmp_path / LOCK).write_text("{")
        with pytest.raises(OutputError, match="where another process is at work"), locked(tmp_path):
            pass


def test_the_holder_is_named_without_the_byte_that_windows_locks(tmp_path: Path) -> None:
    with locked(tmp_path):
        descriptor = os.open(tmp_path / LOCK, os.O_RDWR)
        os.write(descriptor, b"\xff")
        os.close(descriptor)
        with pytest.raises(OutputError, match=OTHER.format(os.getpid()).replace("run, where", ", where")):
            tiny_train(tmp_path, resume=True)


def test_a_file_system_without_locks_gives_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.warns(UserWarning, match="run_dir: the file system does not support locks"), locked(tmp_path):
        pass
