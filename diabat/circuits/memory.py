"""Refuse what would not fit into memory, and say how much it would need."""

from __future__ import annotations

import os


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


def require_memory(needed: int, what: str) -> None:
    """Refuse work that needs more memory than there is.

    Args:
        needed: Bytes.
        what: What needs them, for the message.

    Raises:
        ValueError: There is less; the message says how much is needed and how much there is.
    """
    # Small requests are not worth asking the system about.
    if needed > 1 << 28 and needed > (there := available_bytes()):
        raise ValueError(
            f"fields: {what} need {needed / 2**30:.3g} GiB of memory, got {there / 2**30:.3g} GiB available."
        )
