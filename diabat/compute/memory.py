"""Refuse work that does not fit in memory."""

from __future__ import annotations

import os

from diabat.checks import ArgumentError


def available_bytes() -> int:
    """Available physical memory, in bytes."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:  # not Linux
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def require_memory(needed: int, what: str, argument: str = "fields") -> None:
    """Refuse work that needs more memory than is available.

    Args:
        needed: Bytes.
        what: The subject of the message, in the plural.
        argument: The responsible argument, for the message.

    Raises:
        ValueError: The message gives the required and the available memory.
    """
    # Small requests are not checked, which saves a system call.
    if needed > 1 << 28 and needed > (there := available_bytes()):
        raise ArgumentError(
            argument, f"{what} need {_gib(needed)} GiB of memory, got {_gib(there)} GiB available."
        )


def require_file_memory(size: int) -> None:
    """Refuse a file of tensors of so many bytes that does not fit in memory; errors as of :func:`require_memory`."""
    require_memory(size, "tensors", "file")


def _gib(size: int) -> str:
    # The size is an integer that may overflow a float.
    return f"{size / 2**30:.3g}" if size < 1 << 80 else "more than 2^50"
