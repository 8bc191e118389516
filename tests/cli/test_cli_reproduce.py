"""``diabat reproduce``: rows and seeds, resumption, errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import SMALL, run, run_json

from diabat.config import ConfigError, load_config
from diabat.config.experiments import Outcome, load_experiment, shipped_experiments, table_rows

LIMITS = ["training.max_steps=3", "training.checkpoint_every=1"]


@pytest.fixture
def experiment(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(
        "title: Small\nconfig: brackets-t8\nvary: model.mode\npublished: {softmax: 0.5, h+J: null}\nseeds: [3, 4]\n"
    )
    return str(path)


def test_rows_hold_every_seed_beside_the_published_value(tmp_path: Path, experiment: str) -> None:
    output = str(tmp_path / "runs")
    report = run_json("reproduce", experiment, *SMALL, *LIMITS, "--output", output, "--no-progress")
    assert [row["model.mode"] for row in report["rows"]] == ["softmax", "h+J"]
    assert [(o["value"], o["seed"]) for o in report["runs"]] == [
        ("softmax", 3),
        ("softmax", 4),
        ("h+J", 3),
        ("h+J", 4),
    ]
    assert report["rows"][1]["published"] is None
    stored = load_config(tmp_path / "runs" / "reproduce-small" / "h+J-seed4" / "config.json")
    assert (stored.model.mode, stored.seed, stored.training.seed) == ("h+J", 4, 4)


def test_finished_runs_are_read_and_not_trained_again(tmp_path: Path, experiment: str) -> None:
    command = ["reproduce", experiment, *SMALL, *LIMITS, "--output", str(tmp_path / "runs"), "--no-progress"]
    first = run_json(*command)
    weights = sorted((tmp_path / "runs").rglob("model.safetensors"))
    before = [path.stat().st_mtime_ns for path in weights]
    assert run_json(*command)["rows"] == first["rows"]
    assert sorted((tmp_path / "runs").rglob("model.safetensors")) == weights
    assert [path.stat().st_mtime_ns for path in weights] == before


def test_jobs_do_not_change_the_numbers(tmp_path: Path, experiment: str) -> None:
    command = ["reproduce", experiment, *SMALL, *LIMITS, "--no-progress", "--seed", "5"]
    alone = run_json(*command, "--output", str(tmp_path / "alone"))
    together = run_json(*command, "--output", str(tmp_path / "together"), "--jobs", "2")
    assert [r["seeds"] for r in together["rows"]] == [r["seeds"] for r in alone["rows"]]


def test_table_statistics() -> None:
    experiment = load_experiment("brackets-t12")
    outcomes = [Outcome("softmax", s, m, 1, 1.0) for s, m in enumerate((0.90, 0.94))]
    outcomes += [Outcome(v, 0, 0.5, 1, 1.0) for v in ("h+J", "h")]
    row = table_rows(experiment, outcomes)[0]
    assert row["mean"] == pytest.approx(0.92)
    assert row["std"] == pytest.approx(0.04 / 2**0.5)
    assert row["relative_difference"] == pytest.approx(0.92 / 0.9336 - 1)
    assert table_rows(experiment, outcomes)[1]["std"] is None


def test_shipped_experiments_load_with_their_configurations() -> None:
    listed = run("reproduce").stdout.split()
    assert listed == list(shipped_experiments())
    for name in listed:
        loaded = load_experiment(name)
        for value in loaded.published:
            load_config(loaded.config, [f"{loaded.vary}={value}"])


def test_errors_are_one_sentence(tmp_path: Path) -> None:
    assert "Did you mean 'brackets-t12'?" in run("reproduce", "bracket-t12").stderr
    path = tmp_path / "bad.yaml"
    path.write_text(json.dumps({"title": "x", "config": "brackets-t8", "vary": "model.mode", "publishd": {}}))
    with pytest.raises(ConfigError, match=r"publishd.*published"):
        load_experiment(str(path))
