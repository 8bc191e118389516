"""Files of a run that somebody replaced by links: what they lead to is neither changed nor deleted."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from run_checks import assert_same_run

from diabat.files import create_file, create_folder, remove_folder, replace_file, replacing
from diabat.training import OutputError
from diabat.training.folder import LOCK, locked
from diabat.training.report import METRICS
from fuzz.tiny import tiny_train


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
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(victim if leads else tmp_path / "nothing")
    with pytest.raises(OutputError, match=r"cannot write .* \(a symbolic link, which is not followed\)\.$"):
        tiny_train(run, resume=True)
    assert victim.read_text() == "mine"
    assert not (tmp_path / "nothing").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes")
def test_a_pipe_in_place_of_the_lock_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOCK)
    with pytest.raises(OutputError, match="expected a regular file"), locked(tmp_path):
        pass


def test_the_folder_of_a_run_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    tiny_train(tmp_path / "run", max_epochs=1)
    tiny_train(tmp_path / "run", resume=True)
    tiny_train(tmp_path / "straight")
    assert_same_run(tmp_path / "elsewhere", tmp_path / "straight")


def test_temporary_names_cannot_be_foreseen(tmp_path: Path) -> None:
    names = set()
    for _ in range(2):
        with replacing(tmp_path / "a") as temporary:
            names.add(temporary.name)
            create_file(temporary, b"x")
    assert len(names) == 2
    assert all(re.fullmatch(r"\.tmp-a-[0-9a-f]{16}", name) for name in names)


def test_a_file_in_the_way_is_not_written_through(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "a").symlink_to(victim)
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "a", b"theirs")
    replace_file(tmp_path / "a", b"new")  # the link goes, what it led to stays
    assert not (tmp_path / "a").is_symlink()
    assert ((tmp_path / "a").read_bytes(), victim.read_text()) == (b"new", "mine")


def test_folders_in_the_way_are_not_emptied_through_links(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "file").write_text("mine")
    (tmp_path / "a").symlink_to(tmp_path / "theirs")
    create_folder(tmp_path / "a", {"x": b"new"})
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["x"]
    (tmp_path / "b").symlink_to(tmp_path / "theirs")
    remove_folder(tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "theirs"]
    assert (tmp_path / "theirs" / "file").read_text() == "mine"
