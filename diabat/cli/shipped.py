"""Lists of what is shipped as YAML, described by the head of each file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from diabat.cli.output import print_json, print_table


def print_shipped(title: str, paths: Mapping[str, Path], as_json: bool) -> None:
    """Print name, description and expected time of each file."""
    found = [{"name": name, **described(path)} for name, path in paths.items()]
    if as_json:
        print_json(found)
    else:
        columns = ("name", "what", "time on one core")
        print_table(title, columns, ((row["name"], row["description"], row["time"]) for row in found))


def described(path: Path) -> dict[str, str]:
    """Description and expected time: the first line of the comment at the head, and its line ``Time: ...``."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    times = [line.removeprefix("Time:").strip() for line in lines if line.startswith("Time:")]
    return {"description": lines[0] if lines else "", "time": times[0] if times else ""}
