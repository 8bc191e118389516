"""The folder of a run: its lock, strangers in it, links, and a disk that fails where a run only looks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_checks import assert_same_run, metrics

from diabat.checkpoints import LOCK, locked
from diabat.files import create_file, replace_file, replacing
from diabat.lab.training import OutputError, load_model
from diabat.lab.training.folder import BEST, LATEST, METRICS
from fuzz.faults.session import saved_step
from fuzz.tiny import tiny_train

SCRIPT = """
import sys
from pathlib import Path
from fuzz.tiny import tiny_train
tiny_train(Path(sys.argv[1]), max_epochs=100_000, patience=100_000, checkpoint_every=1)
"""


@pytest.fixture
def training(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that trains in ``run`` and does not end by itself."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "run")]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    while not (tmp_path / "run" / BEST).exists():
        assert process.poll() is None
        time.sleep(0.01)
    yield process
    process.kill()
    process.wait()


def test_a_second_process_is_refused_until_the_first_is_killed(
    tmp_path: Path, training: subprocess.Popen[bytes]
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(OutputError, match=r"run_dir: run folder .*run is locked by another process\.$"):
        tiny_train(folder, resume=True)
    load_model(folder)  # readers need no lock
    training.send_signal(signal.SIGKILL)
    training.wait()
    epochs = saved_step(folder) // 3 + 2
    tiny_train(folder, resume=True, max_epochs=epochs, patience=100_000, checkpoint_every=1)
    tiny_train(tmp_path / "straight", max_epochs=epochs, patience=100_000, checkpoint_every=1)
    assert_same_run(folder, tmp_path / "straight")


def test_two_runs_of_one_process_are_kept_apart(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with locked(tmp_path / "run"), pytest.raises(OutputError, match="is locked"):
        tiny_train(tmp_path / "run", max_steps=1)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK]
    tiny_train(tmp_path / "run", max_steps=1)


def test_a_run_that_another_one_finished_meanwhile_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one holds the lock between our look into the folder and our lock."""
    from diabat.lab.training import folder

    def late(path: Path, *args: Any) -> Any:
        monkeypatch.undo()
        tiny_train(path)
        return locked(path)

    monkeypatch.setattr(folder, "locked", late)
    with pytest.raises(OutputError, match="expected a new or empty folder"):
        tiny_train(tmp_path / "run")
    assert len([line for line in metrics(tmp_path / "run") if line["event"] != "sampler"]) == 12


@pytest.mark.parametrize("name", ["thesis.tex", METRICS, BEST])
def test_a_folder_with_files_of_somebody_is_refused_and_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("dear")
    for resume, message in ((False, "a new or empty folder, got .* with files in it"), (True, "none in")):
        with pytest.raises(OutputError, match=rf"run_dir: expected .*{message}"):
            tiny_train(tmp_path, resume=resume)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_only_a_run_is_resumed(tmp_path: Path) -> None:
    with pytest.raises(
        OutputError, match=r"expected the folder of a run to resume, got .*which does not exist"
    ):
        tiny_train(tmp_path / "nowhere", resume=True)
    assert not list(tmp_path.iterdir())
    assert tiny_train(tmp_path, resume=True).steps == 9  # a run that was killed before it wrote anything


def test_a_finished_run_is_not_trained_anew(tmp_path: Path) -> None:
    tiny_train(tmp_path / "run")
    before = {p: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    with pytest.raises(OutputError, match=r"new or empty folder, got .*run with files in it.*resume=True"):
        tiny_train(tmp_path / "run")
    assert {p: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before


def test_a_folder_that_cannot_be_made_or_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OutputError, match=r"run_dir: cannot write .*Not a directory"):
        tiny_train(tmp_path / "file" / "run")

    def denied(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)  # root may write anywhere, so the refusal is played
    with pytest.raises(OutputError, match=r"run_dir: cannot lock the folder .*Permission denied"):
        tiny_train(tmp_path / "run")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of somebody else."""
    path = tmp_path / "victim"
    path.write_text("mine")
    return path


@pytest.mark.parametrize("name", [LOCK, METRICS])
@pytest.mark.parametrize("leads", [True, False], ids=["to a file", "nowhere"])
def test_links_as_lock_and_metrics_are_refused(name: str, leads: bool, tmp_path: Path, victim: Path) -> None:
    run = tmp_path / "run"
    tiny_train(run, max_epochs=1)
    (run / name).unlink()
    (run / name).symlink_to(victim if leads else tmp_path / "nothing")
    with pytest.raises(OutputError, match=r"run_dir: cannot .* \(.*symbolic link.*\)\.$"):
        tiny_train(run, resume=True)
    assert victim.read_text() == "mine"
    assert not (tmp_path / "nothing").exists()


def test_links_in_the_way_are_replaced_and_not_followed(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "a").symlink_to(victim)
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "a", b"theirs")
    replace_file(tmp_path / "a", b"new")
    assert not (tmp_path / "a").is_symlink()
    assert ((tmp_path / "a").read_bytes(), victim.read_text()) == (b"new", "mine")


def test_temporary_names_cannot_be_foreseen(tmp_path: Path) -> None:
    names = set()
    for _ in range(2):
        with replacing(tmp_path / "a") as temporary:
            names.add(temporary.name)
            create_file(temporary, b"x")
    assert len(names) == 2
    assert all(re.fullmatch(r"\.tmp-a-[0-9a-f]{16}", name) for name in names)


def test_the_folder_of_a_run_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    tiny_train(tmp_path / "run", max_epochs=1)
    tiny_train(tmp_path / "run", resume=True)
    tiny_train(tmp_path / "straight")
    assert_same_run(tmp_path / "elsewhere", tmp_path / "straight")


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    tiny_train(tmp_path / "run", max_epochs=1)
    (tmp_path / "run" / f".tmp-{LATEST}-0").write_text("half")
    tiny_train(tmp_path / "run", resume=True)
    assert not list((tmp_path / "run").glob(".tmp-*"))
