"""Files that are written and read where anything may lie; links are tested with the files of a training."""

from __future__ import annotations

import errno
import io
import os
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.figure
import pytest

from diabat.checkpoints import read_checkpoint
from diabat.circuits import from_csv, load_plan
from diabat.files import create_file, naming, read_file
from diabat.heads.calibration.file import stored_calibration
from diabat.heads.commands.analysis import read_analysis
from diabat.heads.games.questions import read_questions
from diabat.heads.games.store import ValueStore
from diabat.ising import Ising
from diabat.ising.problem_files import read_problem
from diabat.lab.config import load_config
from diabat.lab.studies.ensembles import sk
from diabat.lab.studies.fidelity import fidelity_report
from diabat.lab.tasks.data import fetch, text_of
from diabat.lab.training.checkpoint import load_model
from diabat.samplers import sampler
from diabat.samplers.answers import Samples
from diabat.samplers.dimod.reads import AnswerCache


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        create_file(tmp_path / "a", b"x")
    assert caught.value.filename == str(tmp_path / "a")


def test_a_full_disk_names_the_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = fidelity_report({"mean_field": sampler("mean_field")}, sk((0.1,), num_spins=2, instances=1))
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        report.plot(tmp_path / "a.png")
    assert caught.value.filename == str(tmp_path / "a.png")


def test_a_missing_folder_is_named_by_the_path_that_was_given(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        Ising([0.0, 1.0]).save(tmp_path / "none" / "a.safetensors")
    assert caught.value.filename == str(tmp_path / "none" / "a.safetensors")


def test_names_that_are_told_stay(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, naming(tmp_path / "a"):
        (tmp_path / "b").read_bytes()
    assert caught.value.filename == str(tmp_path / "b")


def test_no_more_is_read_than_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_file(tmp_path / "a", 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_file(tmp_path / "a", 4)


def test_a_small_file_takes_little_memory_whatever_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    tracemalloc.start()
    try:
        assert read_file(tmp_path / "a", 1 << 31) == b"12345"
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system has no such file")
def test_files_that_say_they_are_empty_are_read_up_to_the_limit() -> None:
    assert len(read_file(Path("/proc/self/status"), 1 << 20)) > 100
    with pytest.raises(OSError, match="more than 100 bytes"):
        read_file(Path("/proc/self/status"), 100)


def test_a_size_is_refused_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(size: int) -> None:
        raise ValueError(f"{size} bytes")

    (tmp_path / "a").touch()
    os.truncate(tmp_path / "a", 1 << 40)
    monkeypatch.setattr(io, "BufferedReader", full)
    with pytest.raises(ValueError, match=f"{1 << 40} bytes"):
        read_file(tmp_path / "a", check=check)
    with pytest.raises(OSError, match="more than 10 bytes"):
        read_file(tmp_path / "a", 10)


# What a user names may be a link; what diabat expects in a folder may not.
NAMED: dict[str, Callable[[Path], Any]] = {
    "plan": load_plan,
    "schedule": from_csv,
    "problem": read_problem,
    "configuration": load_config,
    "text": lambda path: text_of("task.data", str(path)),
    "data": lambda path: fetch("tinyshakespeare", path),
    "questions": read_questions,
    "answer": Samples.load,
    "saved problem": Ising.load,
    "calibration": stored_calibration,
    "analysis": read_analysis,
    "couplings": lambda path: read_checkpoint(path, follow=True),
}
INSIDE: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "checkpoint": ("best.safetensors", lambda path: load_model(path.parent)),
    "configuration": ("config.json", lambda path: load_config(path.parent)),
    "values": ("values", lambda path: ValueStore({0: 8}, 1, path)),
    "answer": (f"{'0' * 64}.safetensors", lambda path: warned(AnswerCache(path.parent), "0" * 64)),
    "analysis": ("values.safetensors", lambda path: read_analysis(path.parent)),
}
KINDS = (OSError, ValueError, RuntimeError)


def warned(cache: AnswerCache, key: str) -> None:
    with pytest.warns(UserWarning, match="is damaged") as caught:
        assert cache.load(key, 1, 1) is None
    raise ValueError(str(caught[0].message))


def blocking(path: Path, kind: str) -> Path:
    """A pipe that nobody writes to, or a link to a device without an end."""
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="the system has no such device")
@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("what", NAMED)
def test_pipes_and_devices_are_not_read(what: str, kind: str, tmp_path: Path) -> None:
    path = blocking(tmp_path / "some.csv", kind)
    with pytest.raises(KINDS, match="no regular file"):
        NAMED[what](path)


@pytest.mark.parametrize("what", NAMED)
def test_links_that_a_user_names_are_followed(what: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("s,A_GHz\n0,1\n")
    (tmp_path / "some.csv").symlink_to(tmp_path / "file")
    if what == "text":
        assert text_of("task.data", str(tmp_path / "some.csv")).startswith("s,")
        return
    with pytest.raises(KINDS) as caught:  # of the content
        NAMED[what](tmp_path / "some.csv")
    assert not re.search("symbolic link|no regular", str(caught.value))


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="the system has no such device")
@pytest.mark.parametrize("kind", ["pipe", "device", "file"])
@pytest.mark.parametrize("what", INSIDE)
def test_no_link_and_no_pipe_in_a_folder_is_read(what: str, kind: str, tmp_path: Path) -> None:
    name, read = INSIDE[what]
    (tmp_path / "other").write_bytes(b"{}")
    if kind == "file":
        (tmp_path / name).symlink_to(tmp_path / "other")
    else:
        blocking(tmp_path / name, kind)
    if what == "answer" and kind != "file":  # as if there were none
        assert AnswerCache(tmp_path).load("0" * 64, 1, 1) is None
        return
    with pytest.raises(KINDS, match=r"symbolic link|no regular file|without config.json"):
        read(tmp_path / name)
