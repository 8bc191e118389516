"""The table over annealing times: right numbers in the right columns, refusals before the work."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from diabat.circuits import TrotterPlan, linear_ramp, minimum_steps, predicted_beta, schedule
from diabat.samplers.dqa import DQASampler
from diabat.samplers.pseudolikelihood import fit_state_betas
from diabat.studies.calibration import (
    COLUMNS,
    CalibrationTable,
    calibration_table,
    plot_calibration,
)
from diabat.studies.fidelity import sk, states

PLAN = TrotterPlan(*np.ones((3, 1)))
SMALL: dict[str, Any] = {"engine": "native", "num_spins": 3, "instances": 4, "queries": 2}


@pytest.fixture(scope="module")
def small() -> CalibrationTable:
    return calibration_table([5.0, 2.0], strength=0.3, seed=1, **SMALL)


def test_every_number_of_a_row(small: CalibrationTable) -> None:
    assert [row["annealing_time_ns"] for row in small.rows] == [2.0, 5.0]
    row = small.rows[0]
    betas = predicted_beta(schedule("Advantage2_system1"), 2.0)
    assert (row["predicted_beta_h"], row["predicted_beta_J"]) == tuple(betas)
    (ensemble,) = sk([0.3], num_spins=3, instances=4, queries=2, seed=1)
    backend = DQASampler(engine="native", annealing_time_ns=2.0)
    law = backend.state_probabilities(ensemble.ising)
    fit = fit_state_betas(ensemble.ising, law, groups=torch.arange(4)[:, None])
    assert fit.field is not None
    assert fit.coupling is not None
    assert row["fitted_beta_h"] == pytest.approx(fit.field * betas.beta_h)
    assert row["fitted_beta_J"] == pytest.approx(fit.coupling * betas.beta_J)
    ends = fit.interval("coupling", 0.95)
    assert ends is not None
    got = (row["fitted_beta_J_low"], row["fitted_beta_J_high"])
    assert got == pytest.approx((ends[0] * betas.beta_J, ends[1] * betas.beta_J))
    assert row["steps"] == backend.plan.steps
    h = float(ensemble.ising.fields.square().mean().sqrt())
    assert row["programmed_h_rms"] == pytest.approx(h / betas.beta_h)
    assert ensemble.ising.couplings is not None
    # Six of the nine entries of each J are couplings, every one twice.
    J = math.sqrt(float(ensemble.ising.couplings.square().mean()) * 9 / 6)
    assert row["programmed_J_rms"] == pytest.approx(J / betas.beta_J)
    (target,) = (states.states_of(_exact(), ensemble.ising),)
    assert row["tv_before"] == pytest.approx(float(states.total_variation(law, target).mean()), abs=1e-6)


def _exact() -> Any:
    import diabat

    return diabat.sampler("exact")


def test_weak_problems_come_out_as_predicted() -> None:
    """First order is exact for weak problems; the rest, linear in g, is random in sign and averages out."""
    (row,) = calibration_table([5.0], strength=0.01, **SMALL).rows
    assert row["fitted_beta_h"] == pytest.approx(row["predicted_beta_h"], rel=0.01)
    assert row["fitted_beta_J"] == pytest.approx(row["predicted_beta_J"], rel=0.01)
    # One beta for both would be 8 % off.
    assert row["fitted_beta_J"] / row["fitted_beta_h"] == pytest.approx(11.554 / 10.634, rel=0.015)
    assert row["explained"] > 0.9999


def test_the_correction_helps_and_no_beta_reduces_the_rest(small: CalibrationTable) -> None:
    for row in small.rows:
        assert row["tv_own"] < row["tv_before"]
        assert row["tv_after"] < row["tv_before"]
        assert 0.9 < row["explained"] < 1


def test_reads_instead_of_laws() -> None:
    reads = calibration_table([2.0], num_reads=300, seed=1, **SMALL)
    other = calibration_table([2.0], num_reads=300, seed=1, **SMALL)
    exact = calibration_table([2.0], seed=1, **SMALL)
    assert reads == other
    assert reads.num_reads == 300
    assert reads.rows[0]["fitted_beta_h"] != exact.rows[0]["fitted_beta_h"]
    assert reads.rows[0]["tv_before"] == exact.rows[0]["tv_before"]


def test_long_anneals_get_the_steps_they_need() -> None:
    (row,) = calibration_table([20.0], **(SMALL | {"instances": 2, "queries": 1})).rows
    assert row["steps"] > minimum_steps(schedule("Advantage2_system1"), 20.0) > 450
    with pytest.raises(ValueError, match="steps: expected at least 249"):
        calibration_table([2.0, 20.0], steps=200, **SMALL)


def test_one_instance_has_no_interval_and_own_schedules_have_no_protocol() -> None:
    found = calibration_table([3.0], schedule=linear_ramp(6.0, 4.0), **(SMALL | {"instances": 1}))
    (row,) = found.rows
    assert row["fitted_beta_h_low"] is row["fitted_beta_J_high"] is None
    assert found.label.endswith("(linear)")
    assert " ± " not in "\n".join(_print(found).splitlines()[3:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"times_ns": [5.0, -1.0]}, "times_ns: expected positive finite times in ns"),
        ({"times_ns": []}, "times_ns: expected positive finite times in ns"),
        ({"strength": 0.0}, "strength: expected a finite number > 0, got 0"),
        ({"level": 95}, "level: expected a number between 0 and 1, got 95"),
        ({"num_reads": 0}, "num_reads: expected an integer >= 1, got 0"),
        ({"engine": "qpu"}, "engine: expected"),
        ({"schedule": PLAN}, "schedule: expected an annealing schedule, .*, got one: a plan of angles"),
        (
            {"schedule": "boltzmann-8"},
            "schedule: expected .*, got 'boltzmann-8': a plan of angles, which has none",
        ),
        ({"schedule": "boltzmann-8", "protocol": "fast"}, "schedule: expected .*, got 'boltzmann-8'"),
        ({"instances": 0}, "instances: expected an integer >= 1, got 0"),
    ],
)
def test_refusals(options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any, **options: Any) -> None:
        raise AssertionError("computed before refusing")

    monkeypatch.setattr("diabat.studies.calibration.report.measure", never)
    with pytest.raises(ValueError, match=message):
        calibration_table(**({"times_ns": [2.0]} | SMALL | options))


def test_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    calibration_table([2.0], progress=True, **SMALL)
    out, err = capsys.readouterr()
    assert out == ""
    assert "annealing times" in err


def test_json_explains_its_columns(small: CalibrationTable) -> None:
    content = json.loads(small.to_json())
    assert content["definitions"].keys() == content["rows"][0].keys() == COLUMNS.keys()
    assert content["rows"][1]["fitted_beta_h"] == small.rows[1]["fitted_beta_h"]
    assert (content["schedule"], content["engine"], content["seed"]) == ("Advantage2_system1", "native", 1)


def _print(table: CalibrationTable, *, narrow: bool = True, width: int = 80) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(table.table(narrow=narrow))
    return stream.getvalue()


def test_table_fits_and_shows_predicted_and_fitted_values(small: CalibrationTable) -> None:
    row = small.rows[1]
    # A long anneal with wide intervals.
    wide: dict[str, Any] = {
        f"{kind}_beta_{term}{end}": value
        for term in "hJ"
        for kind, end, value in (("predicted", "", 284.2), ("fitted", "", 280.0), ("fitted", "_high", 310.0))
    }
    long = row | {"annealing_time_ns": 100.0, "steps": 4000, **wide}
    text = _print(dataclasses.replace(small, rows=[row, long]))
    line = next(line for line in text.splitlines() if line.lstrip().startswith("5 "))
    half = row["fitted_beta_h_high"] - row["fitted_beta_h"]
    assert f"10.63 {row['fitted_beta_h']:.2f} ± {half:.2f} 11.55 " in " ".join(line.split())
    assert "284.2 280.0 ± 30.0 284.2 280.0 ± 30.0" in " ".join(text.split())
    assert "…" not in text
    assert "h rms" not in text
    assert "…" not in _print(small, narrow=False, width=140)
    assert "h rms" in _print(small, narrow=False, width=140)


EMPTY = {key: None for key in COLUMNS if key.startswith(("fitted", "tv", "kl", "explained", "pseudo"))}


@pytest.mark.parametrize("rows", ["all", "one", "without fit"])
def test_figure(small: CalibrationTable, rows: str, tmp_path: Path) -> None:
    chosen = {
        "all": small.rows,
        "one": small.rows[:1],
        "without fit": [row | EMPTY for row in small.rows],
    }[rows]
    path = plot_calibration(dataclasses.replace(small, rows=chosen), tmp_path / "figure.svg")
    text = path.read_text()
    assert "annealing time" in text
    assert text.count("fitted -->") == (0 if rows == "without fit" else 2)
    assert "–" in _print(dataclasses.replace(small, rows=chosen)) or rows != "without fit"


def test_the_protocol_of_a_file_of_several(tmp_path: Path) -> None:
    path, s = tmp_path / "both.csv", [k / 40 for k in range(41)]
    rows = [f"{word},{x},{6 * (1 - x)},{b * x}" for word, b in (("fast", 1), ("standard", 2)) for x in s]
    path.write_text("\n".join(["protocol,s,A_GHz,B_GHz", *rows]) + "\n")
    small: dict[str, Any] = {"schedule": str(path), "num_spins": 2, "instances": 2, "queries": 1}
    found = calibration_table([2.0], protocol="standard", **small)
    fast = calibration_table([2.0], protocol="fast", **small)
    assert (found.protocol, fast.protocol) == ("standard", "fast")
    assert found.rows[0]["predicted_beta_h"] == pytest.approx(2 * fast.rows[0]["predicted_beta_h"])
