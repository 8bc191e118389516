"""Check that figures and other files can be written before they are computed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from diabat.checks import ArgumentError

FIGURES = (".png", ".pdf", ".svg")


def require_writable(
    path: Path | None, name: str = "figure", suffixes: tuple[str, ...] = FIGURES, *, new: bool = False
) -> None:
    """Fail before the computation rather than after it; missing folders are made.

    Args:
        path: The file to write; None for none.
        name: The option, argument or key that names it.
        suffixes: Supported suffixes.
        new: Refuse a file that already exists.

    Raises:
        ArgumentError: If the suffix is not supported, the path is a folder, the file cannot be written, or it already
            exists and ``new``.
    """
    if path is None:
        return
    if path.suffix not in suffixes or path.is_dir():
        kind = "the folder " * path.is_dir()
        raise ArgumentError(name, f"expected a file ending in {', '.join(suffixes)}, got {kind}'{path}'.")
    if new and path.exists():
        got = f"got '{path}', which already exists."
        raise ArgumentError(name, f"expected a new file, or --force to replace it, {got}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Files are replaced by renaming, which requires write permission for the folder.
        if not all(os.access(place, os.W_OK) for place in (path.parent, path) if place.exists()):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        # A file in the place of the folder is reported as one that exists.
        reason = "Not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise ArgumentError(name, f"expected a file that can be written, got '{path}' ({reason}).") from error
