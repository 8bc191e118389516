"""The file of all keys of configurations, which this test writes."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import diabat
from diabat.heads.commands.analysis import AnalysisOptions
from diabat.heads.commands.attribution import AttributionOptions
from diabat.heads.commands.calibration import CalibrationOptions
from diabat.lab.config.schema import Config
from diabat.lab.models import MODELS
from diabat.lab.tasks import TASKS
from diabat.samplers.registry import _BUILT_IN, backend_factory

FILE = Path(diabat.__file__).parent / "lab/config/keys.json"


def parts(kind: Any) -> Iterator[Any]:
    """A type, and those that it is made of."""
    yield kind
    for inner in get_args(kind):
        yield from parts(inner)


def keys_of(kind: Any) -> list[str]:
    """Fields of a dataclass, and after each, dotted, those of dataclasses inside."""
    found = []
    for name, hint in get_type_hints(kind).items():
        if name in {field.name for field in dataclasses.fields(kind)}:
            inner = [key for part in parts(hint) if dataclasses.is_dataclass(part) for key in keys_of(part)]
            found += [name, *(f"{name}.{key}" for key in inner)]
    return found


def declared() -> dict[str, Any]:
    """What the classes declare."""
    sections = {name: field.annotation for name, field in Config.model_fields.items()}
    options = (AnalysisOptions, AttributionOptions, CalibrationOptions)
    return {
        "config": {n: keys_of(k) if dataclasses.is_dataclass(k) else [] for n, k in sections.items()},
        "task": {name: keys_of(kind) for name, kind in TASKS.items()},
        "model": {name: keys_of(kind) for name, kind in MODELS.items()},
        "sampler": {name: [*inspect.signature(backend_factory(name)).parameters] for name in _BUILT_IN},
        "heads": {kind.__name__: keys_of(kind) for kind in options},
    }


def test_the_file_of_keys_has_what_the_classes_declare() -> None:
    want = json.dumps(declared(), indent=1) + "\n"
    held = FILE.read_text(encoding="utf-8")
    if held != want:
        FILE.write_text(want, encoding="utf-8")
    assert held == want, f"{FILE.name} was not up to date, and has been written anew: commit it."
