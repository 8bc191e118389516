import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from cli_runs import run
from typer.testing import Result

SMALL = [
    *("calibration.spins=3", "calibration.instances=3", "calibration.queries=2"),
    *("calibration.times_ns=[2,3]", "--no-progress"),
]


def options_of(words: Iterable[str]) -> list[str]:
    return [w if "=" not in w else f"calibration.{w}" for w in words]


def calibrate(*arguments: str) -> Result:
    return run("calibrate", *SMALL, *options_of(arguments))


def test_predicted_and_fitted_as_json_and_as_a_table(tmp_path: Path) -> None:
    figure = tmp_path / "new" / "figure.svg"
    result = run("calibrate", *SMALL, "seed=4", "calibration.strength=0.2", "--json", "--figure", str(figure))
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [row["annealing_time_ns"] for row in found["rows"]] == [2, 3]
    options = found["options"]
    assert (options["spins"], options["instances"], options["queries"]) == (3, 3, 2)
    assert (found["seed"], options["strength"], options["num_reads"]) == (4, 0.2, None)
    row = found["rows"][0]
    assert row["predicted_beta_h"] == pytest.approx(3.641, abs=1e-3)
    assert row["fitted_beta_h"] == pytest.approx(3.641, rel=0.2)
    assert figure.read_text().startswith("<?xml")
    text = calibrate("--figure", str(figure)).stdout
    assert "Advantage2_system1 (fast)" in text
    assert "3.641" in text
    assert f"Figure: {figure}" in text


def test_a_configuration_describes_the_study_as_overrides_do(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("calibration: {spins: 3, instances: 3, queries: 2, times_ns: [2, 3]}\n")
    by_file = run("calibrate", str(file), "--no-progress", "--json")
    assert by_file.stdout == calibrate("--json").stdout
    other = json.loads(
        run("calibrate", str(file), "calibration.times_ns=[2]", "--no-progress", "--json").stdout
    )
    assert other["rows"] == json.loads(by_file.stdout)["rows"][:1]


def test_a_schedule_from_a_file_with_reads(tmp_path: Path) -> None:
    table = tmp_path / "ramp.csv"
    rows = [f"{i / 20},{6 * (1 - i / 20)},{4 * i / 20}" for i in range(21)]
    table.write_text("\n".join(["s,A_GHz,B_GHz", *rows]) + "\n")
    options = ("num_reads=200", "engine=aer", "steps=60", "--json")
    found = json.loads(calibrate(f"schedule={table}", *options).stdout)
    assert found["label"].startswith("ramp (")
    assert [row["steps"] for row in found["rows"]] == [60, 60]


def test_the_protocol_is_fast_unless_given() -> None:
    found = {
        given: json.loads(calibrate("--json", *([f"protocol={given}"] if given else [])).stdout)
        for given in (None, "fast", "standard")
    }
    assert found[None]["rows"] == found["fast"]["rows"] != found["standard"]["rows"]
    assert found[None]["label"] == "Advantage2_system1 (fast)"
    assert found["standard"]["label"] == "Advantage2_system1 (standard)"
