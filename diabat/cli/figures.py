"""Where figures and other files may be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from diabat.checks import ArgumentError

FIGURES = (".png", ".pdf", ".svg")


def require_writable(
    path: Path,
    option: str = "--figure",
    suffixes: tuple[str, ...] = FIGURES,
    *,
    new: bool = False,
    error: type[ArgumentError] = ArgumentError,
) -> None:
    """Fail before the computation rather than after it; missing folders are made.

    Args:
        path: The file to be written.
        option: What names it on the command line.
        suffixes: Those it may have.
        new: Refuse a file that exists.
        error: What refusals are raised as.

    Raises:
        ValueError: If the suffix is another, the path is a folder, or the file exists though it should be new.
        PermissionError: If the file cannot be written.
    """
    if path.suffix not in suffixes or path.is_dir():
        raise error(option, f"expected a file ending in {', '.join(suffixes)}, got '{path}'.")
    if new and path.exists():
        raise error(option, f"expected a new file, or --force to replace it, got '{path}', which exists.")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
