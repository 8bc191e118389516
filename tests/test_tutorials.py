"""Every example and tutorial runs from the first line to the last; tutorials are stored without outputs."""

from __future__ import annotations

import json
import linecache
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import pytest
import torch
from test_docs import slugs
from test_real_decoder import pytestmark as real

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
REAL = ("induction",)  # of six minutes, on the pretrained decoder only
SLOW = ("scale-out", "gpt", "huggingface", "recall", "neurogame", "game-lora", "recall_by_hand")
MARKS: dict[str, Any] = dict.fromkeys(REAL, real) | dict.fromkeys(SLOW, pytest.mark.slow)
# The compiler of torch warns of parts of its own.
OF_TORCH = "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
MARKS["swap_sdpa"] = [pytest.mark.slow, pytest.mark.filterwarnings(OF_TORCH)]
each = pytest.mark.parametrize("path", TUTORIALS, ids=[path.stem for path in TUTORIALS])


def executed(paths: list[Path]) -> pytest.MarkDecorator:
    marked = [pytest.param(path, marks=MARKS.get(path.stem, ()), id=path.stem) for path in paths]
    return pytest.mark.parametrize("path", marked)


def notebook(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def code_cells(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook(path)["cells"] if cell["cell_type"] == "code"]


def run_cell(module: ModuleType, source: str, name: str) -> None:
    """Run a cell; a traceback names the notebook and the cell, and shows the line."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), vars(module))


@executed(TUTORIALS)
def test_tutorial_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(tmp_path)
    kernel = ModuleType("__main__")  # as in Jupyter: what a cell defines is found by pickle, and has no file
    monkeypatch.setitem(sys.modules, "__main__", kernel)
    dtype = torch.get_default_dtype()
    from matplotlib import pyplot

    try:
        with matplotlib.rc_context():
            for number, source in enumerate(code_cells(path), start=1):
                run_cell(kernel, source, f"<{path.name}, code cell {number}>")
    finally:
        pyplot.close("all")
        torch.set_default_dtype(dtype)


@each
def test_tutorial_is_stored_without_outputs(path: Path) -> None:
    found = notebook(path)
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    assert found["metadata"]["kernelspec"]["name"] == "python3"
    cells = found["cells"]
    names = [cell["id"] for cell in cells]
    assert len(set(names)) == len(names)
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@each
def test_tutorial_says_what_it_does_and_checks_it(path: Path) -> None:
    first = notebook(path)["cells"][0]
    assert first["cell_type"] == "markdown"
    assert "".join(first["source"]).startswith("# ")
    assert any(re.search(r"^ *assert ", source, re.MULTILINE) for source in code_cells(path))


@each
def test_links_of_a_tutorial_lead_to_files_and_headings(path: Path) -> None:
    text = "\n".join("".join(c["source"]) for c in notebook(path)["cells"] if c["cell_type"] == "markdown")
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
        if not target.startswith("https://"):
            linked = path.parent / target if target else path
            assert linked.exists(), target
            assert not anchor or (linked.suffix == ".md" and anchor in slugs(linked)), f"{target}#{anchor}"


@executed(EXAMPLES)
def test_example_runs_and_says_something(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_there_are_examples_and_tutorials() -> None:
    assert EXAMPLES
    assert TUTORIALS


def test_the_site_executes_all_but_what_needs_the_pretrained_decoder() -> None:
    conf = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    (patterns,) = re.findall(r"^nb_execution_excludepatterns = (\[.*\])", conf, re.MULTILINE)
    assert json.loads(patterns) == [f"tutorials/{name}.ipynb" for name in REAL]
    assert {*REAL} <= {path.stem for path in TUTORIALS}
