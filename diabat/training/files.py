"""Files and folders that appear whole or not at all, also after a power failure."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TEMPORARY_PREFIX = ".tmp-"


def write_durably(path: Path, content: bytes) -> None:
    """Write a new file and wait until it is on the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old or the new content, never a part of it."""
    temporary = path.with_name(TEMPORARY_PREFIX + path.name)
    try:
        write_durably(temporary, content)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def create_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Create a folder with its files under a temporary name, then rename it; replaces a folder of that name.

    Raises:
        OSError: As the system reports it; the temporary folder is gone then, and ``path`` is what it was.
    """
    temporary = path.with_name(TEMPORARY_PREFIX + path.name)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        for name, content in files.items():
            write_durably(temporary / name, content)
        sync_folder(temporary)
        if path.exists():
            remove_folder(path)
        os.rename(temporary, path)
        sync_folder(path.parent)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def remove_folder(path: Path) -> None:
    """Delete a folder; killed half-way it leaves no incomplete folder under the name."""
    doomed = path.with_name(f"{TEMPORARY_PREFIX}old-{path.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def digest(content: bytes) -> str:
    """Hexadecimal sha256."""
    return hashlib.sha256(content).hexdigest()


def to_json(value: Any) -> bytes:
    """Serialise to JSON with sorted keys; floats survive the round trip bit for bit."""
    return (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def seal(value: Mapping[str, Any]) -> bytes:
    """Serialise a JSON object together with its own checksum."""
    return to_json({**value, "sha256": digest(to_json(value))})


def unseal(content: bytes) -> dict[str, Any]:
    """Read what :func:`seal` wrote.

    Raises:
        ValueError: If it is not a JSON object or its checksum is wrong; the message says which.
    """
    try:
        value = json.loads(content)
    except ValueError as error:
        raise ValueError(f"expected JSON, got {len(content)} bytes that are none") from error
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    expected = value.pop("sha256", None)
    got = digest(to_json(value))
    if got != expected:
        raise ValueError(f"expected sha256 {expected}, got {got}")
    return value
