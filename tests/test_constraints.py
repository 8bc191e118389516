from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CUDA = ("nvidia-", "cuda-", "triton")


def required(name: str, extras: frozenset[str], found: set[tuple[str, str]]) -> None:
    """Add every package that a package requires here, with the extras that it is asked for."""
    wanted = {(canonicalize_name(name), extra) for extra in extras | {""}} - found
    if not wanted or name.startswith(CUDA):  # torch says which of those it needs
        return
    found |= wanted
    try:
        lines = requires(name) or []
    except PackageNotFoundError:
        return
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for _, extra in wanted):
            required(requirement.name, frozenset(requirement.extras), found)


def test_every_package_that_the_extra_dev_installs_is_pinned() -> None:
    found: set[tuple[str, str]] = set()
    required("diabat", frozenset({"dev"}), found)
    text = (Path(__file__).parents[1] / "constraints.txt").read_text(encoding="utf-8")
    pinned = {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}
    assert len(pinned) > 50
    assert {name for name, _ in found} - pinned == {"diabat"}
