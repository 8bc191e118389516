"""``diabat heads analyse``: files, table, JSON, and refusals that name the option."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from diabat.attention.heads import Calibration
from diabat.huggingface.gac.config import fingerprint, write_gac
from diabat.runs.heads.analysis import folder as analysis_folder
from diabat.runs.heads.analysis.plan import Plan

from . import tiny
from .analyses import questions, run, run_json, write


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, questions, and the analysis of one layer."""
    folder = tmp_path_factory.mktemp("place")
    tiny.folder(folder / "model")
    write(folder / "q.jsonl", questions(count=4).samples)
    text = {"text": "Review: good film Sentiment: ", "choices": ["good film", "good book"], "label": 0}
    write(folder / "same.jsonl", [text])
    (folder / "overlap.json").write_text("[[[0, 0]], [[0, 0], [1, 1]]]")
    (folder / "groups.json").write_text("[[[0, 0]], [[0, 2], [1, 1]]]")
    write_gac(folder / "gac.json", Calibration({1: [0, 1]}), fingerprint(tiny.decoder()))
    write_gac(folder / "other.json", Calibration({1: [0, 1]}), fingerprint(tiny.decoder(seed=1)))
    done = analyse(folder, "--layers", "1-2", "--out", folder / "done")
    assert done.exit_code == 0, done.stderr
    return folder


def analyse(place: Path, *arguments: str | Path, model: str = "model", data: str = "q.jsonl") -> Any:
    return run("heads", "analyse", place / model, "--data", place / data, "--no-progress", *arguments)


def test_writes_the_analysis_and_figures(place: Path) -> None:
    names = {path.name for path in (place / "done").iterdir()}
    assert names == {"request.json", "analysis.json", "values", "dividends.png", "heatmap.png"}
    result = analyse(place, "--layers", "1-2", "--out", place / "done")
    assert "largest" in result.stdout
    assert f"Analysis: {place / 'done'}" in result.stdout
    assert result.stderr == ""


def test_json_has_everything(place: Path) -> None:
    found = run_json(
        "heads",
        "analyse",
        place / "model",
        "--data",
        place / "q.jsonl",
        "--layers",
        "1,2",
        "--out",
        place / "done",
    )
    assert [row["layers"] for row in found["rows"]] == ["1", "2"]
    assert found["analysis"] == json.loads((place / "done" / "analysis.json").read_text())
    assert "argmax_frequency" in found["definitions"]


def test_a_finished_analysis_needs_no_model(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "done", tmp_path / "done")
    shutil.copytree(place / "model", tmp_path / "model")
    write(tmp_path / "q.jsonl", questions(count=4).samples)
    arguments = (
        "heads",
        "analyse",
        tmp_path / "model",
        "--data",
        tmp_path / "q.jsonl",
        "--out",
        tmp_path / "done",
    )
    content = (tmp_path / "done" / "analysis.json").read_text()
    name = json.dumps(str(place / "model"))
    (tmp_path / "done" / "analysis.json").write_text(
        content.replace(name, json.dumps(str(tmp_path / "model")))
    )
    shutil.rmtree(tmp_path / "model")
    result = run(*arguments, "--layers", "1-2")
    assert result.exit_code == 0, result.stderr


def test_before_and_after_a_calibration(place: Path, tmp_path: Path) -> None:
    result = analyse(
        place,
        *("--layers", "1-2", "--calibration", place / "gac.json", "--before", place / "done"),
        *("--out", tmp_path / "after", "--figure", tmp_path / "w.svg"),
    )
    assert result.exit_code == 0, result.stderr
    assert "calibrated" in result.stdout
    assert "calibrated" in (tmp_path / "w-heatmap.svg").read_text()  # texts are paths with a comment
    before, after = (
        analysis_folder.read_analysis(folder).games for folder in (place / "done", tmp_path / "after")
    )
    assert before[0].value_of_all != after[0].value_of_all


def test_an_interrupt_says_how_to_continue(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Plan.game

    def interrupted(self: Plan, index: int, *arguments: Any) -> Any:
        if index == 1:
            raise KeyboardInterrupt
        return before(self, index, *arguments)

    monkeypatch.setattr(Plan, "game", interrupted)
    result = analyse(place, "--out", tmp_path / "a")
    assert result.exit_code == 130
    assert f"The values so far are in '{tmp_path / 'a'}'; repeat the command to continue." in result.stderr
    assert (tmp_path / "a" / "values" / "layer-00.safetensors").exists()


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "layer": (("--layers", "3"), "--layers: expected a layer with attention, 0 .. 2, got 3."),
    "twice": (("--layers", "1,1"), "--layers: expected different layers, got [1, 1]."),
    "text": (("--layers", "1-"), "--layers: expected layers such as 0,4-7, got '1-'."),
    "many": (("--joint", "--heads-per-player", "1"), "--order: expected an order (3, for example) for more than 20"),
    "order": (("--order", "9"), "--order: expected at most 4, got 9."),
    "divisor": (("--heads-per-player", "3"), "--heads-per-player: expected a divisor of 8"),
    "overlap": (("--players", "{}/overlap.json"), "--players: expected groups without a common head, got head 0 of"),
    "players": (("--players", "{}/q.jsonl"), "--players: expected groups of [layer, head] as JSON"),
    "both": (("--players", "{}/groups.json", "--joint"), "--joint: cannot be combined with players"),
    "absent": (("--absent", "gone"), "--absent: expected one of uniform, scaled, dropped, got 'gone'."),
    "epsilon": (("--absent", "scaled", "--epsilon", "0"), "--epsilon: expected a positive finite number, got 0"),
    "value": (("--value", "loss"), "--value: expected one of log_odds"),
    "dtype": (("--dtype", "int8"), "--dtype: expected one of float32"),
    "device": (("--device", "nowhere"), "--device: expected a device"),
    "model of gac": (("--calibration", "{}/other.json"), "--calibration: expected the calibration of this model"),
    "gac": (("--calibration", "{}/q.jsonl"), "--calibration: expected"),
    "before": (("--before", "{}"), "--before: expected a finished analysis"),
    "figure": (("--figure", "x.gif"), "--figure: expected a file ending in"),
    "folder": (("--out", "{}/done"), "--out: expected a new folder or one of this analysis"),
    "same": (("--data", "{}/same.jsonl"), "--data: same, question 0, choices: expected choices that start with "
             "different tokens, got token 10 at the start of choices 0 and 1; use value='option_log_odds' (--value "
             "option_log_odds)."),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG.keys())
def test_refusals_name_the_option(
    place: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    given = [argument.format(place) for argument in arguments]
    result = analyse(place, "--out", str(tmp_path / "a"), *given)
    assert (result.exit_code, result.stdout) == (2, ""), result.stderr
    assert result.stderr.startswith(f"Error: {message}"), result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_not_there(place: Path, tmp_path: Path) -> None:
    result = analyse(place, "--out", tmp_path / "a", "--offline", model="nowhere")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: MODEL: expected")
    assert "nowhere" in result.stderr


def test_a_model_without_attention(place: Path, tmp_path: Path) -> None:
    import transformers

    sizes: dict[str, Any] = {"vocab_size": 36, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}
    transformers.MambaForCausalLM(transformers.MambaConfig(**sizes)).save_pretrained(tmp_path / "mamba")
    result = run(
        *("heads", "analyse", tmp_path / "mamba", "--data", place / "q.jsonl", "--no-progress"),
        *("--out", tmp_path / "a"),
    )
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: MODEL: expected attention behind the AttentionInterface")
    assert not (tmp_path / "a").exists()
