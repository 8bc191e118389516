"""``diabat heads calibrate``: the group per layer, the file, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from diabat.attention.games.tables import all_coalitions
from diabat.attention.heads import Calibration, HeadCoalitions, common, max_dividend
from diabat.huggingface import disable_gac, load_gac
from diabat.runs.heads.analysis.measure import analyse
from diabat.runs.heads.analysis.request import Options

from .analyses import questions, run, run_json
from .tiny import decoder

SET = questions(count=8)


@pytest.fixture(scope="module")
def model() -> Any:
    return decoder()


@pytest.fixture(scope="module")
def place(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    analyse(model, None, [SET], folder / "all")
    analyse(model, None, [SET], folder / "joint", Options(joint=True, layers=[1, 2], order=2))
    return folder


def games(model: Any) -> list[HeadCoalitions]:
    return [HeadCoalitions(model, SET.samples, layer=layer) for layer in range(3)]


def test_the_file_holds_the_salient_groups_and_is_loaded(model: Any, place: Path, tmp_path: Path) -> None:
    options = ("--alpha", "0.2", "--beta", "0.3", "--redistribution", "uniform", "--rows", "prompt")
    found = run_json("heads", "calibrate", place / "all", "--out", tmp_path, *options)
    assert found["path"] == str(tmp_path / "gac.json")
    expected = {}
    for layer, (game, group) in enumerate(zip(games(model), found["groups"], strict=True)):
        dividends = game.dividends()
        players = max_dividend(dividends)
        assert group["players"] == list(players)
        assert group["argmax_frequency"] == float(dividends.argmax_frequency()[dividends.largest()])
        expected[layer] = [head for _, head in game.heads(players)]
    calibration = load_gac(model, tmp_path)
    disable_gac(model)
    assert calibration == Calibration(expected, 0.2, 0.3, "prompt", "uniform")


def test_the_least_size_and_the_share(model: Any, place: Path, tmp_path: Path) -> None:
    two = run_json("heads", "calibrate", place / "all", "--least-size", "2", "--out", tmp_path / "two.json")
    half = run_json(
        "heads",
        "calibrate",
        place / "all",
        "--method",
        "common",
        "--share",
        "0.3",
        "--out",
        tmp_path / "c.json",
    )
    for game, of_two, of_half in zip(games(model), two["groups"], half["groups"], strict=True):
        dividends = game.dividends()
        assert of_two["players"] == list(max_dividend(dividends, 2))
        at = dividends.largest(2)
        assert of_two["argmax_frequency"] == float(dividends.argmax_frequency(least_size=2)[at])
        assert of_half["players"] == list(common(dividends, 0.3))
        assert of_half["argmax_frequency"] is None


def test_the_surrogate_searches_the_values_of_the_analysis(model: Any, place: Path, tmp_path: Path) -> None:
    found = run_json(
        *(
            "heads",
            "calibrate",
            place / "all",
            "--method",
            "surrogate",
            "--penalty",
            "0.02",
            "--out",
            tmp_path,
        ),
        *("--sampler", "tempering", "--evaluations", "16", "--seed", "3"),
    )
    for game, group in zip(games(model), found["groups"], strict=True):
        objective = game.table() - 0.02 * all_coalitions(4).sum(-1)
        best = all_coalitions(4)[int(objective.argmax())].nonzero()[:, 0].tolist()
        assert group["players"] == best  # 16 evaluations are all coalitions
        mask = torch.zeros(4, dtype=torch.bool)
        mask[best] = True
        assert group["value"] == pytest.approx(float(game.value(mask)))


def test_layers_may_be_left_out(place: Path, tmp_path: Path) -> None:
    found = run_json("heads", "calibrate", place / "all", "--layers", "0,2", "--out", tmp_path)
    assert list(found["calibration"]["salient"]) == ["0", "2"]


def test_a_joint_game_calibrates_all_its_layers(place: Path, tmp_path: Path) -> None:
    found = run_json("heads", "calibrate", place / "joint", "--out", tmp_path)
    (group,) = found["groups"]
    salient = found["calibration"]["salient"]
    assert set(salient) == {"1", "2"}
    assert sorted((int(layer), head) for layer in salient for head in salient[layer]) == [
        tuple(head) for head in group["heads"]
    ]
    part = run_json("heads", "calibrate", place / "joint", "--layers", "2", "--out", tmp_path / "2.json")
    assert part["calibration"]["salient"] == {"2": salient["2"]}


def test_says_how_certain_the_groups_are(place: Path, tmp_path: Path) -> None:
    result = run("heads", "calibrate", place / "all", "--out", tmp_path)
    groups = run_json("heads", "calibrate", place / "all", "--out", tmp_path / "again.json")["groups"]
    uncertain = [group["layers"][0] for group in groups if group["argmax_frequency"] < 0.5]
    assert uncertain, "the samples of this test are few on purpose"
    assert "Uncertain: layers " + ", ".join(map(str, uncertain)) in result.stdout
    assert f"Calibration: {tmp_path / 'gac.json'}" in result.stdout
    other = run("heads", "calibrate", place / "all", "--method", "common", "--out", tmp_path / "c.json")
    assert "known for max_dividend only" in other.stdout


def test_a_file_is_replaced_with_force_only(place: Path, tmp_path: Path) -> None:
    assert run("heads", "calibrate", place / "all", "--out", tmp_path).exit_code == 0
    before = (tmp_path / "gac.json").read_bytes()
    result = run("heads", "calibrate", place / "all", "--out", tmp_path, "--beta", "0.5")
    assert result.exit_code == 2
    assert "--force to replace it" in result.stderr
    assert (tmp_path / "gac.json").read_bytes() == before
    assert (
        run("heads", "calibrate", place / "all", "--out", tmp_path, "--beta", "0.5", "--force").exit_code == 0
    )
    assert (tmp_path / "gac.json").read_bytes() != before


def test_the_file_goes_into_the_analysis_if_no_other_is_named(place: Path) -> None:
    assert run("heads", "calibrate", place / "all" / "analysis.json").exit_code == 0
    assert (place / "all" / "gac.json").exists()
    # The folder is still that of its analysis.
    assert run("heads", "calibrate", place / "all", "--force").exit_code == 0


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "alpha": (("all", "--alpha", "1.5"), "--alpha: expected a number in [0, 1], got 1.5."),
    "beta": (("all", "--beta", "-0.1"), "--beta: expected a number in [0, 1], got -0.1."),
    "rows": (("all", "--rows", "all"), "--rows: expected one of running, prompt"),
    "redistribution": (("all", "--redistribution", "x"), "--redistribution: expected one of"),
    "method": (("all", "--method", "best"), "--method: expected one of max_dividend, common, surrogate"),
    "layers": (("all", "--layers", "3"), "--layers: expected layers that were analysed, [0, 1, 2], got 3."),
    "least": (("all", "--least-size", "5"), "--least-size: expected at most 4, got 5."),
    "share": (("all", "--method", "common", "--share", "0"), "--share: expected a number in (0, 1], got 0"),
    "order": (("joint", "--method", "surrogate"), "--method: expected max_dividend or common for dividends of at most"),
    "penalty": (("all", "--method", "surrogate", "--penalty", "-1"), "--penalty: expected a number >= 0"),
    "sampler": (("all", "--method", "surrogate", "--sampler", "exakt"), "--sampler: expected"),
    "file": (("all", "--out", "gac.txt"), "--out: expected a file ending in .json"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG.keys())
def test_refusals_name_the_option(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("heads", "calibrate", place / arguments[0], "--out", "here.json", *arguments[1:])
    assert (result.exit_code, result.stdout) == (2, ""), result.stderr
    assert result.stderr.startswith(f"Error: {message}"), result.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_analysis_is_refused(tmp_path: Path) -> None:
    result = run("heads", "calibrate", tmp_path / "nowhere", "--out", tmp_path / "x.json")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ANALYSIS: expected a finished analysis")
