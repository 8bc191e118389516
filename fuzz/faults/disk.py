"""Count the file operations of this process, and make one of them fail or kill the process."""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

try:
    import fcntl
except ImportError:  # Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]  # so that one test serves both

How = Literal["full", "broken", "killed"]
"""``full``: ENOSPC, from this operation on; ``broken``: EIO, once; ``killed``: SIGKILL."""

CALLS = (
    "open", "write", "fsync", "rename", "replace", "unlink", "remove", "mkdir", "rmdir", "truncate", "ftruncate",
    "listdir", "scandir",
)  # fmt: skip


class Disk:
    """Watches operations on files below a folder, from :meth:`watch` on, for the rest of the process.

    Number ``moment`` of them, from 1 (0 for none), fails as ``how`` says, and ``before`` is called just before that.
    """

    def __init__(
        self, root: Path, moment: int = 0, how: How = "killed", before: Callable[[], None] = lambda: None
    ):
        self.root, self.moment, self.how, self.before = str(root), moment, how, before
        self.operations: list[str] = []
        self.descriptors: set[int] = set()

    def watch(self) -> None:
        """Start to intercept file operations."""
        for name in CALLS:
            setattr(os, name, self._watched(name, getattr(os, name)))
        real_close, real_open = os.close, io.open

        def close(fd: int) -> None:
            self.descriptors.discard(fd)  # the system may reuse its number
            real_close(fd)

        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if not self._ours(file):
                return real_open(file, mode, *args, **kwargs)
            writes = any(letter in mode for letter in "wax+")
            self.happens("open", needs_space=writes)
            handle = real_open(file, mode, *args, **kwargs)
            if writes:
                self.descriptors.add(handle.fileno())
            return _Written(handle, self) if writes else handle

        os.close = close
        builtins.open = io.open = opened
        if fcntl is not None:
            fcntl.flock = self._watched("flock", fcntl.flock)

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._ours(*args[:2], kwargs.get("dir_fd"), kwargs.get("src_dir_fd")):
                return real(*args, **kwargs)
            makes = name == "open" and len(args) > 1 and bool(args[1] & os.O_CREAT)

            def half() -> None:
                if name == "write":
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])

            self.happens(name, half, needs_space=makes or name in ("write", "fsync", "mkdir"))
            result = real(*args, **kwargs)
            if name == "open":
                self.descriptors.add(result)
            return result

        return call

    def _ours(self, *targets: Any) -> bool:
        return any(
            target in self.descriptors if isinstance(target, int) else str(target).startswith(self.root)
            for target in targets
            if isinstance(target, int | str | os.PathLike)
        )

    def happens(
        self, name: str, half: Callable[[], Any] = lambda: None, *, needs_space: bool = False
    ) -> None:
        """Count an operation; fail if it is the selected one, after ``half`` of it."""
        self.operations.append(name)
        now = len(self.operations)
        if now == self.moment:
            self.before()
            half()
        elif not (self.how == "full" and 0 < self.moment < now and needs_space):
            return
        if self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        code = errno.ENOSPC if self.how == "full" else errno.EIO
        raise OSError(code, os.strerror(code))


class _Written(AbstractContextManager["_Written"]):
    """A file that is written to; its writes and its close are operations."""

    def __init__(self, handle: Any, disk: Disk) -> None:
        self._handle, self._disk = handle, disk

    def write(self, content: Any) -> int:
        def half() -> None:
            self._handle.write(content[: len(content) // 2])
            self._handle.flush()

        self._disk.happens("write", half, needs_space=True)
        return self._handle.write(content)

    def close(self) -> None:
        if not self._handle.closed:
            try:
                self._disk.happens("close", needs_space=True)
            finally:
                self._disk.descriptors.discard(self._handle.fileno())
                self._handle.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def __exit__(self, *_: object) -> None:
        self.close()
