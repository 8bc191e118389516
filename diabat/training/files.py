"""Files and folders that appear whole or not at all, also after a power failure; links are not followed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from diabat.files import create_file, replacing, unused_name
from diabat.strict_json import parse_json

TEMPORARY_PREFIX = ".tmp-"


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
    with replacing(path, TEMPORARY_PREFIX) as temporary:
        create_file(temporary, content)
    sync_folder(path.parent)


def create_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Create a folder with its files under a temporary name, then rename it; replaces a folder of that name.

    Raises:
        OSError: As the system reports it; the temporary folder is gone then, and ``path`` is what it was.
    """
    temporary = unused_name(path, TEMPORARY_PREFIX)
    try:
        temporary.mkdir()
        for name, content in files.items():
            create_file(temporary / name, content)
        sync_folder(temporary)
        if os.path.lexists(path):
            remove_folder(path)
        os.rename(temporary, path)
        sync_folder(path.parent)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def remove_folder(path: Path) -> None:
    """Delete a folder; killed half-way it leaves no incomplete folder under the name."""
    doomed = unused_name(path, f"{TEMPORARY_PREFIX}old-")
    os.rename(path, doomed)
    discard(doomed)


def discard(path: Path) -> None:
    """Delete a file or a folder with what is in it, as far as the system lets us; a link, not what it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


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
        value = parse_json(content)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"expected JSON, got {len(content)} bytes that are none") from error
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    expected = value.pop("sha256", None)
    got = digest(to_json(value))
    if got != expected:
        raise ValueError(f"expected sha256 {expected}, got {got}")
    return value
