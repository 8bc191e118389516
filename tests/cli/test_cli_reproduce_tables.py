"""``diabat reproduce`` of a table of windows: gaps, missing seeds, shared runs, the figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runs import run, run_json

from diabat.runs.experiments import Outcome, load_experiment
from diabat.runs.reproduction.figure import plot_experiment
from diabat.runs.reproduction.learned import (
    bracket_example,
    distance_profile,
    learned_couplings,
    learning_curve,
)
from diabat.training import load_model

YAML = """\
title: Small
config: brackets-t8
protocol: [task.num_train=40, task.num_validation=20, model.embed_dim=8, model.ffn_dim=0, training.batch_size=8,
           training.max_epochs=2, training.coupling_learning_rate=1e-2]
runs: shared
table:
  t4: {softmax: [0.5, 0.1], h+J: [0.9, 0.1]}
  t6: {softmax: [0.4, 0.1], h+J: [0.8]}
seeds: [0, 1]
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """File of the experiment and folder of its runs, without those of seed 1 at T = 6."""
    folder = tmp_path_factory.mktemp("table")
    (folder / "small.yaml").write_text(YAML)
    name, output = str(folder / "small.yaml"), str(folder / "runs")
    where = ("--output", output, "--no-progress")
    assert run("reproduce", name, *where, "--seed", "0").exit_code == 0
    assert (
        run("reproduce", name, *where, "--seed", "1", "--row", "t4-softmax", "--row", "t4-h+J").exit_code == 0
    )
    return name, output


