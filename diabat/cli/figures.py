"""Where figures may be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_SUFFIXES = (".png", ".pdf", ".svg")


def require_writable(path: Path) -> None:
    """Fail before the computation rather than after it; missing folders are made.

    Raises:
        ValueError: If the suffix is that of no figure, or the path is a folder.
        PermissionError: If the file cannot be written.
    """
    if path.suffix not in _SUFFIXES or path.is_dir():
        raise ValueError(f"--figure: expected a file ending in {', '.join(_SUFFIXES)}, got '{path}'.")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
