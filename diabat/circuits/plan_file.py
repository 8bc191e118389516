"""Plans in JSON files, with all angles in radians without rounding.

    {"format": "diabat-plan", "version": 1, "label": "...", "metadata": {...},
     "field_angles_rad": [...], "coupling_angles_rad": [...], "mixer_angles_rad": [...]}

The angles are those of `diabat.circuits.plan`. The metadata can be any object, for example the training problems
of the plan, its errors and its command.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np

from diabat.checks import ArgumentError, check_choice, is_finite
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.schedules import FloatArray
from diabat.files import create_file, parse_json, replacing, text_of_file

FORMAT = "diabat-plan"
VERSION = 1
_MAX_BYTES = 1 << 28
ANGLES = ("field_angles", "coupling_angles", "mixer_angles")


def save_plan(path: str | Path, plan: TrotterPlan, metadata: Mapping[str, Any] | None = None) -> None:
    """Write a plan atomically.

    Args:
        path: The file, usually *.json; an existing file is replaced.
        plan: Angles and label.
        metadata: Any JSON value, without NaN or infinity.

    Raises:
        ValueError: The metadata is not a JSON value.
        OSError: The folder does not exist or cannot be written.
    """
    path = Path(path)
    content = {"format": FORMAT, "version": VERSION, "label": plan.label, "metadata": dict(metadata or {})}
    content |= {f"{key}_rad": getattr(plan, key).tolist() for key in ANGLES}
    try:
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ArgumentError("metadata", "JSON values", error) from None
    with replacing(path, prefix=".") as temporary:
        create_file(temporary, f"{text}\n".encode())


def load_plan(path: str | Path) -> tuple[TrotterPlan, dict[str, Any]]:
    """Read a plan and its metadata.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not a plan; the message names file, key, expected and got.
    """
    return _parse(str(path), text_of_file(Path(path), _MAX_BYTES, "a plan in JSON"))


def available_plans() -> tuple[str, ...]:
    """Names of the built-in plans, shorter names first."""
    names = [entry.name.removesuffix(".json") for entry in _shipped() if entry.name.endswith(".json")]
    return tuple(sorted(names, key=lambda name: (len(name), name)))


def builtin_plan(name: str) -> tuple[TrotterPlan, dict[str, Any]]:
    """Load a built-in plan and its metadata.

    Args:
        name: One of `available_plans()`.

    Raises:
        ValueError: Unknown name.
    """
    check_choice("plan", name, available_plans())
    file = next(entry for entry in _shipped() if entry.name == f"{name}.json")
    return _parse(f"{name}.json", file.read_text(encoding="utf-8"))


def _shipped() -> list[Traversable]:
    """Entries of the folder of built-in plans; empty if the folder does not exist."""
    folder = resources.files(__package__).joinpath("data", "plans")
    return list(folder.iterdir()) if folder.is_dir() else []


def _parse(path: str, text: str) -> tuple[TrotterPlan, dict[str, Any]]:
    try:
        content = parse_json(text)
    except json.JSONDecodeError as error:
        first = text.lstrip().split("\n", 1)[0][:60]
        hint = "; is it a schedule? diabat.circuits.from_csv reads those" if "A_GHz" in text[:2000] else ""
        got = f"got a file that starts {first!r}{hint}"
        raise ArgumentError(f"{path}, line {error.lineno}: expected a plan in JSON, {got}") from None
    except ValueError as error:
        raise ArgumentError(f"{path}: {error}") from None
    form = content.get("format") if isinstance(content, dict) else type(content).__name__
    if form != FORMAT:
        raise ArgumentError(f"{path}: expected format {FORMAT!r}, got {form!r}")
    version = content.get("version")
    if type(version) is not int or version != VERSION:  # refuses true and 1.0
        raise ArgumentError(f"{path}: expected version {VERSION}, got {version!r:.60}")
    for key, kind in (("label", str), ("metadata", dict)):
        if not isinstance(content.get(key, kind()), kind):
            raise ArgumentError(f"{path}: expected {key} as a {kind.__name__}, got {content[key]!r}")
    fields, couplings, mixers = (_angles(path, content, f"{key}_rad") for key in ANGLES)
    try:
        plan = TrotterPlan(fields, couplings, mixers, content.get("label", ""))
    except ValueError as error:
        raise ArgumentError(f"{path}: {error}") from None
    return plan, content.get("metadata", {})


def _angles(path: str, content: dict[str, Any], key: str) -> FloatArray:
    if key not in content:
        raise ArgumentError(f"{path}: expected the key {key!r}, got only {', '.join(content)[:200]}")
    values = content[key]
    if not isinstance(values, list):
        raise ArgumentError(f"{path}: expected {key} as a list of angles in radians, got {values!r:.60}")
    for at, value in enumerate(values):
        if not is_finite(value):
            raise ArgumentError(f"{path}: expected finite numbers in {key}, got {value!r:.60} at step {at}")
    return np.array(values, dtype=np.float64)
