"""Refuse what would not fit into memory, and say how much it would need."""

from __future__ import annotations

import os

from diabat.checks import ArgumentError


def available_bytes() -> int:
    """Physical memory that is free or can be freed, in bytes."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:  # not Linux
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def require_memory(needed: int, what: str, argument: str = "fields") -> None:
    """Refuse work that needs more memory than there is.

    Args:
        needed: Bytes.
        what: What needs them, in the plural, for the message.
        argument: The argument that asks for so much, for the message.

    Raises:
        ValueError: There is less; the message says how much is needed and how much there is.
    """
    # Small requests are not worth asking the system about.
    if needed > 1 << 28 and needed > (there := available_bytes()):
        raise ArgumentError(
            argument, f"{what} need {_gib(needed)} GiB of memory, got {_gib(there)} GiB available."
        )


def _gib(size: int) -> str:
    # In integers: a size may be beyond what a float holds.
    return f"{size / 2**30:.3g}" if size < 1 << 80 else "more than 2^50"
