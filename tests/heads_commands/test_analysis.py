"""Analyses of the heads of a model: what they hold, and that they go on from where they were stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from diabat.attention.heads import Calibration, HeadCoalitions, known
from diabat.checks import ArgumentError
from diabat.huggingface import disable_gac, enable_gac
from diabat.huggingface.gac.config import fingerprint
from diabat.runs.heads import QuestionSet
from diabat.runs.heads.analysis.folder import Analysis, read_analysis
from diabat.runs.heads.analysis.measure import _Work, analyse
from diabat.runs.heads.analysis.plan import Plan
from diabat.runs.heads.analysis.request import Options
from diabat.training.errors import OutputError
from diabat.training.folder import locked

from .analyses import questions
from .tiny import decoder

SETS = [questions("q", 4), questions("r", 3, seed=5)]


@pytest.fixture(scope="module")
def model() -> Any:
    return decoder()


@pytest.fixture(scope="module")
def whole(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished analysis."""
    folder = tmp_path_factory.mktemp("whole") / "analysis"
    analyse(model, None, SETS, folder, name="tiny")
    return folder


def test_holds_the_dividends_of_every_layer(model: Any, whole: Path) -> None:
    found = read_analysis(whole)
    samples = [sample for one in SETS for sample in one.samples]
    assert [game.layers for game in found.games] == [(0,), (1,), (2,)]
    for layer, game in enumerate(found.games):
        direct = HeadCoalitions(model, samples, layer=layer)
        table, dividends = direct.table(), direct.dividends()
        assert game.players == direct.groups
        assert (game.value_of_none, game.value_of_all) == pytest.approx((float(table[0]), float(table[-1])))
        assert game.dividends == tuple(dividends.value.tolist())
        assert game.standard_errors == tuple(dividends.standard_error.tolist())
        assert sum(game.order_sums) == pytest.approx(game.value_of_all - game.value_of_none)
        for size in (1, 3):
            expected = dividends.argmax_frequency(least_size=size)
            kept = torch.zeros_like(expected)
            for at, frequency in game.argmax_frequency[size - 1]:
                kept[at] = frequency
            assert torch.equal(kept, expected)


def test_says_what_was_analysed(model: Any, whole: Path) -> None:
    found = json.loads((whole / "analysis.json").read_text())
    assert found["model"] == fingerprint(model)
    assert found["request"]["model"] == "tiny"
    assert [(one["name"], one["samples"]) for one in found["request"]["data"]] == [("q", 4), ("r", 3)]
    assert found["request"]["options"]["value"] == "log_odds"
    assert set(found["versions"]) == {"diabat", "torch", "transformers"}


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from heads_commands.test_analysis import SETS, decoder
from diabat.attention.heads import known
from diabat.runs.heads.analysis.measure import analyse

known._SECONDS_BETWEEN_SAVES = 0.0
before = known.KnownValues.put
count = 0

def put(self, sample, columns, values):
    global count
    count += 1
    if count > {after}:
        os.kill(os.getpid(), signal.SIGKILL)
    before(self, sample, columns, values)

