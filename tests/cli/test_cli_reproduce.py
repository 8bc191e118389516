"""``diabat reproduce``: rows and seeds, resumption, errors."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from cli_runs import SMALL, run, run_json

from diabat.cli.config import described
from diabat.config import ConfigError, load_config, shipped_configs, to_plain
from diabat.runs import experiments
from diabat.runs.experiments import Experiment, Outcome, load_experiment, shipped_experiments
from diabat.runs.reproduction.rows import table_rows
from diabat.training import TrainingInterrupted

LIMITS = ["training.max_steps=3", "training.checkpoint_every=1"]


@pytest.fixture
def experiment(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(
        "title: Small\nconfig: brackets-t8\nvary: model.mode\npublished: {softmax: 0.5, h+J: null}\nseeds: [3, 4]\n"
    )
    return str(path)


def test_rows_have_every_seed_and_the_published_value(tmp_path: Path, experiment: str) -> None:
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
    assert (to_plain(stored)["model"]["mode"], stored.seed, stored.training.seed) == ("h+J", 4, 4)


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
    outcomes[1] = replace(outcomes[1], epochs=3, seconds=11.0)
    row = table_rows(experiment, outcomes)[0]
    # (1 + 11) seconds in 1 + 3 epochs.
    assert row["seconds_per_epoch"] == pytest.approx(3.0)
    assert row["cpu_seconds_per_epoch"] is None
    timed = [replace(o, cpu_seconds=o.seconds / 2) for o in outcomes]
    assert table_rows(experiment, timed)[0]["cpu_seconds_per_epoch"] == pytest.approx(1.5)
    # A mean over a part of the runs would be of other runs than the rest of the row.
    timed[1] = replace(timed[1], cpu_seconds=None)
    assert table_rows(experiment, timed)[0]["cpu_seconds_per_epoch"] is None
    assert row["mean"] == pytest.approx(0.92)
    assert row["std"] == pytest.approx(0.04 / 2**0.5)
    assert row["relative_difference"] == pytest.approx(0.92 / 0.9336 - 1)
    assert table_rows(experiment, outcomes)[1]["std"] is None


def test_a_run_without_a_whole_epoch_counts_as_one() -> None:
    experiment = Experiment(title="x", config="brackets-t8", vary="model.mode", published={"h": None})
    (row,) = table_rows(experiment, [Outcome("h", 0, 0.5, 0, 4.0)])
    assert (row["seconds_per_epoch"], row["relative_difference"]) == (4.0, None)


@pytest.fixture
def varied(tmp_path: Path) -> str:
    """Rows that differ in several keys, one of them without overrides of its own."""
    path = tmp_path / "varied.yaml"
    path.write_text(
        "title: Varied\nconfig: brackets-t8\nvary: model.mode\n"
        "published: {small: 0.5, anneal: null, h: null}\nseeds: [3]\n"
        "variants:\n"
        "  small: [model.embed_dim=4, gradient=straight_through]\n"
        "  anneal: [sampler.backend=dqa, sampler.annealing_time_ns=2, sampler.steps=60, gradient=adjoint]\n"
    )
    return str(path)


def test_variants_override_several_keys(tmp_path: Path, varied: str) -> None:
    output = str(tmp_path / "runs")
    report = run_json("reproduce", varied, *SMALL, *LIMITS, "--output", output, "--no-progress")
    assert [row["model.mode"] for row in report["rows"]] == ["small", "anneal", "h"]
    assert report["experiment"]["variants"]["small"] == ["model.embed_dim=4", "gradient=straight_through"]
    stored = {
        value: load_config(tmp_path / "runs" / "reproduce-varied" / f"{value}-seed3" / "config.json")
        for value in ("small", "anneal", "h")
    }
    models = [to_plain(c)["model"] for c in stored.values()]
    assert [model["embed_dim"] for model in models] == [4, 8, 8]
    assert [model["mode"] for model in models] == ["h+J", "h+J", "h"]
    assert [c.sampler.backend for c in stored.values()] == ["exact", "dqa", "exact"]
    assert [c.gradient for c in stored.values()] == ["straight_through", "adjoint", "auto"]
    assert stored["anneal"].sampler.options["steps"] == 60
    for row, outcome in zip(report["rows"], report["runs"], strict=True):
        assert row["seconds_per_epoch"] == pytest.approx(outcome["seconds"] / max(outcome["epochs"], 1))
        assert row["seconds_per_epoch"] > 0
        assert row["cpu_seconds_per_epoch"] == pytest.approx(
            outcome["cpu_seconds"] / max(outcome["epochs"], 1)
        )
        assert row["cpu_seconds_per_epoch"] > 0


def test_the_table_shows_the_time_of_an_epoch(
    tmp_path: Path, varied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # narrower terminals wrap the heads
    result = run("reproduce", varied, *SMALL, *LIMITS, "--output", str(tmp_path / "runs"), "--no-progress")
    assert result.exit_code == 0, result.stderr
    assert re.search(r"difference +s/epoch +CPU s/epoch", result.stdout)
    table, _ = result.stdout.split("Gaps, with Welch's t test")
    lines = [line.strip(" │┃|") for line in table.splitlines()]
    for name in ("small", "anneal", "h"):
        (line,) = [line for line in lines if line.split(" ")[0] == name]
        assert re.search(r"\d+\.\d +\d+\.\d$", line)


def test_variants_must_be_rows(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        "title: x\nconfig: brackets-t8\nvary: model.mode\npublished: {h: 0.5}\nvariants: {hJ: [seed=1]}\n"
    )
    with pytest.raises(ConfigError, match="variants: expected rows of published, got 'hJ'"):
        load_experiment(str(path))
    path.write_text(
        "title: x\nconfig: brackets-t8\nvary: model.mode\npublished: {h: 0.5}\nvariants: {h: seed=1}\n"
    )
    with pytest.raises(ConfigError, match=r"variants\.h: expected a list"):
        load_experiment(str(path))


def test_shipped_experiments_load_with_their_configurations() -> None:
    listed = [row["name"] for row in run_json("reproduce")]
    assert listed == list(shipped_experiments())
    text = run("reproduce").stdout
    for name in listed:
        assert name in text
        loaded = load_experiment(name)
        for value in loaded.published:
            load_config(loaded.config, loaded.overrides(value))


@pytest.mark.parametrize(
    "path", [*shipped_configs().values(), *shipped_experiments().values()], ids=lambda path: path.stem
)
def test_what_is_shipped_has_a_description_and_a_time(path: Path) -> None:
    found = described(path)
    assert 20 <= len(found["description"]) <= 105
    assert re.search(r"\d+ (s|min|h|day)|hours|days", found["time"])


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), TrainingInterrupted("continue with resume=True.")])
def test_an_interrupt_prints_that_the_command_resumes_by_itself(
    tmp_path: Path, experiment: str, monkeypatch: pytest.MonkeyPatch, stop: BaseException
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise stop

    monkeypatch.setattr(experiments, "run_training", interrupted)
    result = run("reproduce", experiment, *SMALL, "--output", str(tmp_path / "runs"), "--no-progress")
    assert result.exit_code == 130
    assert result.stderr.endswith("reproduce-small'; repeat the command to continue.\n")
    assert "resume" not in result.stderr


def test_a_folder_with_other_files_is_refused_without_advice_that_does_not_work(
    tmp_path: Path, experiment: str
) -> None:
    folder = tmp_path / "runs" / "reproduce-small" / "softmax-seed3"
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("x")
    result = run("reproduce", experiment, *SMALL, "--output", str(tmp_path / "runs"), "--no-progress")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "resume" not in result.stderr
    assert "name another place with --output" in result.stderr


def test_errors_are_one_sentence(tmp_path: Path) -> None:
    assert "Did you mean 'brackets-t12'?" in run("reproduce", "bracket-t12").stderr
    path = tmp_path / "bad.yaml"
    path.write_text(json.dumps({"title": "x", "config": "brackets-t8", "vary": "model.mode", "publishd": {}}))
    with pytest.raises(ConfigError, match=r"publishd.*published"):
        load_experiment(str(path))


@pytest.mark.parametrize("override", ["model.mode=softmax", "seed=3", "output=elsewhere"])
def test_what_the_rows_set_cannot_be_overridden(tmp_path: Path, experiment: str, override: str) -> None:
    result = run("reproduce", experiment, override, "--output", str(tmp_path / "runs"))
    assert result.exit_code == 2
    assert f"override '{override}': expected a key that the experiment does not set" in result.stderr
    assert not (tmp_path / "runs").exists()


def test_every_run_is_announced_before_the_next_one_starts(
    tmp_path: Path, experiment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def train(row: str, seed: int, *_: object) -> Outcome:
        events.append(f"train {row} {seed}")
        return Outcome(row, seed, 0.5, 1, 1.0)

    monkeypatch.setattr(experiments, "_train", train)
    experiments.run_experiment(
        load_experiment(experiment),
        tmp_path,
        seeds=[3],
        finished=lambda outcome: events.append(f"finished {outcome.value} {outcome.seed}"),
    )
    assert events == ["train softmax 3", "finished softmax 3", "train h+J 3", "finished h+J 3"]
