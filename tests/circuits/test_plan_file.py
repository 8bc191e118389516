from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diabat.circuits import (
    TrotterPlan,
    available_plans,
    builtin_plan,
    load_plan,
    plan_file,
    save_plan,
    schedule,
    trotter_plan,
)

from .conftest import random_plan

GOOD: dict[str, Any] = {
    "format": "diabat-plan",
    "version": 1,
    "field_angles_rad": [1.0, 2.0],
    "coupling_angles_rad": [1.0, 2.0],
    "mixer_angles_rad": [0.5, 1],
}


def write(folder: Path, content: Any) -> Path:
    path = folder / "mine.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def changed(**keys: Any) -> dict[str, Any]:
    return {key: value for key, value in {**GOOD, **keys}.items() if value is not None}


def test_round_trip_to_the_last_bit(tmp_path: Path) -> None:
    anneal = trotter_plan(schedule("Advantage2_system1"), 5.0)
    for number, plan in enumerate((anneal, random_plan(7, seed=1))):
        path = tmp_path / f"{number}.json"
        metadata = {"betas": [10.634, 11.554], "trained on": {"n": 4, "g": [0.2, 0.5]}, "note": "ωε"}
        save_plan(path, plan, metadata)
        loaded, found = load_plan(str(path))
        for key in ("field_angles", "coupling_angles", "mixer_angles"):
            assert (getattr(loaded, key) == getattr(plan, key)).all()
        assert (loaded.label, found) == (plan.label, metadata)
        assert "ωε" in path.read_text(encoding="utf-8")


def test_a_plan_without_label_and_metadata(tmp_path: Path) -> None:
    plan, metadata = load_plan(write(tmp_path, GOOD))
    assert (plan.label, metadata) == ("", {})
    assert plan.mixer_angles.tolist() == [0.5, 1.0]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    save_plan(path, random_plan(3, seed=1))
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"metadata: expected JSON values, got .*ndarray"):
        save_plan(path, random_plan(4, seed=2), {"angles": np.ones(2)})
    with pytest.raises(ValueError, match=r"metadata: expected JSON values, got .*nan"):
        save_plan(path, random_plan(4, seed=2), {"error": float("nan")})

    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        save_plan(path, random_plan(4, seed=2))
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1: expected a plan in JSON, got a file that starts ''"),
        ("hello\n", "line 1: expected a plan in JSON, got a file that starts 'hello'"),
        ("s,A_GHz,B_GHz\n0,1,2\n", "starts 's,A_GHz,B_GHz'; is it a schedule.*from_csv reads those"),
        ([1, 2], "expected format 'diabat-plan', got 'list'"),
        ({"angles": [1]}, "expected format 'diabat-plan', got None"),
        (changed(version=2), "expected version 1, got 2"),
        (changed(label=3), "expected label as a str, got 3"),
        (changed(metadata=[1]), r"expected metadata as a dict, got \[1\]"),
        (
            changed(mixer_angles_rad=None),
            "expected the key 'mixer_angles_rad', got only format, version, field",
        ),
        (changed(mixer_angles_rad=0.5), "expected mixer_angles_rad as a list of angles in radians, got 0.5"),
        (changed(field_angles_rad=[1.0, "2"]), "expected numbers in field_angles_rad, got '2' at step 1"),
        (changed(field_angles_rad=[True, 1.0]), "expected numbers in field_angles_rad, got True at step 0"),
        (changed(coupling_angles_rad=[1.0]), r"coupling_angles: expected shape \(2,\), got \(1,\)"),
        (changed(field_angles_rad=[]), r"field_angles: expected shape \(1,\), got \(0,\)"),
        (changed(mixer_angles_rad=[1.0, float("nan")]), "expected finite numbers, got NaN"),
        (changed(mixer_angles_rad=[1.0, 10**400]), "expected finite numbers in mixer_angles_rad"),
        (
            json.dumps(GOOD).replace('"version": 1', '"version": 2, "version": 1'),
            "the key 'version' is given twice",
        ),
        (changed(version=True), "expected version 1, got True"),
        (json.dumps(GOOD).replace("0.5", "1_0"), "expected a plan in JSON"),
        ("[" * 100_000, "nested too deeply"),
        (json.dumps(GOOD).replace("0.5", "1e999"), "mixer_angles: expected finite angles, got inf at step 0"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"mine\.json.*{message}"):
        load_plan(write(tmp_path, content))


def test_missing_folder_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.json: no such file, expected a plan in JSON"):
        load_plan(tmp_path / "none.json")
    with pytest.raises(ValueError, match="expected a readable plan file"):
        load_plan(tmp_path)
    (tmp_path / "bom.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert load_plan(tmp_path / "bom.json")[0].steps == 2
    (tmp_path / "x.json").write_bytes(b"{\xff")
    with pytest.raises(ValueError, match=r"x\.json: expected JSON in UTF-8, got byte 1"):
        load_plan(tmp_path / "x.json")


def test_shipped_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in available_plans():
        plan, _ = builtin_plan(name)
        assert isinstance(plan, TrotterPlan)
    for name in ("boltzmann-16", "boltzmann-4", "boltzmann-8"):
        save_plan(tmp_path / f"{name}.json", random_plan(int(name[10:]), seed=1), {"name": name})
    (tmp_path / "README.md").write_text("no plan")
    monkeypatch.setattr(plan_file, "_shipped", lambda: list(tmp_path.iterdir()))
    assert available_plans() == ("boltzmann-4", "boltzmann-8", "boltzmann-16")
    plan, metadata = builtin_plan("boltzmann-8")
    assert (plan.steps, metadata) == (8, {"name": "boltzmann-8"})
    with pytest.raises(ValueError, match=r"plan: .* got 'boltzman8'\. Did you mean 'boltzmann-8'"):
        builtin_plan("boltzman8")


@pytest.mark.parametrize("key", ["field_angles", "coupling_angles", "mixer_angles"])
def test_angles_that_have_lost_their_digits_are_refused(key: str) -> None:
    angles: dict[str, Any] = {
        name: np.array([0.1, 0.2]) for name in ("field_angles", "coupling_angles", "mixer_angles")
    }
    angles[key] = np.array([0.1, -1e12])
    with pytest.raises(ValueError, match=rf"{key}: expected at most 1e\+08 rad.*got -1e\+12 at step 1"):
        TrotterPlan(**angles)
