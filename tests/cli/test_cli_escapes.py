"""What a file names is printed escaped: it moves no cursor, turns no writing around, and makes no line of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dimod
import numpy as np
import pytest
import torch
from cli_runs import run
from safetensors.numpy import save_file

from diabat.checkpoints import CheckpointError
from diabat.checks import ArgumentError, escaped
from diabat.circuits import builtin_plan, from_csv
from diabat.circuits.plan_file import load_plan, save_plan
from diabat.cli.output import print_table, say
from diabat.heads.games.store import ValueStore
from diabat.lab.config import load_config
from diabat.lab.tasks.data import DataError, text_of
from diabat.lab.training.checkpoint import copy_tensors

EVIL = "a\x1b[2J\u202eb\nError: c\x9b1m\x7f\u2028d"
SHOWN = "a\\u001b[2J\\u202eb\\nError: c\\u009b1m\\u007f\\u2028d"


def assert_clean(text: str) -> None:
    assert all(c.isprintable() or c == "\n" for c in text), repr(text)
    assert not any(line.startswith("Error: c") for line in text.splitlines())


def test_escapes_are_those_of_json_and_leave_readable_text_alone() -> None:
    assert escaped(EVIL) == SHOWN
    assert json.loads(f'"{escaped(EVIL)}"') == EVIL
    for text in ("", "naïve 日本\u3000語 α ⟨s⟩ 😀", "a\u00a0b"):
        assert escaped(text) == text
    assert escaped("a\nb\t\ud800", keep="\n") == "a\nb\\t\\ud800"


@pytest.mark.parametrize(
    "options", [(), ("--correlations",), ("--samples",), ("--lowest",), ("--compare", "banded")]
)
def test_labels_of_a_model(options: tuple[str, ...], tmp_path: Path) -> None:
    bqm = dimod.BinaryQuadraticModel({EVIL: 1.0, "y": 0.5}, {(EVIL, "y"): -1.0}, 0.0, "SPIN")
    (tmp_path / "p.json").write_text(json.dumps(bqm.to_serializable()))
    found = run("sample", str(tmp_path / "p.json"), *options)
    assert (found.exit_code, SHOWN in found.output) == (0, True), found.output
    assert_clean(found.output)


def test_cells_of_long_tables(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("t", ("a", "b"), [(EVIL, "x")] * 1001)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == f"{SHOWN}\tx"
    assert len(lines) == 1004


def hostile_plan(path: Path, **metadata: Any) -> Path:
    plan, own = builtin_plan("boltzmann-4")
    rows = [{"name": EVIL, "instances": 1, "num_spins": 2, "strength": 0.5}]
    object.__setattr__(plan, "label", EVIL)
    save_plan(path, plan, own | {"loss": 0.5, "command": EVIL, "held_out": {"rows": rows}} | metadata)
    return path


def test_label_and_metadata_of_a_plan(tmp_path: Path) -> None:
    found = run("anneal", "show", str(hostile_plan(tmp_path / "plan.json")))
    assert (found.exit_code, found.output.count(SHOWN)) == (0, 3), found.output
    assert_clean(found.output)


@pytest.mark.parametrize(("metadata", "sentence"), [
    ({"loss": "low"}, "expected a number as metadata.loss, got 'low'"),
    ({"loss": None}, "expected a number as metadata.loss, got None"),
    ({"held_out": [1]}, "expected rows of numbers in metadata.held_out, got 1"),
    ({"held_out": {"rows": "many"}}, "expected rows of numbers in metadata.held_out, got 'many'"),
    ({"held_out": {"rows": [{"name": "a"}]}}, "expected rows of numbers in metadata.held_out, got {'name': 'a'}"),
    ({"held_out": {"rows": [{"name": "a", "instances": 1, "learned": "x"}]}}, "expected rows of numbers"),
    ({"trained_range": 3}, "trained_range: expected"),
])  # fmt: skip
def test_metadata_of_other_types_is_refused(metadata: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    found = run("anneal", "show", str(hostile_plan(tmp_path / "plan.json", **metadata)))
    assert found.exit_code == 1
    assert f"{sentence}" in found.stderr
    assert "unexpected" not in found.stderr


def test_keys_of_a_plan_and_names_of_solvers_in_errors(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps({"format": "diabat-plan", "version": 1, EVIL: 1}))
    with pytest.raises(ValueError, match="got only") as caught:
        load_plan(tmp_path / "p.json")
    assert_clean(str(caught.value))
    evil = EVIL.replace("\n", "").replace("\u2028", "")
    rows = "".join(f"{name},{k / 12},{6 - k / 2},{k}\n" for name in (evil, "b") for k in range(13))
    (tmp_path / "s.csv").write_text(f"solver,s,A_GHz,B_GHz\n{rows}")
    with pytest.raises(ValueError, match="expected one solver, got ") as caught:
        from_csv(tmp_path / "s.csv")
    assert_clean(str(caught.value))
    overrides = ("sampler.backend=dqa", f"sampler.schedule={tmp_path / 's.csv'}")
    (tmp_path / "p.yaml").write_text("fields: [1.0]\n")
    found = run("sample", str(tmp_path / "p.yaml"), *overrides)
    assert (found.exit_code, escaped(evil) in found.stderr) == (2, True), found.stderr
    assert_clean(found.output)


def test_keys_of_an_analysis_and_of_a_store(tmp_path: Path) -> None:
    about = {"identity": {EVIL: "x"}, "heads": {"0": 8}, "analysis": {EVIL: 1}}
    text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    empty = {"keys": np.zeros((0, 1), np.uint8), "values": np.zeros((1, 0))}
    save_file({"about": text, **empty}, tmp_path / "values.safetensors")
    found = run("heads", "calibrate", str(tmp_path))
    assert (found.exit_code, "analysis" in found.stderr) == (2, True)
    assert_clean(found.output)
    with pytest.raises(ArgumentError, match="with other ") as caught:
        ValueStore({0: 8}, 1, tmp_path / "values.safetensors")
    assert_clean(str(caught.value))


def test_names_of_texts_and_tensors_of_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="got none at") as data:
        text_of("task.data", EVIL)
    assert_clean(str(data.value))
    with pytest.raises(CheckpointError, match="of another model") as checkpoint:
        copy_tensors({EVIL: torch.zeros(1)}, {}, tmp_path)
    assert_clean(str(checkpoint.value))


def test_texts_of_a_configuration_read_the_same_as_they_are_shown(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(json.dumps({"output": EVIL}))
    found = run("config", "show", str(tmp_path / "c.yaml"))
    assert found.exit_code == 0
    assert_clean(found.output)
    (tmp_path / "again.yaml").write_text(found.output)
    assert load_config(tmp_path / "again.yaml") == load_config(tmp_path / "c.yaml")


def test_json_says_the_same_with_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    say(json.dumps({EVIL: "\U000e0001 ⟨s⟩"}, ensure_ascii=False, indent=1))
    printed = capsys.readouterr().out
    assert_clean(printed)
    assert json.loads(printed) == {EVIL: "\U000e0001 ⟨s⟩"}