def test_missing_seeds_are_shown_and_nothing_is_trained(
    trained: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")  # narrower terminals wrap the cells
    name, output = trained
    before = {path: path.stat().st_mtime_ns for path in Path(output).rglob("*.safetensors")}
    report = run_json("reproduce", name, "--output", output, "--no-train")
    assert {path: path.stat().st_mtime_ns for path in Path(output).rglob("*.safetensors")} == before
    assert [row["missing"] for row in report["rows"]] == [[], [], [1], [1]]
    assert [len(row["seeds"]) for row in report["rows"]] == [2, 2, 1, 1]
    first, second = report["gaps"]
    assert (first["first"], first["second"], first["counts"]) == ("t4-h+J", "t4-softmax", [2, 2])
    assert (first["published"], first["exceeds"]) == (pytest.approx(0.4), True)
    assert (second["p"], second["exceeds"]) == (None, None)
    assert report["fits"] == {"softmax": None, "h+J": None}
    shown = run("reproduce", name, "--output", output, "--no-train", "--row", "t6-h+J").stdout
    assert "(missing: 1)" in shown
    assert "t6-h+J - t6-softmax   1 and 0" in shown


def test_rows_without_runs_are_listed(trained: tuple[str, str], tmp_path: Path) -> None:
    report = run_json("reproduce", trained[0], "--output", str(tmp_path), "--no-train")
    assert [row["mean"] for row in report["rows"]] == [None] * 4
    assert report["gaps"] == []
    result = run(
        "reproduce", trained[0], "--output", str(tmp_path), "--no-train", "--figure", str(tmp_path / "x.png")
    )
    assert (result.exit_code, result.stderr) == (
        2,
        "Error: --figure: expected at least one finished run, got none.\n",
    )


def test_a_run_of_another_protocol_is_not_taken_for_one_of_this(trained: tuple[str, str]) -> None:
    name, output = trained
    result = run("reproduce", name, "model.embedding_dropout=0.3", "--output", output, "--no-progress")
    assert result.exit_code == 2
    assert "model.embedding_dropout: expected 0.0 as in the run" in result.stderr


def test_overrides_replace_the_protocol_but_not_the_rows(trained: tuple[str, str], tmp_path: Path) -> None:
    arguments = ("reproduce", trained[0], "--output", str(tmp_path), "--no-progress", "--seed", "0")
    result = run(*arguments, "task.window=5")
    assert "override 'task.window=5': expected a key that the experiment does not set (--row" in result.stderr
    report = run_json(*arguments, "--row", "t4-softmax", "training.max_epochs=1")
    assert report["runs"][0]["epochs"] == 1


def test_the_figure_is_drawn(trained: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    result = run("reproduce", trained[0], "--output", trained[1], "--no-train", "--figure", str(path))
    assert result.exit_code == 0, result.stderr
    assert f"Figure: {path}" in result.stdout
    assert path.stat().st_size > 20_000


def test_the_figure_has_a_panel_for_each_of_its_subjects(
    trained: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []

    def keep(figure: Any, path: Path) -> Path:
        drawn.append(figure)
        return path

    monkeypatch.setattr("diabat.runs.reproduction.figure.save_figure", keep)
    experiment, folder = load_experiment(trained[0]), Path(trained[1]) / "reproduce-shared"
    runs = [Outcome(f"t{T}-{arm}", 0, 0.5, 2, 1.0) for T in (4, 6) for arm in ("softmax", "h+J")]
    plot_experiment(experiment, folder, runs, tmp_path / "x.png")
    titles = [axis.get_title() for axis in drawn[0].axes if axis.get_title()]
    assert titles[0] == "t6-h+J: J, mean of 1 seed"
    assert titles[1].startswith("J by distance")
    assert titles[2].startswith("learning curves")
    assert titles[3] == "softmax: no fit, 5 windows needed, got 2\nh+J: no fit, 5 windows needed, got 2"
    assert [title.split(":")[0] for title in titles[4:]] == ["t6-softmax", "t6-h+J"]


def test_couplings_and_curve_of_a_run(trained: tuple[str, str]) -> None:
    folder = Path(trained[1]) / "reproduce-shared"
    J = learned_couplings(folder / "t6-h+J-seed0")
    assert J is not None
    assert torch.equal(J, J.T)
    pairs = next(v for k, v in load_model(folder / "t6-h+J-seed0").items() if k.endswith("coupling_pairs"))
    assert torch.equal(J[0, 1:].float(), pairs[0, :5])
    assert learned_couplings(folder / "t6-softmax-seed0") is None
    name, values = learning_curve(folder / "t6-softmax-seed0")
    assert (name, len(values)) == ("accuracy", 2)


def test_the_distance_profile_is_that_of_the_pairs() -> None:
    J = torch.tensor([[[0.0, 1.0, 5.0], [1.0, 0.0, -3.0], [5.0, -3.0, 0.0]]])
    mean, deviation, size = distance_profile(J)
    assert mean.tolist() == [-1.0, 5.0]
    assert deviation.tolist() == [2.0, 0.0]
    assert size.tolist() == [2.0, 5.0]


def test_the_example_is_the_word_with_the_most_pairs(trained: tuple[str, str]) -> None:
    found = bracket_example(Path(trained[1]) / "reproduce-shared" / "t6-h+J-seed0")
    assert found is not None
    assert found.symbols.count("(") == found.symbols.count(")") == len(found.closing) == 2
    for close, target in zip(found.closing.tolist(), found.targets.tolist(), strict=True):
        assert (found.symbols[target], found.symbols[close]) == ("(", ")")
    assert found.probabilities.shape == (2, 6)
    assert torch.allclose(found.probabilities.sum(-1), torch.ones(2))


def test_untrained_couplings_are_not_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mode J is uniform attention: its couplings stay 0."""
    text = YAML.replace("softmax: [0.5, 0.1]", "J: [0.5, 0.1]").replace(
        "softmax: [0.4, 0.1]", "J: [0.4, 0.1]"
    )
    (tmp_path / "untrained.yaml").write_text(text)
    where = ("--output", str(tmp_path / "runs"), "--no-progress", "--seed", "0")
    rows = ("--row", "t6-J", "--row", "t6-h+J")
    assert run("reproduce", str(tmp_path / "untrained.yaml"), *where, *rows).exit_code == 0
    folder = tmp_path / "runs" / "reproduce-shared"
    zero = learned_couplings(folder / "t6-J-seed0")
    assert zero is not None
    assert not zero.any()
    titles: list[str] = []
    monkeypatch.setattr(
        "diabat.runs.reproduction.figure.save_figure",
        lambda figure, path: titles.extend(axis.get_title() for axis in figure.axes),
    )
    runs = [Outcome(f"t6-{arm}", 0, 0.5, 2, 1.0) for arm in ("J", "h+J")]
    plot_experiment(load_experiment(str(tmp_path / "untrained.yaml")), folder, runs, tmp_path / "x.png")
    assert titles[0] == "t6-h+J: J, mean of 1 seed"
