"""The API reference lists what is public, and nothing else."""

from __future__ import annotations

import importlib
import inspect
import re
from functools import reduce
from pathlib import Path
from typing import Any

from test_docs import PAGES, blocks

ROOT = Path(__file__).parent.parent
# Packages and modules whose names users import.
PACKAGES = [
    "diabat",
    *(f"diabat.attention{part}" for part in ("", ".games")),
    "diabat.heads",
    *(f"diabat.huggingface{part}" for part in ("", ".boltzmann")),
    *(f"diabat.ising{part}" for part in ("", ".problem_files")),
    *(f"diabat.lab.{name}" for name in ("config", "models", "runs", "tasks", "training")),
    "diabat.samplers",
    *(f"diabat.samplers.{name}" for name in ("banded", "dimod", "distributed", "exact", "mean_field")),
    *(f"diabat.samplers.{name}" for name in ("pseudolikelihood", "tempering")),
    *(f"diabat.{name}" for name in ("circuits", "testing")),
]
# Public without being exported: backends whose files hold nothing else, options and results of public functions.
ALSO = [
    "diabat.attention.correlations.QueryMoments",
    "diabat.lab.config.schema.FidelityOptions",
    "diabat.samplers.dqa.DQASampler",
    "diabat.samplers.refine.RefineSampler",
    "diabat.lab.studies.ensembles.Ensemble",
    "diabat.lab.studies.ensembles.ferromagnet",
    "diabat.lab.studies.fidelity.FidelityReport",
]


def listed() -> list[str]:
    """Full names in the tables of docs/reference."""
    found = []
    for page in sorted((ROOT / "docs" / "reference").glob("*.md")):
        for table in re.findall(
            r"^```\{eval-rst\}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S
        ):
            (module,) = re.findall(r"^\.\. currentmodule:: (\S+)$", table, re.M)
            found += [f"{module}.{name}" for name in re.findall(r"^   (\w[\w.]*)$", table, re.M)]
    return found


def resolve(name: str) -> Any:
    """The object of a full name, importing modules on the way."""
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, parts[count:], module)
    raise ImportError(name)


def exported() -> dict[str, Any]:
    """What the packages export, by its full names."""
    return {
        f"{package}.{name}": getattr(importlib.import_module(package), name)
        for package in PACKAGES
        for name in importlib.import_module(package).__all__
    }


def imported() -> set[str]:
    """What the code blocks of README and guide import."""
    code = "\n".join(block.text for page in PAGES for block in blocks(page, "python"))
    found = re.findall(r"^from (diabat[\w.]*) import (?:\(([^)]*)\)|(.*?)(?:  #.*)?)$", code, re.M)
    names = (
        (module, name.split(" as ")[0])
        for module, long, short in found
        for name in re.split(r",\s*", (long or short).strip(" \n,"))
    )
    return {f"{module}.{name}" for module, name in names}


def test_what_the_packages_export_is_listed() -> None:
    objects = [resolve(name) for name in listed()]
    missing = [name for name, value in exported().items() if not any(value is known for known in objects)]
    assert missing == []


def test_what_is_listed_is_public() -> None:
    public = [*exported().values(), *(resolve(name) for name in [*imported(), *ALSO])]
    surplus = [name for name in listed() if not any(resolve(name) is value for value in public)]
    # Errors that users catch may be listed.
    assert [name for name in surplus if not issubclass(resolve(name), Exception)] == []


def test_what_the_guide_imports_is_listed() -> None:
    objects = [resolve(name) for name in listed()]
    found = {name: resolve(name) for name in imported()}
    modules = type(importlib)
    names = [name for name, value in found.items() if not isinstance(value, modules)]
    assert [name for name in names if not any(found[name] is known for known in objects)] == []


def test_packages_are_there_after_importing_the_top_alone() -> None:
    """By the names that a package imports when somebody asks for them."""
    for name in ("diabat.lab", *PACKAGES[1:]):
        parent, _, own = name.rpartition(".")
        if parent in ("diabat", "diabat.lab"):
            package = importlib.import_module(parent)
            assert package.__getattr__(own) is importlib.import_module(name)
            assert own in package.__dir__()


def test_every_entry_is_listed_once_and_documented() -> None:
    """Constants have their docstring below them, where Sphinx finds it."""
    names = listed()
    assert len(names) > 150
    assert sorted(names) == sorted(set(names))
    values = {name: resolve(name) for name in names}
    described = {n: v for n, v in values.items() if isinstance(v, type) or inspect.isroutine(v)}
    assert [name for name, value in described.items() if not (value.__doc__ or "").strip()] == []


def test_pages_of_layers_show_what_they_inherit_from_classes_without_a_page() -> None:
    """Such as ``recording``; what a class inherits from one of another library, or one with a page, stands there."""
    template = (ROOT / "docs/_templates/autosummary/class.rst").read_text(encoding="utf-8")
    (left_out,) = re.findall(r"^   :inherited-members: (.*)$", template, re.M)
    excluded = left_out.split(", ")
    for name, members in {
        "diabat.BoltzmannAttention": ("sampler", "eval_seed", "recording", "last_path", "prefill", "step"),
        "diabat.BoltzmannMultiheadAttention": ("sampler", "last_problem", "use_sampler"),
    }.items():
        for member in members:
            kinds = resolve(name).__mro__
            owner = next(
                k for k in kinds if member in vars(k) or member in vars(k).get("__annotations__", {})
            )
            assert owner.__module__.startswith("diabat.")
            assert owner.__name__ not in excluded
    assert {"Module", "MultiheadAttention", "Sampler", "BaseException"} <= {*excluded}
