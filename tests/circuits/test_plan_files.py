"""Plans as files, and the range that a plan was trained for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diabat.circuits import (
    PlanRange,
    TrotterPlan,
    available_plans,
    builtin_plan,
    load_plan,
    plan_betas,
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
    (tmp_path / "bom.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert load_plan(tmp_path / "bom.json")[0].steps == 2


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


def test_spins_are_counted_by_field_and_by_row_of_couplings_also_where_squares_overflow() -> None:
    J = np.zeros((3, 3))
    J[0, 1] = J[1, 0] = 3.0
    J[1, 2] = J[2, 1] = -4.0  # row norms 3, 5, 4
    fields = np.array([[0.0, 0.0, 0.0], [2.1, -2.1, 2.0]])
    assert PlanRange(2.0, 9.0).outside(fields, J) == 2
    assert PlanRange(9.0, 4.0).outside(fields, J) == 2  # spin 1 of both problems
    assert PlanRange(2.0, 4.0).outside(fields, J) == 3
    own = np.stack([J, np.zeros_like(J)])
    assert PlanRange(9.0, 3.5).outside(fields, own) == 2
    assert PlanRange(9.0, 9.0).outside(fields, own) == 0
    J = np.array([[0.0, 1e200], [1e200, 0.0]])
    assert PlanRange(1.0, 1e300).outside(np.zeros((1, 2)), J) == 2


def test_a_file_need_not_state_a_range() -> None:
    assert PlanRange.of_metadata({"name": "mine"}) is None
    entry = {"trained_range": {"max_field": 3, "max_row_norm": 1.5, "note": "more is ignored"}}
    assert PlanRange.of_metadata(entry) == PlanRange(3, 1.5)


@pytest.mark.parametrize(("time", "steps"), [(2.0, 90), (5.0, None)])
def test_the_range_of_an_anneal_ends_where_a_strong_field_is_not_followed(
    time: float, steps: int | None
) -> None:
    """Against 2x2 matrices."""
    plan = trotter_plan(schedule("Advantage2_system1"), time, steps)
    beta_h = plan_betas(plan).beta_h
    limit = PlanRange.of_anneal(plan, beta_h).max_field
    assert 20 < limit * beta_h < 200

    def plus(h: float) -> float:
        psi = np.full(2, 0.5**0.5, dtype=complex)  # s = -1, +1
        for b, a in zip(plan.field_angles, plan.mixer_angles, strict=True):
            psi = psi * np.exp(0.5j * b * h * np.array([-1, 1]))
            psi = np.cos(a / 2) * psi + 1j * np.sin(a / 2) * psi[::-1]
        return float(abs(psi[1]) ** 2)

    assert (
        min(plus(h) for h in np.linspace(10 / beta_h, limit, 50)) > 0.95
    )  # narrow resonances lie between the points
    assert min(plus(h) for h in limit * np.linspace(1.0, 1.1, 10)) < 0.97
