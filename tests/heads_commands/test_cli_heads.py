from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from diabat.attention.heads import Calibration
from diabat.cli import app
from diabat.huggingface import disable_gac, enable_gac, save_gac
from diabat.runs.heads.questions.template import shipped_templates

from . import tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model with its calibration beside it."""
    folder = tiny.folder(tmp_path_factory.mktemp("model"))
    calibrated(folder)
    return folder


def calibrated(folder: Path, seed: int = 0, **changes: Any) -> Path:
    built = tiny.decoder(seed)
    enable_gac(built, Calibration.of_groups({1: [0], 2: [1]}, 2, **changes))
    folder.mkdir(exist_ok=True)
    path = save_gac(built, folder)
    disable_gac(built)
    return path


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(app, ["heads", *map(str, arguments)])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tiny.lines(tmp_path / "mine.jsonl", tiny.films(12))


def test_evaluate_prints_a_table_and_goes_on_from_its_folder(model: Path, data: Path, tmp_path: Path) -> None:
    out, figure = tmp_path / "out", tmp_path / "maps.png"
    arguments = ("evaluate", model, "--data", data, "--random-groups", 2, "--all-heads", "--out", out)
    result = run(*arguments, "--figure", figure, "--no-progress")
    assert result.exit_code == 0, result.stderr
    for text in ("off", "calibrated", "all heads", "random (2)", "±", f"Figure: {figure}"):
        assert text in result.stdout
    assert figure.is_file()
    kept = json.loads((out / "questions.json").read_text())
    assert [row["state"] for row in kept["rows"]] == ["off", "calibrated", "all heads", "random (2)"]
    before = (out / "mine.log_odds.safetensors").stat().st_mtime_ns
    again = run(*arguments, "--json", "--no-progress")
    assert json.loads(again.stdout)["questions"]["rows"] == kept["rows"]
    assert (out / "mine.log_odds.safetensors").stat().st_mtime_ns == before


def test_the_calibration_is_that_beside_the_model_or_the_one_that_is_named(
    model: Path, data: Path, tmp_path: Path
) -> None:
    other = calibrated(tmp_path / "other", alpha=0.3)
    bare = tiny.folder(tmp_path / "bare")
    found = {}
    given: dict[str, list[Any]] = {
        "beside": [model],
        "file": [bare, "--calibration", other],
        "folder": [bare, "--calibration", other.parent],
        "changed": [model, "--alpha", 0.2, "--beta", 0.5],
        "none": [bare],
    }
    for name, arguments in given.items():
        result = run("evaluate", *arguments, "--data", data, "--count", 2, "--json", "--no-progress")
        assert result.exit_code == 0, result.stderr
        found[name] = json.loads(result.stdout)["questions"]
    used = {
        name: (report["calibration"]["alpha"], report["calibration"]["beta"])
        for name, report in found.items()
        if report["calibration"]
    }
    assert used == {"beside": (0.1, 0.1), "file": (0.3, 0.1), "folder": (0.3, 0.1), "changed": (0.2, 0.5)}
    assert [row["state"] for row in found["none"]["rows"]] == ["off"]
    assert found["none"]["sources"][0]["drawn"] == 2


def test_refusals_are_one_sentence(model: Path, data: Path, tmp_path: Path) -> None:
    option = tiny.lines(tmp_path / "option.jsonl", tiny.options(2))
    wrong = tiny.lines(tmp_path / "wrong.jsonl", [*tiny.films(1), {**tiny.films(1)[0], "label": "great"}])
    prompt = calibrated(tmp_path / "prompt", rows="prompt")
    other = calibrated(tmp_path / "other", seed=1)
    bare = tiny.folder(tmp_path / "bare")
    cases: list[tuple[list[Any], str]] = [
        ([model], "--data: expected at least one set of questions, or --tasks, got none."),
        ([model, "--data", option], "choices 0 and 1; use value='option_log_odds' (--value option_log_odds)."),
        ([model, "--data", wrong], "line 2: label: expected one of the choices ['good', 'bad', 'fine'] or its"),
        ([model, "--data", "sst"], "--data: expected a file ending in .jsonl or .yaml, or one of agnews"),
        (["/no/model", "--data", data], "MODEL: expected the name of a model or a folder, got '/no/model'"),
        ([model, "--data", data, "--calibration", other], "--calibration: expected the calibration of this model"),
        ([model, "--data", data, "--calibration", tmp_path / "none"], "no such file, expected a calibration that"),
        ([bare, "--data", data, "--alpha", 0.1], "--alpha: expected --calibration, or gac.json beside the model"),
        ([model, "--data", data, "--alpha", 1.5], "--alpha: expected a number in [0, 1], got 1.5."),
        ([bare, "--data", data, "--random-groups", 1], "--random-groups: expected a calibration to compare with"),
        ([bare, "--data", data, "--figure", tmp_path / "a.png"], "--calibration: expected one for maps"),
        ([model, "--data", data, "--figure", tmp_path / "a.txt"], "--figure: expected a file ending in .png"),
        ([model, "--data", data, "--layer", 9, "--figure", tmp_path / "a.png"],
         "--layer: expected one of 0, 1, 2, got 9"),
        (
            [model, "--data", option, "--value", "option_log_odds", "--calibration", prompt],
            "--calibration: expected rows='running' for option_log_odds of several tokens, got 'prompt'",
        ),
        ([model, "--data", data, "--dtype", "float64"], "--dtype: expected one of float32"),
        ([model, "--data", data, "--value", "odds"], "--value: expected one of log_odds"),
    ]  # fmt: skip
    for arguments, message in cases:
        result = run("evaluate", *arguments, "--no-progress", "--offline")
        assert result.exit_code in (1, 2), arguments
        assert message in result.stderr, result.stderr
        assert result.stderr.startswith("Error: ")
        assert result.stderr.count("\n") == 1
        assert result.stdout == ""


def test_an_interruption_says_where_the_scores_are(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diabat.runs.heads.evaluation import compare as evaluation

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "evaluate", interrupted)
    result = run("evaluate", model, "--data", data, "--out", tmp_path / "out")
    assert result.exit_code == 130
    assert f"Finished scores are in '{tmp_path / 'out'}'; repeat the command to continue." in result.stderr
    assert "--out FOLDER keeps finished scores" in run("evaluate", model, "--data", data).stderr


def test_templates_are_listed_printed_and_written(tmp_path: Path) -> None:
    listed = json.loads(run("templates", "--json").stdout)
    assert {row["name"] for row in listed} == set(shipped_templates())
    assert all(row["description"] for row in listed)
    text = shipped_templates()["trec"].read_text()
    assert run("templates", "trec").stdout == text
    path = tmp_path / "own" / "trec.yaml"
    result = run("templates", "trec", "--out", path)
    assert result.stdout == f"Written: {path}\n"
    assert path.read_text() == text
    assert "already exists" in run("templates", "trec", "--out", path).stderr
    assert run("templates", "trec", "--out", path, "--force").exit_code == 0
    assert "Did you mean 'trec'?" in run("templates", "trek").stderr
    assert "--out: expected the name of a template" in run("templates", "--out", path).stderr
