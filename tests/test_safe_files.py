"""Files that are written and read where anything may lie; links are tested with the files of a training."""

from __future__ import annotations

import errno
import os
import tracemalloc
from pathlib import Path
from typing import Any

import matplotlib.figure
import pytest

from diabat.circuits import from_csv, load_plan
from diabat.files import create_file, naming, read_file
from diabat.problem_files import ProblemFileError, read_problem
from diabat.samplers import sampler
from diabat.studies.ensembles import sk
from diabat.studies.fidelity import fidelity_report


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


def test_names_that_are_told_stay(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, naming(tmp_path / "a"):
        (tmp_path / "b").read_bytes()
    assert caught.value.filename == str(tmp_path / "b")


def test_no_more_is_read_than_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_file(tmp_path / "a", 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_file(tmp_path / "a", 4)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="the system has no such device")
def test_files_without_an_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("circuits.plan_file", "circuits.schedule_csv", "problem_files"):
        monkeypatch.setattr(f"diabat.{module}._MAX_BYTES", 1000)
    with pytest.raises(ValueError, match="expected a readable plan file, got more than 1000 bytes"):
        load_plan("/dev/zero")
    with pytest.raises(ValueError, match="expected a readable CSV file, got more than 1000 bytes"):
        from_csv("/dev/zero")
    with pytest.raises(ProblemFileError, match=r"'/dev/zero': cannot be read \(more than 1000 bytes\)"):
        read_problem("/dev/zero")


def test_a_small_file_takes_little_memory_whatever_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    tracemalloc.start()
    try:
        assert read_file(tmp_path / "a", 1 << 31) == b"12345"
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


def test_what_has_no_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="more than 3000000 bytes"):
        read_file(Path("/dev/zero"), 3_000_000)
