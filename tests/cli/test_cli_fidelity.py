import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from cli_runs import run, train
from typer.testing import Result

from diabat.studies.report import formatted

QUICK = [
    "fidelity.backends.dqa-5ns=null",
    "fidelity.backends.boltzmann-8=null",
    "fidelity.strengths=[0.5]",
    "fidelity.sizes=[3]",
    "fidelity.instances=2",
]


def fidelity(*arguments: str) -> Result:
    return run("fidelity", "fidelity", *QUICK, "--no-progress", *arguments)


def test_fidelity_reports_rows_as_json_and_as_a_table() -> None:
    rows = json.loads(fidelity("--json").stdout)["rows"]
    assert [(row["ensemble"], row["backend"]) for row in rows] == [
        ("SK", "mean_field"),
        ("ferromagnet", "mean_field"),
    ]
    assert [row["queries"] for row in rows] == [8, 8]
    text = fidelity().stdout
    assert "capture" in text
    assert re.fullmatch(
        r"Mean \|ΔP\| over all problems, best first: mean_field \(\S+\)\.", text.splitlines()[-1]
    )


def test_fidelity_without_a_configuration_takes_the_shipped_one() -> None:
    wanted = json.loads(fidelity("--json").stdout)["rows"]
    result = run("fidelity", *QUICK, "--no-progress", "--json")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert [row["marginal_mean"] for row in rows] == [row["marginal_mean"] for row in wanted]


def test_fidelity_on_a_trained_checkpoint_with_a_figure(tmp_path: Path) -> None:
    assert train(tmp_path / "run", "model.num_layers=2").exit_code == 0
    figure = tmp_path / "new" / "figure.svg"
    result = fidelity(f"fidelity.checkpoint={tmp_path / 'run'}", "--json", "--figure", str(figure))
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert [row["ensemble"] for row in rows[2:]] == ["trained, layer 1", "trained, layer 2"]
    assert all(row["num_spins"] == 4 for row in rows[2:])
    assert figure.read_text().startswith("<?xml")


def test_gradients_of_every_estimator_with_a_figure(tmp_path: Path) -> None:
    figure = tmp_path / "new" / "gradients.svg"
    options = ("fidelity.backends.exact.backend=exact", "fidelity.num_reads=20", "fidelity.ensembles=[sk]")
    command = ("gradients", "fidelity", *QUICK, "--no-progress", *options)
    result = run(*command, "--json", "--figure", str(figure))
    assert result.exit_code == 0, result.stderr
    content = json.loads(result.stdout)
    own = ["exact", "straight_through", "linear_response"]
    assert [row["estimator"] for row in content["rows"]] == [*own, *own, "covariance"]
    assert content["num_reads"] == 20
    assert figure.read_text().startswith("<?xml")
    text = run(*command).stdout
    assert sum("linear_response" in line for line in text.splitlines()) == 2
    assert "capture" not in text


LONG = "mean_field_with_a_name_of_one_s_own"


@pytest.mark.parametrize("width", [80, 130])
@pytest.mark.parametrize("backend", ["mean_field", LONG])
def test_nothing_of_the_table_is_cut_at_any_width(
    width: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are folded where the table is too wide; every number is there in full."""
    monkeypatch.setenv("COLUMNS", str(width))
    renamed = () if backend == "mean_field" else (
        "fidelity.backends.mean_field=null", f"fidelity.backends.{backend}.backend=mean_field"
    )  # fmt: skip
    rows = json.loads(fidelity(*renamed, "--json").stdout)["rows"]
    text = fidelity(*renamed).stdout.partition("\nMean |ΔP|")[0]  # what follows is a sentence
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in text
    assert len(rows) == 2
    for row in rows:
        for key in ("marginal_mean", "tv", "beta_h", "capture"):
            assert formatted(row[key]) in text
    # A folded name goes on below itself.
    assert "".join(word for word in text.split() if word in backend).count(backend) == 2


def test_a_damaged_checkpoint_is_a_sentence(tmp_path: Path) -> None:
    assert train(tmp_path / "run").exit_code == 0
    weights = tmp_path / "run" / "best.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    result = fidelity(f"fidelity.checkpoint={tmp_path / 'run'}")
    assert result.exit_code == 1
    assert "best.safetensors is damaged: " in result.stderr


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
