from __future__ import annotations

import hashlib
import io
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from diabat.lab.tasks import DataError, fetch
from diabat.lab.tasks.data import DATA_FILES, DataFile

CONTENT = b"To be, or not to be\n"
URL = "https://example.org/play.txt"


@pytest.fixture(autouse=True)
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data file of twenty bytes, an empty cache, and no network."""
    digest = hashlib.sha256(CONTENT).hexdigest()
    monkeypatch.setitem(DATA_FILES, "play", DataFile("The Play", "play.txt", URL, digest, len(CONTENT)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DIABAT_DATA", raising=False)
    serve(monkeypatch, lambda: _unreachable())


def _unreachable() -> bytes:
    raise urllib.error.URLError("Name or service not known")


def serve(monkeypatch: pytest.MonkeyPatch, answer: Callable[[], bytes]) -> list[str]:
    asked: list[str] = []

    def urlopen(url: str, timeout: float) -> io.BytesIO:
        asked.append(url)
        return io.BytesIO(answer())

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return asked


def test_explicit_path_file_or_folder(tmp_path: Path) -> None:
    path = tmp_path / "renamed.txt"
    path.write_bytes(CONTENT)
    assert fetch("play", path) == path
    (tmp_path / "play.txt").write_bytes(CONTENT)
    assert fetch("play", str(tmp_path)) == tmp_path / "play.txt"


def test_explicit_path_before_environment_before_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("explicit", "environment", "cache/diabat"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "play.txt").write_bytes(CONTENT)
    assert fetch("play") == tmp_path / "cache" / "diabat" / "play.txt"
    monkeypatch.setenv("DIABAT_DATA", str(tmp_path / "environment"))
    assert fetch("play") == tmp_path / "environment" / "play.txt"
    assert fetch("play", tmp_path / "explicit") == tmp_path / "explicit" / "play.txt"


def test_download_goes_to_the_cache_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = serve(monkeypatch, lambda: CONTENT)
    assert fetch("play").read_bytes() == CONTENT
    assert fetch("play").read_bytes() == CONTENT
    assert asked == [URL]
    assert [p.name for p in (tmp_path / "cache" / "diabat").iterdir()] == ["play.txt"]


def test_no_network_names_the_ways_out() -> None:
    with pytest.raises(
        DataError,
        match=r"cannot be downloaded .*not known.*from https://.*task.data=PATH or DIABAT_DATA=FOLDER",
    ):
        fetch("play")


@pytest.mark.parametrize("content", [CONTENT[:-3], CONTENT.upper()])
def test_damaged_downloads_and_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """Only a copy of ours is called damaged and may be deleted; a file of the user is another one."""
    own, other = (hashlib.sha256(text).hexdigest() for text in (CONTENT, content))
    problem = f"expected 20 bytes with sha256 {own}, got {len(content)} with {other}"
    serve(monkeypatch, lambda: content)
    with pytest.raises(DataError, match=rf"the download is damaged: {problem}; .*DIABAT_DATA"):
        fetch("play")
    cache = tmp_path / "cache" / "diabat"
    assert not cache.exists()
    cache.mkdir(parents=True)
    for place in (tmp_path, cache):
        (place / "play.txt").write_bytes(content)
    with pytest.raises(
        DataError, match=rf"the user cache: .*play.txt is damaged: {problem}; delete it and get"
    ):
        fetch("play")
    refused = rf": .*play.txt is not The Play, {problem}; task.name=text takes any text, or get play.txt from"
    with pytest.raises(DataError, match=f"^task.data{refused}"):
        fetch("play", tmp_path)
    monkeypatch.setenv("DIABAT_DATA", str(tmp_path))
    with pytest.raises(DataError, match=f"^DIABAT_DATA{refused}"):
        fetch("play")


def test_a_missing_file_is_not_downloaded_behind_the_users_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = serve(monkeypatch, lambda: CONTENT)
    monkeypatch.setenv("DIABAT_DATA", str(tmp_path))
    with pytest.raises(
        DataError, match=r"DIABAT_DATA: expected the file .*play.txt, got none; get play.txt from"
    ):
        fetch("play")
    assert asked == []


def test_full_disk_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, lambda: CONTENT)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        DataError, match=r"cannot write .*play.txt \(No space left on device\); set XDG_CACHE_HOME"
    ):
        fetch("play")
    assert list((tmp_path / "cache" / "diabat").iterdir()) == []


def test_unwritable_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, lambda: CONTENT)
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(DataError, match="the user cache: cannot write"):
        fetch("play")


def test_the_public_file_is_the_one_of_the_protocol() -> None:
    data = DATA_FILES["tinyshakespeare"]
    assert data.num_bytes == 1_115_394
    assert data.sha256 == "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
    assert data.source.startswith("https://")
