"""``diabat explain`` for trained decoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_runs import run, run_json, train
from torch.testing import assert_close

from diabat.attention import couplings_of
from diabat.lab.runs import load_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoder") / "run"
    options = ("model.num_layers=2", "model.num_heads=2", "task.window=8", "model.mode=h+J")
    assert train(folder, *options).exit_code == 0
    return folder


def test_tables_name_weights_correlations_and_positions(trained: Path, tmp_path: Path) -> None:
    figure = tmp_path / "why.png"
    shown = run("explain", str(trained), "(a(b)c)", "--figure", str(figure))
    assert shown.exit_code == 0, shown.stderr
    assert "Mode h+J, sampler exact" in shown.stdout
    assert "Predicted at position 6 ())" in shown.stdout
    assert "Attention of position 6, mean over layers and heads" in " ".join(shown.stdout.split())
    assert "Strongest connected correlations of position 6" in shown.stdout
    assert "J_jk" in shown.stdout
    assert f"Figure: {figure}" in shown.stdout
    assert figure.stat().st_size > 10_000
    chosen = run("explain", str(trained), "(a(b)c)", "--layer", "1", "--head", "0", "--position", "0")
    assert "layer 1, head 0" in " ".join(chosen.stdout.split())
    assert "The query has only one spin." in chosen.stdout
    few = run("explain", str(trained), "(a(b)c)", "--at-least", "0.9")
    assert "No pair with |C_jk| >= 0.9." in few.stdout
    assert "Attention of position" not in run("explain", str(trained), "(a)", "--top", "0").stdout


def test_json_has_every_field(trained: Path) -> None:
    found = run_json("explain", str(trained), "(a(b)c)", "--position", "4")
    assert (found["mode"], found["sampler"], found["position"]) == ("h+J", "exact", 4)
    assert found["tokens"] == list("(a(b)c)")
    assert found["targets"] == [None, None, None, None, "2", None, "0"]
    assert found["coupled"] == [0, 1, 2, 3, 4]
    assert len(found["probabilities"][0]) == len(found["classes"]) == 8
    assert len(found["correlations"]) == len(found["attention"]) == len(found["effective"]) == 2
    assert found["without_correlations"] is None
    checkpoint = trained / "latest.safetensors"
    assert run_json("explain", str(checkpoint), "(a)")["coupled"] == [0, 1, 2]


def test_controls_and_backends_without_correlations_say_so(tmp_path: Path) -> None:
    for name, options, sentence in (
        ("softmax", ["model.mode=softmax"], "Softmax attention has no spins, and therefore no correlations."),
        ("mf", ["sampler.backend=mean_field"], "Sampler 'mean_field' computes marginals only"),
    ):
        assert train(tmp_path / name, *options).exit_code == 0
        shown = run("explain", str(tmp_path / name), "(a)")
        assert shown.exit_code == 0, shown.stderr
        assert sentence in shown.stdout
        assert run_json("explain", str(tmp_path / name), "(a)")["correlations"] is None


def test_reads_repeat_with_the_seed(tmp_path: Path) -> None:
    options = ("sampler.backend=tempering", "model.relative=true")
    assert train(tmp_path / "run", *options).exit_code == 0
    first, again = (run_json("explain", str(tmp_path / "run"), "(ab)") for _ in range(2))
    other = run_json("explain", str(tmp_path / "run"), "(ab)", "training.seed=7")
    assert first == again
    reads = first["num_reads"]
    assert reads > 1
    assert first["correlations"] != other["correlations"]
    assert f"Estimated from {reads} reads" in run("explain", str(tmp_path / "run"), "(ab)").stdout


LAYOUTS: dict[str, list[str]] = {
    "all": [],
    "banded": ["model.bandwidth=2"],
    "relative": ["model.relative=true", "model.attention_window=4", "model.mode=J-self"],
    "triples": ["model.mode=h+J+K"],
}
START = ["model.num_layers=2", "model.num_heads=2", "model.coupling_init.std=0.3", "task.window=6"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_couplings_of_a_run_by_distance(layout: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert train(folder, *START, *LAYOUTS[layout]).exit_code == 0
    found: dict[str, Any] = run_json("explain", str(folder), "--couplings", "--layer", "1", "--head", "0")
    _, J = [part.matrix() for part in couplings_of(load_run(folder).model).values()]
    assert J is not None
    reach, window = {"banded": (2, 6), "relative": (3, 4)}.get(layout, (5, 6))
    assert [row["distance"] for row in found["by_distance"]] == [*range(1, reach + 1)]
    for row in found["by_distance"]:
        diagonal = J[0, 0].detach().diagonal(row["distance"])
        assert row["pairs"] == len(diagonal) == window - row["distance"]
        assert row["mean"] == pytest.approx(float(diagonal.mean()), abs=1e-7)
        assert row["negative"] == pytest.approx(float((diagonal < 0).double().mean()))
    assert "Learned J by distance, all layers, all heads" in run("explain", str(folder), "--couplings").stdout


def test_couplings_of_several_runs_have_a_spread(tmp_path: Path) -> None:
    folders = [str(tmp_path / f"run{seed}") for seed in range(3)]
    for seed, folder in enumerate(folders):
        assert train(Path(folder), *START, f"seed={seed}").exit_code == 0
    figure = tmp_path / "J.png"
    shown = run("explain", *folders, "training.seed=3", "--couplings", "--figure", str(figure))
    assert shown.exit_code == 0, shown.stderr
    assert "Attention h+J, 3 runs" in shown.stdout
    assert figure.stat().st_size > 10_000
    of_each = [run_json("explain", folder, "--couplings")["couplings"][0] for folder in folders]
    found = run_json("explain", *folders, "--couplings")
    assert_close(found["couplings"], of_each)
    assert all(row["deviation_of_runs"] > 0 for row in found["by_distance"])
    assert train(tmp_path / "other", *START, "model.bandwidth=2").exit_code == 0
    refused = run("explain", folders[0], str(tmp_path / "other"), "--couplings")
    assert "expected h+J, 2 x 2 heads of 15 pairs within distance 5, as in" in refused.stderr
    assert "got h+J, 2 x 2 heads of 9 pairs within distance 2." in refused.stderr