known.KnownValues.put = put
analyse(decoder(), None, SETS, {folder!r}, name="tiny", batch_size=5)
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no kill -9 there")
def test_a_killed_analysis_goes_on_to_the_same_bytes(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "killed"
    # 7 samples of 16 coalitions in batches of 5 are 28 batches a layer: in the middle of a sample of layer 1.
    code = KILLED.format(tests=str(Path(__file__).parents[1]), after=34, folder=str(folder))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (folder / "analysis.json").exists()
    evaluated = _counting(monkeypatch)
    resumed = analyse(model, None, SETS, folder, name="tiny", batch_size=5)
    assert sum(evaluated) == 3 * 7 * 16 - (7 * 16 + 16 + 2 * 5)
    assert analyse(model, None, SETS, tmp_path / "other", name="tiny", batch_size=5) == resumed
    assert (folder / "analysis.json").read_bytes() == (tmp_path / "other" / "analysis.json").read_bytes()


def test_an_error_in_a_layer_loses_nothing(
    model: Any, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, folder = Plan.game, tmp_path / "analysis"

    def fails(self: Plan, index: int, *arguments: Any) -> HeadCoalitions:
        if index == 2:
            raise MemoryError("too little")
        return before(self, index, *arguments)

    monkeypatch.setattr(Plan, "game", fails)
    with pytest.raises(MemoryError):
        analyse(model, None, SETS, folder, name="tiny")
    monkeypatch.setattr(Plan, "game", before)
    evaluated = _counting(monkeypatch)
    analyse(model, None, SETS, folder, name="tiny")
    assert sum(evaluated) == 7 * 16
    assert (folder / "analysis.json").read_bytes() == (whole / "analysis.json").read_bytes()


def _counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of evaluations from here on."""
    counts: list[int] = []
    before = known.KnownValues.put

    def put(self: known.KnownValues, sample: int, columns: Any, values: Any) -> None:
        counts.append(len(columns))
        before(self, sample, columns, values)

    monkeypatch.setattr(known.KnownValues, "put", put)
    return counts


def test_a_finished_analysis_is_read(model: Any, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Plan, "game")
    assert analyse(model, None, SETS, whole, name="tiny") == read_analysis(whole)


@pytest.fixture
def calibrated(model: Any) -> Iterator[Any]:
    enable_gac(model, Calibration({1: [0]}))
    yield model
    disable_gac(model)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "model": ({"name": "other"}, "with another model;"),
    "data": ({"sets": [SETS[1]]}, "with another data;"),
    "options": ({"options": Options(seed=1, absent="dropped")}, "with another absent, seed;"),
    "layers": ({"options": Options(layers=[1])}, "with another layers;"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_the_folder_of_another_analysis_is_refused(
    model: Any, whole: Path, change: dict[str, Any], message: str
) -> None:
    given = {"sets": SETS, "name": "tiny", **change}
    with pytest.raises(
        ArgumentError, match=rf"^folder: expected a new folder .*{message} name another folder"
    ):
        analyse(model, None, folder=whole, **given)


def test_the_folder_of_an_analysis_without_calibration_is_refused(calibrated: Any, whole: Path) -> None:
    with pytest.raises(ArgumentError, match="with another calibration"):
        analyse(calibrated, None, SETS, whole, name="tiny")


def test_values_of_other_weights_are_refused(model: Any, tmp_path: Path) -> None:
    analyse(model, None, SETS[:1], tmp_path / "a", Options(layers=[2]), name="tiny")
    (tmp_path / "a" / "analysis.json").unlink()
    with pytest.raises(ArgumentError, match=r"folder: expected values of this model, .* other weights"):
        analyse(decoder(seed=1), None, SETS[:1], tmp_path / "a", Options(layers=[2]), name="tiny")


def test_a_folder_with_other_files_is_refused(model: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ArgumentError, match=r"folder: expected a new folder .* with other files"):
        analyse(model, None, SETS, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_two_processes_do_not_share_a_folder(model: Any, tmp_path: Path) -> None:
    with (
        locked(tmp_path),
        pytest.raises(OutputError, match=r"folder: run folder .* is locked"),
    ):
        analyse(model, None, SETS, tmp_path, Options(layers=[2]))


def test_a_calibrated_model_is_analysed_as_such(calibrated: Any, whole: Path, tmp_path: Path) -> None:
    found = analyse(calibrated, None, SETS, tmp_path / "a", Options(layers=[1]), name="tiny")
    before = read_analysis(whole).games[1]
    assert found.request.calibration == Calibration({1: [0]}).as_dict()
    assert found.games[0].players == before.players
    assert found.games[0].value_of_all != before.value_of_all


def test_players_of_several_layers_up_to_an_order(model: Any, tmp_path: Path) -> None:
    options = Options(joint=True, heads_per_player=1, order=2)
    (game,) = analyse(model, None, SETS[:1], tmp_path / "joint", options).games
    assert (len(game.players), game.layers, len(game.dividends)) == (24, (0, 1, 2), 1 + 24 + 276)
    direct = HeadCoalitions(model, SETS[0].samples, layer=[0, 1, 2], heads_per_player=1)
    both = torch.stack((torch.zeros(24), torch.ones(24))).bool()
    assert (game.value_of_none, game.value_of_all) == pytest.approx(tuple(direct.value(both).tolist()))
    assert game.dividends == tuple(direct.dividends(order=2).value.tolist())


def test_given_players_form_one_game(model: Any, tmp_path: Path) -> None:
    players = (((0, 0), (0, 1)), ((2, 5),))
    (game,) = analyse(model, None, SETS[:1], tmp_path / "a", Options(players=players)).games
    assert (game.players, game.layers) == (players, (0, 2))


def test_one_sample_has_no_errors(model: Any, tmp_path: Path) -> None:
    found = analyse(model, None, [questions(count=1)], tmp_path / "a", Options(layers=[2]))
    (game,) = read_analysis(tmp_path / "a").games
    assert found.games == (game,)
    assert set(game.standard_errors) == {None}
    assert game.value_of_all_error is None
    assert (game.positive, game.negative) == (0, 0)


WRONG: dict[str, tuple[Any, Any, str]] = {
    "layer": (SETS, {"layers": [3]}, "^layer: expected a layer with attention, 0 .. 2, got 3"),
    "twice": (SETS, {"layers": [1, 1]}, "^layer: expected different layers"),
    "many": (SETS, {"joint": True, "heads_per_player": 1}, r"^order: expected an order \(3, for example\) .* for 24"),
    "order": (SETS, {"order": 5}, "^order: expected at most 4, got 5"),
    "both": (SETS, {"players": (((0, 0),),), "layers": [1]}, "^layers: cannot be combined with players"),
    "overlap": (SETS, {"players": (((0, 0),), ((0, 0),))}, "^players: expected groups without a common head"),
    "none": ([], {}, "^sets: expected at least one"),
    "values": ([SETS[0], questions("s", value="f1")], {}, "^value: expected one .* log_odds .q., f1 .s."),
    "dtype": (SETS, {"dtype": "int8"}, "^dtype: expected one of float32"),
    "joint": (SETS, {"joint": 1}, "^joint: expected True or False"),
}  # fmt: skip


@pytest.mark.parametrize(("sets", "options", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_options_are_refused_before_anything_is_written(
    model: Any, tmp_path: Path, sets: list[QuestionSet], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        analyse(model, None, sets, tmp_path / "a", Options(**options))
    assert not (tmp_path / "a").exists()


def test_an_error_about_a_sample_names_its_set(model: Any, tmp_path: Path) -> None:
    wrong = QuestionSet(
        "wrong", "log_odds", (*SETS[1].samples, {**SETS[1].samples[0], "choices": [5, 5]}), {}
    )
    with pytest.raises(ArgumentError, match=r"^sets: wrong, question 3, label: expected"):
        analyse(model, None, [SETS[0], wrong], tmp_path / "a")


def test_the_bar_counts_blocks_and_leaves_out_what_is_known(model: Any, tmp_path: Path) -> None:
    """After a stop in layer 1: the bar starts at 0 of what is left, and ends at all of it."""
    from diabat.progress import new_bar

    plan = Plan(model, None, SETS[:1], "log_odds", Options(), 16)
    assert [(plan.name(k), plan.evaluations(k), plan.blocks(k)) for k in range(3)] == [
        ("layer-00", 64, 3),
        ("layer-01", 64, 2),
        ("layer-02", 64, 1),
    ]
    with new_bar(shown=False) as bar:
        work = _Work(bar, 64 * 6)
        work.game("layer-00", 64, 3)
        work.end()  # all values known
        (task,) = bar.tasks
        assert (task.completed, task.total) == (0, 64 * 3)
        step = work.game("layer-01", 64, 2)
        step(16, 48)  # 16 values known
        assert (task.completed, task.total) == (32, 48 * 2 + 64)
        step(48, 48)
        work.end()
        step = work.game("layer-02", 64, 1)
        step(64, 64)
        work.end()
        assert (task.completed, task.total) == (48 * 2 + 64, 48 * 2 + 64)


def _damaged(content: Any) -> Iterator[tuple[str, Any]]:
    yield "format", {**content, "format": "other"}
    yield "version", {**content, "version": 2}
    yield "extra", {**content, "more": 1}
    first = content["games"][0]
    for key in ("dividends", "order_errors", "argmax_frequency"):
        yield key, {**content, "games": [{**first, key: first[key][:-1]}]}
    yield "text", {**content, "games": [{**first, "value_of_all": "1"}]}


def test_a_damaged_analysis_is_refused(whole: Path, tmp_path: Path) -> None:
    file = tmp_path / "analysis.json"
    content = json.loads((whole / "analysis.json").read_text())
    for name, changed in _damaged(content):
        file.write_text(json.dumps(changed))
        with pytest.raises(
            ArgumentError, match=r"^analysis: expected an analysis of heads in .*\.$"
        ) as error:
            read_analysis(file)
        assert "\n" not in str(error.value), name
    file.write_bytes((whole / "analysis.json").read_bytes()[:-20])
    with pytest.raises(ArgumentError, match=r"^analysis: expected JSON in"):
        read_analysis(file)
    with pytest.raises(ArgumentError, match=r"^analysis: expected a finished analysis"):
        read_analysis(tmp_path / "nowhere")
    assert isinstance(read_analysis(whole / "analysis.json"), Analysis)
