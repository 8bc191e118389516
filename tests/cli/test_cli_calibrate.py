import json
from pathlib import Path

import pytest
from cli_runs import run
from typer.testing import Result

SMALL = ["--spins", "3", "--instances", "3", "--queries", "2", "--times", "2,3", "--no-progress"]


def calibrate(*arguments: str) -> Result:
    return run("calibrate", *SMALL, *arguments)


def test_predicted_and_fitted_as_json_and_as_a_table(tmp_path: Path) -> None:
    figure = tmp_path / "new" / "figure.svg"
    result = calibrate("--json", "--figure", str(figure), "--seed", "4", "--strength", "0.2")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [row["annealing_time_ns"] for row in found["rows"]] == [2, 3]
    assert (found["num_spins"], found["instances"], found["queries"]) == (3, 3, 2)
    assert (found["seed"], found["strength"], found["num_reads"]) == (4, 0.2, None)
    row = found["rows"][0]
    assert row["predicted_beta_h"] == pytest.approx(3.641, abs=1e-3)
    assert row["fitted_beta_h"] == pytest.approx(3.641, rel=0.2)
    assert figure.read_text().startswith("<?xml")
    text = calibrate("--figure", str(figure)).stdout
    assert "Advantage2_system1 (fast)" in text
    assert "3.641" in text
    assert f"Figure: {figure}" in text


def test_a_schedule_from_a_file_with_reads(tmp_path: Path) -> None:
    table = tmp_path / "ramp.csv"
    rows = [f"{i / 20},{6 * (1 - i / 20)},{4 * i / 20}" for i in range(21)]
    table.write_text("\n".join(["s,A_GHz,B_GHz", *rows]) + "\n")
    options = ("--schedule", str(table), "--num-reads", "200", "--engine", "aer", "--steps", "60", "--json")
    found = json.loads(calibrate(*options).stdout)
    assert (found["schedule"], found["protocol"], found["num_reads"]) == ("ramp", None, 200)
    assert found["engine"] == "aer"
    assert [row["steps"] for row in found["rows"]] == [60, 60]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--times", "2,x"], "--times: expected positive numbers in ns, separated by commas, got '2,x'."),
        (["--times", "0"], "--times: expected positive numbers in ns, separated by commas, got '0'."),
        (["--times", ""], "--times: expected positive numbers in ns, separated by commas, got ''."),
        (["--protocol", "slow"], "--protocol: expected fast or standard, got 'slow'."),
        (["--figure", "f.xyz"], "--figure: expected a file ending in .png, .pdf, .svg, got 'f.xyz'."),
        (["--schedule", "Advantage2_system9"], "Did you mean 'Advantage2_system"),
        (["--schedule", "none.csv"], "none.csv: no such file"),
        (
            ["--schedule", "boltzmann-8"],
            "--schedule: expected an annealing schedule, which runs at any annealing",
        ),
        (["--schedule", "boltzmann-8"], "got 'boltzmann-8': a plan of angles, which has none."),
        (["--protocol", ""], "--protocol: expected fast or standard, got ''."),
        (["--spins", "30"], "got none; without reads expected at most 16 spins, got 30."),
        (["--strength", "nan"], "--strength: expected a finite number > 0, got nan."),
        (["--engine", "qpu"], "--engine: expected"),
        (["--times", "1e-6"], "--times: expected at least"),
        (["--steps", "50", "--times", "5"], "--steps: expected at least 57"),
        (["--engine", "primitive"], "--num-reads: expected a number of reads, got none; sampler 'dqa' does"),
    ],
)
def test_refusals_are_one_sentence(arguments: list[str], message: str) -> None:
    result = calibrate(*arguments)
    code = 1 if "no such file" in message else 2  # a file that is missing is no wrong usage
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_wrong_option_is_a_usage_error() -> None:
    assert calibrate("--instances", "0").exit_code == 2


def test_the_protocol_is_fast_unless_given() -> None:
    found = {
        given: json.loads(calibrate("--json", *(("--protocol", given) if given else ())).stdout)
        for given in (None, "fast", "standard")
    }
    assert found[None] == found["fast"]
    assert (found["fast"]["protocol"], found["standard"]["protocol"]) == ("fast", "standard")
    assert found["fast"]["rows"] != found["standard"]["rows"]
