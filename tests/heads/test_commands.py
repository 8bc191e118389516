"""Commands ``diabat heads``: files, results against the library, and refusals that name the key."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import cli_runs
import pytest
import torch
from rounding import assert_same_sums
from tiny_decoders import adapted, decoder, tokenizer
from typer.testing import Result

from diabat.attention.games import all_coalitions
from diabat.heads import (
    Calibration,
    HeadCoalitions,
    common,
    disable_gac,
    enable_gac,
    load_gac,
    max_dividend,
    save_gac,
)
from diabat.heads.commands.analysis import AnalysedGame, read_analysis
from diabat.heads.commands.attribution import SCORES, AttributionOptions
from diabat.heads.commands.report import shown_dividend
from diabat.heads.games.attribution import (
    leave_one_out,
    sampled_banzhaf,
    sampled_interactions,
    sampled_shapley,
)
from diabat.heads.games.store import ValueStore
from diabat.huggingface import convert

pytestmark = pytest.mark.usefixtures("drawn")  # the figures of `place` are rendered
FILMS = {
    "good film": "good",
    "the plot was dull": "bad",
    "a fine book": "good",
    "not very good": "bad",
    "bad": "bad",
}
QUESTIONS = [
    {"prompt": f"Review: {text} Sentiment: ", "choices": ["good", "bad", "fine"], "answer": answer}
    for text, answer in FILMS.items()
]

DRAWS = ("permutations=10", "coalitions=4", "contexts=6", "pairs=3")


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, questions, calibrations, an adapter and the analysis of all layers."""
    folder = tmp_path_factory.mktemp("place")
    decoder().save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    write(folder / "q.jsonl", QUESTIONS)
    adapted(decoder()).save_pretrained(folder / "adapter")
    with_couplings().save_pretrained(folder / "coupled")
    for seed, name in enumerate(("beside", "other")):
        model = decoder(seed=seed)
        enable_gac(model, Calibration({1: [0, 1]}))
        (folder / name).mkdir()
        save_gac(model, folder / name)
    for found in (
        analyse(folder, "--output", folder / "done"),
        attribute(folder, "--output", folder / "scored"),
    ):
        assert found.exit_code == 0, found.stderr
    assert (folder / "done" / "dividends.png").stat().st_size > 10_000
    assert (folder / "scored" / "scores.png").stat().st_size > 10_000
    return folder


def with_couplings() -> Any:
    """An adapter with couplings that are not 0."""
    model = adapted(convert(decoder(), 4), modules_to_save=["boltzmann"])
    for name, parameter in model.named_parameters():
        if "boltzmann.modules_to_save" in name:
            torch.nn.init.constant_(parameter, 0.5)
    return model


def run(*arguments: str | Path) -> Result:
    return cli_runs.run("heads", *arguments)


def analyse(place: Path, *arguments: str | Path, model: str = "model", data: str = "q.jsonl") -> Result:
    return run("analyse", place / model, place / data, "--no-progress", *arguments)


def attribute(place: Path, *arguments: str | Path) -> Result:
    return run("attribute", place / "model", place / "q.jsonl", *DRAWS, *arguments)


def of_library(model: Any = None, **options: Any) -> HeadCoalitions:
    return HeadCoalitions(model or decoder(), QUESTIONS, tokenizer=tokenizer(), **options)


def test_the_result_is_that_of_the_library(place: Path) -> None:
    found = read_analysis(place / "done")
    assert {path.name for path in (place / "done").iterdir()} == {"values.safetensors", "dividends.png"}
    assert (found.about.model, found.about.value) == (str(place / "model"), "log_odds")
    for layer, game in enumerate(found.games):
        expected = of_library(layer=layer)
        assert game.players == expected.groups
        assert_same_sums(game.table, expected.table())
        torch.testing.assert_close(
            game.dividends.by_sample, expected.dividends().by_sample, rtol=0, atol=2e-5
        )


def test_table_and_json(place: Path) -> None:
    result = analyse(place, "--output", place / "done", "layers=[1,2]", "seed=0")
    assert "bootstrap" in result.stdout
    assert "– With fewer than 8 questions" in result.stdout  # there are five
    assert f"Analysis: {place / 'done'}" in result.stdout
    assert result.stderr == ""
    found = json.loads(analyse(place, "--output", place / "done", "--json").stdout)
    assert [row["layers"] for row in found["rows"]] == ["0", "1", "2"]
    assert found["analysis"] == json.loads(json.dumps(read_analysis(place / "done").as_dict()))
    game = found["analysis"]["games"][1]
    assert (len(game["dividends"]), game["samples"], game["v_full"]) == (16, 5, found["rows"][1]["v_full"])
    assert "selection_frequency" in found["definitions"]


def test_a_second_run_evaluates_nothing(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished analysis is held against the model, too: the weights of the folder may have changed."""
    (tmp_path / "model").mkdir()
    for file in (place / "model").iterdir():
        (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
    write(tmp_path / "q.jsonl", QUESTIONS)
    assert analyse(tmp_path, "--output", tmp_path / "out").exit_code == 0
    before = (tmp_path / "out" / "values.safetensors").read_bytes()
    with monkeypatch.context() as patch:
        patch.delattr(HeadCoalitions, "_fill")
        assert analyse(tmp_path, "--output", tmp_path / "out").exit_code == 0
    assert (tmp_path / "out" / "values.safetensors").read_bytes() == before
    decoder(seed=1).save_pretrained(tmp_path / "model")
    result = analyse(tmp_path, "--output", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: --output: expected values of this game, got ")
    assert "with other weights; name another file" in result.stderr


def test_options_reach_the_game(place: Path, tmp_path: Path) -> None:
    options = "joint=true layers=[0,2] max_size=2 ablation=zero value=option_log_odds count=3 seed=5"
    assert analyse(place, "--output", tmp_path / "a", *options.split()).exit_code == 0
    (game,) = read_analysis(tmp_path / "a").games
    assert (game.layers, game.options.max_size, len(game.values), len(game.players)) == ((0, 2), 2, 3, 8)
    assert analyse(place, "--output", tmp_path / "b", "players=[[[0,0],[1,1]],[[2,3]]]").exit_code == 0
    (game,) = read_analysis(tmp_path / "b").games
    assert game.players == (((0, 0), (1, 1)), ((2, 3),))
    assert_same_sums(game.table, of_library(players=game.players).table())


@pytest.mark.parametrize("kind", ["calibration", "adapter", "coupled"])
def test_calibrated_and_adapted_models_are_analysed(place: Path, tmp_path: Path, kind: str) -> None:
    """Also a plain model with an adapter that has couplings."""
    given = f"calibration={place / 'beside'}" if kind == "calibration" else f"adapter={place / kind}"
    result = analyse(place, given, "--output", tmp_path, "layers=[2]")
    assert result.exit_code == 0, result.stderr
    model = {"calibration": decoder, "adapter": lambda: adapted(decoder()), "coupled": with_couplings}[kind]()
    if kind == "calibration":
        enable_gac(model, Calibration({1: [0, 1]}))
    expected = of_library(model, layer=2).table()
    assert_same_sums(read_analysis(tmp_path).games[0].table, expected)
    assert ("calibrated" if kind == "calibration" else "adapter ") in result.stdout


@pytest.mark.parametrize(("line", "value"), [
    ({"prompt": "the film is", "choices": [" good"], "answer": 0}, "option_log_likelihood"),
    ({"prompt": "the film is good"}, "perplexity"),
    ({"input_ids": [4, 5, 6]}, "perplexity"),
])  # fmt: skip
def test_the_value_follows_from_the_questions(place: Path, tmp_path: Path, line: Any, value: str) -> None:
    write(tmp_path / "x.jsonl", [line, line])
    found = run(
        "analyse", place / "model", tmp_path / "x.jsonl", "layers=[2]", "--output", tmp_path / "o", "--json"
    )
    assert found.exit_code == 0, found.stderr
    assert json.loads(found.stdout)["analysis"]["value"] == value


def test_scores_are_those_of_the_library(place: Path, tmp_path: Path) -> None:
    found = json.loads(attribute(place, "layers=[2,1]", "--output", tmp_path, "--json").stdout)
    game = of_library(layer=[2, 1], heads_per_player=1)
    ends = game.sample_values(torch.tensor([[False], [True]]).expand(-1, 16)).mean(0)
    assert [found["v_empty"], found["v_full"]] == pytest.approx(ends.tolist(), abs=2e-6)
    expected = {
        "shapley": sampled_shapley(game, 10).value,
        "banzhaf": sampled_banzhaf(game, 4).value,
        "leave_one_out": leave_one_out(game).mean(0),
    }
    names = [f"{layer}.{head}" for ((layer, head),) in game.groups]
    for key, scores in expected.items():
        flat = {f"{row['layer']}.{row['head']}": row[key] for row in found["rows"]}
        assert flat == pytest.approx(dict(zip(names, scores.tolist(), strict=True)), abs=4e-6)
    assert found == json.loads((tmp_path / "scores.json").read_text())
    # A pair of draws sees one question.
    assert found["questions"] == {"shapley": 5, "banzhaf": 2, "leave_one_out": 5, "pairs": 3}
    ranked = [row["shapley"] for row in found["rows"]]
    assert ranked == sorted(ranked, reverse=True)
    top = expected["shapley"].abs().argsort(descending=True)[:3].tolist()
    pairs = sampled_interactions(game, top, 6).value
    assert len(found["pairs"]) == 3
    for pair in found["pairs"]:
        i, j = (top.index(names.index(name)) for name in pair["heads"])
        assert pair["interaction"] == pytest.approx(float(pairs[i, j]), abs=8e-6)
    assert found["rows"][0]["group"] is None


def test_scores_stand_beside_the_analysis_and_its_values(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: list[Any]
) -> None:
    shutil.copytree(place / "done", tmp_path / "a")
    result = attribute(place, "--output", tmp_path / "a")
    assert result.exit_code == 0, result.stderr
    monkeypatch.delattr(HeadCoalitions, "_fill")  # all is known
    again = attribute(place, "--output", tmp_path / "a", "--json")
    rows = {(row["layer"], row["head"]): row for row in json.loads(again.stdout)["rows"]}
    assert len(rows) == 24
    game = read_analysis(tmp_path / "a").games[1]
    assert (rows[1, 5]["group"], rows[1, 5]["dividend"]) == ("4, 5", float(game.dividends.value[1 << 2]))
    assert shown_dividend(rows[1, 5]["shapley"], rows[1, 5]["shapley_error"]) in result.stdout
    titles = ["Shapley\n5 questions", "Banzhaf\n2 questions", "leave one out\n5 questions"]
    assert [axis.get_title() for axis in drawn[0].axes[:3]] == titles
    assert re.search("head +5 questions +2 questions +5 questions +group", result.stdout)
    assert "interactions of heads (layer.head), 3 questions:" in result.stdout
    assert "q.jsonl (5 questions); log_odds" in result.stdout
    image = drawn[0].axes[2].images[0]
    assert image.get_array()[1, 5] == rows[1, 5]["leave_one_out"]
    assert image.get_clim()[0] == -image.get_clim()[1]


@pytest.mark.parametrize(("draws", "scores", "first"), [
    (("permutations=0", "coalitions=2", "contexts=2"), ["banzhaf", "leave_one_out"], "banzhaf"),
    (("permutations=0", "coalitions=0", "contexts=2"), ["leave_one_out"], "leave_one_out"),
    (("permutations=2", "coalitions=0", "contexts=0"), ["shapley", "leave_one_out"], "shapley"),
])  # fmt: skip
def test_draws_of_0_leave_a_score_out(
    place: Path, tmp_path: Path, drawn: list[Any], draws: Any, scores: list[str], first: str
) -> None:
    """Heads are ranked by the first score that is left, and so are those of the interactions."""
    given = (place / "model", place / "q.jsonl", "layers=[1]", "pairs=2", *draws, "--output", tmp_path)
    found, result = json.loads(run("attribute", *given, "--json").stdout), run("attribute", *given)
    rows, left_out = found["rows"], {"shapley", "banzhaf", "leave_one_out"} - {*scores}
    assert all(row[key] is row[f"{key}_error"] is None for row in rows for key in left_out)
    assert [row[first] for row in rows] == sorted((row[first] for row in rows), reverse=True)
    assert [axis.get_title().partition("\n")[0] for axis in drawn[0].axes[: len(scores)]] == [
        SCORES[key][0] for key in scores
    ]
    for key, (name, _) in SCORES.items():
        assert (name in result.stdout) == (key in scores)
    if "contexts=0" in draws:
        assert found["pairs"] == []
        assert "interactions" not in result.stdout
        assert "v(N) " in result.stdout
        return
    largest = sorted(rows, key=lambda row: -abs(row[first]))[:2]
    (pair,) = found["pairs"]
    assert set(pair["heads"]) == {f"{row['layer']}.{row['head']}" for row in largest}


def test_interrupts_say_how_to_go_on(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = HeadCoalitions.sample_values

    def interrupted(game: HeadCoalitions, coalitions: Any) -> Any:
        if game.groups[0][0][0] == 1:
            raise KeyboardInterrupt
        return before(game, coalitions)

    monkeypatch.setattr(HeadCoalitions, "sample_values", interrupted)
    result = analyse(place, "--output", tmp_path / "a")
    assert result.exit_code == 130
    assert f"The values so far are in '{tmp_path / 'a'}'; repeat the command to continue." in result.stderr
    assert (tmp_path / "a" / "values.safetensors").exists()


def test_files_are_checked_before_a_model_is_loaded(place: Path, tmp_path: Path) -> None:
    bad = write(tmp_path / "bad.jsonl", [QUESTIONS[0], {**QUESTIONS[0], "answer": "great"}])
    cases: list[tuple[Path, list[str], str]] = [
        (bad, [],
         f"'{bad}', line 2.answer: expected one of the choices ['good', 'bad', 'fine'] or its position, got"),
        (tmp_path / "none.jsonl", [], f"'{tmp_path / 'none.jsonl'}': No such file or directory."),
        (place / "q.jsonl", [f"adapter={tmp_path}"], "adapter: expected a folder with adapter_config.json"),
        (place / "q.jsonl", [f"calibration={tmp_path}"],
         f"{tmp_path / 'gac.json'}: no such file, expected a calibrat"),
    ]  # fmt: skip
    assert "--output: expected a folder, got the file" in run("analyse", "m", bad, "--output", bad).stderr
    for data, options, sentence in cases:
        result = run("analyse", "no/such-model", data, *options, "--output", tmp_path / "o")
        assert result.exit_code in (1, 2)
        assert result.stderr.startswith(f"Error: {sentence}"), result.stderr
        assert not (tmp_path / "o").exists()


LINES: dict[str, tuple[bytes, str]] = {
    "not JSON": (b'{"prompt": "a"}\n\n{', "line 3: expected a JSON object, got no valid JSON."),
    "a list": (b"[1]", "line 1: expected a dict, got list."),
    "twice": (b'{"prompt": "a", "prompt": "b"}', "line 1: expected a JSON object, got the key 'prompt' is"),
    "nothing": (b"\n \n", "DATA: expected questions in "),
    "mistyped": (b'{"prompt": "a", "choises": ["b"]}', "line 1: expected keys among prompt, messages, input_ids, "
                 "choices, answer, corrupted, got 'choises'. Did you mean 'choices'?"),
    "latin": (b'{"prompt": "\xe9"}', "DATA: expected UTF-8 text in "),
    "surrogate": (b'{"prompt": "\\ud800"}', "line 1.prompt: expected text without surrogates"),
    "alike": (b'{"prompt": "a film ", "choices": ["good film", "good book"], "answer": 0}', "line 1.choices: expected "
              "choices that start with different tokens, got [10] in choices 0 and 1; use "
              "value=option_log_odds, or, for digits, a prompt that ends in a space and choices that start without "
              "one."),
    "long": (json.dumps({"prompt": "a " * 65}).encode(), "line 1: expected at most 64 tokens with what follows the "
             "prompt, which is what the model can read (max_position_embeddings), got 65."),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_lines_that_are_no_questions_are_refused(place: Path, tmp_path: Path, name: str) -> None:
    content, sentence = LINES[name]
    (tmp_path / "x.jsonl").write_bytes(content)
    result = run(
        "analyse", place / "model", tmp_path / "x.jsonl", "--output", tmp_path / "o", "--no-progress"
    )
    assert result.exit_code in (1, 2)
    assert sentence in result.stderr, result.stderr
    assert result.stderr.count("\n") == 1


def test_the_file_holds_the_salient_groups_and_is_loaded(place: Path, tmp_path: Path) -> None:
    options = ("alpha=0.2", "beta=0.3", "redistribution=uniform", "rows=prompt", "--output", tmp_path)
    found = json.loads(run("calibrate", place / "done", *options, "--json").stdout)
    assert found["path"] == str(tmp_path / "gac.json")
    expected = {}
    for layer, group in enumerate(found["groups"]):
        dividends = of_library(layer=layer).dividends()
        assert group["players"] == list(max_dividend(dividends))
        assert group["selection_frequency"] is None  # of five questions
        expected[layer] = [head for player in group["players"] for head in (2 * player, 2 * player + 1)]
    model = decoder()
    calibration = load_gac(model, tmp_path)
    disable_gac(model)
    assert calibration == Calibration(expected, 0.2, 0.3, "prompt", "uniform")


@pytest.mark.parametrize(
    "options", [["min_size=2"], ["method=common", "share=0.3"], ["method=surrogate", "penalty=0.02"]]
)
def test_methods_choose_what_the_library_chooses(place: Path, tmp_path: Path, options: list[str]) -> None:
    found = json.loads(run("calibrate", place / "done", "--output", tmp_path, *options, "--json").stdout)
    assert found["options"]["method"] == (
        "max_dividend" if len(options) == 1 else options[0].removeprefix("method=")
    )
    for layer, group in enumerate(found["groups"]):
        game = of_library(layer=layer)
        if "surrogate" in options[0]:  # all 16 coalitions are looked at
            objective = game.table() - 0.02 * all_coalitions(4).sum(-1)
            expected = tuple(all_coalitions(4)[int(objective.argmax())].nonzero()[:, 0].tolist())
        else:
            dividends = game.dividends()
            expected = common(dividends, 0.3) if "common" in options[0] else max_dividend(dividends, 2)
        assert group["players"] == list(expected)
        mask = torch.zeros(4, dtype=torch.bool)
        mask[list(expected)] = True
        assert group["value"] == pytest.approx(float(game.value(mask)), abs=2e-6)


def test_layers_of_a_joint_game_may_be_left_out(place: Path, tmp_path: Path) -> None:
    assert (
        analyse(place, "--output", tmp_path / "a", "joint=true", "layers=[1,2]", "max_size=2").exit_code == 0
    )
    salient = {}
    for name, layers in (("all", []), ("2", ["layers=[2]"])):
        done = run("calibrate", tmp_path / "a", *layers, "--output", tmp_path / f"{name}.json", "--json")
        salient[name] = json.loads(done.stdout)["calibration"]["salient"]
    assert set(salient["all"]) == {"1", "2"}
    assert salient["2"] == {"2": salient["all"]["2"]}


def test_uncertain_groups_are_marked_and_files_replaced_with_force_only(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = (
        "– With fewer than 8 questions, or a single candidate, a bootstrap frequency looks certain and is not"
    )
    for often in (0.4, 0.6, None):
        monkeypatch.setattr(AnalysedGame, "frequency", lambda *_, often=often: often)
        shown = run("calibrate", place / "done", "--output", tmp_path / "y.json", "--force").stdout
        uncertain = often == 0.4
        assert ("? More often than not, another coalition" in shown) == ("0.40?" in shown) == uncertain
        assert (few in shown) == (often is None)
        common = run("calibrate", place / "done", "method=common", "--output", tmp_path / "y.json", "--force")
        assert few not in common.stdout
    assert (
        f"Calibration: {tmp_path / 'gac.json'}"
        in run("calibrate", place / "done", "--output", tmp_path).stdout
    )
    before = (tmp_path / "gac.json").read_bytes()
    again = run("calibrate", place / "done", "--output", tmp_path, "beta=0.5")
    assert (again.exit_code, (tmp_path / "gac.json").read_bytes()) == (2, before)
    assert "--force to replace it" in again.stderr
    assert run("calibrate", place / "done", "--output", tmp_path, "beta=0.5", "--force").exit_code == 0
    assert (tmp_path / "gac.json").read_bytes() != before


def test_a_layer_whose_heads_are_all_salient_is_named_and_so_is_a_single_candidate(
    place: Path, tmp_path: Path
) -> None:
    write(tmp_path / "q.jsonl", [*QUESTIONS, *QUESTIONS])  # enough for a bootstrap
    for name, layers in (("one", "[1]"), ("two", "[1,2]")):
        given = ("--output", tmp_path / name, f"layers={layers}", "heads_per_player=8")
        assert run("analyse", place / "model", tmp_path / "q.jsonl", *given).exit_code == 0
    shown = run("analyse", place / "model", tmp_path / "q.jsonl", *given, "--json")
    assert [row["selection_frequency"] for row in json.loads(shown.stdout)["rows"]] == [None, None]
    result = run("calibrate", tmp_path / "one", "--output", tmp_path / "x.json")
    assert (result.exit_code, result.stdout, (tmp_path / "x.json").exists()) == (2, "", False)
    assert "ANALYSIS: expected heads outside the salient groups" in result.stderr
    players = f"players={json.dumps([[[1, 0], [1, 1]], [[2, head] for head in range(8)]])}"
    named = ("--output", tmp_path / "three", players)
    assert run("analyse", place / "model", tmp_path / "q.jsonl", *named).exit_code == 0
    result = run("calibrate", tmp_path / "three", "min_size=2", "--output", tmp_path / "x.json")
    assert result.exit_code == 0, result.stderr
    assert "Layer 2: all heads are salient, none is calibrated." in result.stdout


def test_scores_see_every_question(tmp_path: Path) -> None:
    assert AttributionOptions().with_draws(5) == AttributionOptions(
        permutations=32, coalitions=32, contexts=64
    )
    assert AttributionOptions(coalitions=0).with_draws(40) == AttributionOptions(
        permutations=80, coalitions=0, contexts=80
    )


WRONG: dict[str, tuple[list[str], str]] = {
    "layer": (["analyse", "layers=[3]"], "layers: expected a layer with attention, 0 .. 2, got 3."),
    "twice": (["analyse", "layers=[1,1]"], "layers: expected different layers, got [1, 1]."),
    "text": (["analyse", "layers=1-"], "layers: expected a list, got '1-' (string)."),
    "key": (["analyse", "layer=[1]"], "layer: unknown key. Did you mean 'layers'?"),
    "many": (["analyse", "joint=true", "heads_per_player=1"], "max_size: expected 3, for example, for a game of 24"),
    "size": (["analyse", "max_size=9"], "max_size: expected at most 4, got 9."),
    "divisor": (["analyse", "heads_per_player=3"], "heads_per_player: expected a divisor of 8"),
    "players": (["analyse", "players=[[[0,0]],[[0,0],[1,1]]]"], "players: expected groups without a common head"),
    "both": (["analyse", "players=[[[0,0]]]", "layers=[1]"], "layers: expected None with players"),
    "ablation": (["analyse", "ablation=gone"], "ablation: expected 'uniform', 'scaled', 'zero', 'mean' or 'corrupted'"),
    "corrupted": (["analyse", "ablation=corrupted"], "'{0}/q.jsonl', line 1.corrupted: expected a prompt for"),
    "value": (["analyse", "value=loss"], "value: expected one of log_odds"),
    "dtype": (["analyse", "dtype=int8"], "dtype: expected 'float32', 'bfloat16' or 'float16'"),
    "device": (["analyse", "device=nowhere"], "device: expected a device"),
    "gac": (["analyse", "calibration={}/other"], "calibration: expected the calibration of this model"),
    "minus": (["attribute", "contexts=-2"], "contexts: expected a number >= 0, got -2 (integer)."),
    "odd": (["attribute", "permutations=3"], "permutations: expected a multiple of 2, got 3 (integer)."),
    "joint": (["attribute", "joint=true"], "joint: unknown key."),
    "alpha": (["calibrate", "alpha=1.5"], "alpha: expected a number <= 1, got 1.5 (number)."),
    "rows": (["calibrate", "rows=all"], "rows: expected 'running' or 'prompt', got 'all' (string)."),
    "method": (["calibrate", "method=best"], "method: expected 'max_dividend', 'common' or 'surrogate'"),
    "analysed": (["calibrate", "layers=[3]"], "layers: expected layers that were analysed, [0, 1, 2], got 3."),
    "least": (["calibrate", "min_size=5"], "min_size: expected at most 4, got 5."),
    "share": (["calibrate", "method=common", "share=0"], "share: expected a number > 0, got 0 (integer)."),
    "sampler": (["calibrate", "method=surrogate", "sampler=exakt"], "sampler: expected"),
    "suffix": (["calibrate", "--output", "gac.txt"], "--output: expected a file ending in .json"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_refusals_name_keys(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (command, *options), sentence = WRONG[name]
    given = [place / "model", place / "q.jsonl"] if command != "calibrate" else [place / "done"]
    named = [] if "--output" in options else ["--output", "a" if command != "calibrate" else "a.json"]
    result = run(command, *given, *named, *(option.format(place) for option in options))
    assert (result.exit_code, result.stdout) == (2, ""), result.stderr
    assert result.stderr.startswith(f"Error: {sentence.format(place)}"), result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_analysis_or_model_is_refused(place: Path, tmp_path: Path) -> None:
    result = run("calibrate", tmp_path / "nowhere", "--output", tmp_path / "x.json")
    assert result.stderr.startswith("Error: ANALYSIS: expected a finished analysis")
    store = ValueStore.read(place / "done" / "values.safetensors")
    about, path = store.analysis, tmp_path / "values.safetensors"
    deep = {**about, "players": [[[[7, 0]]]]}
    for content, sentence in [
        ({}, f"expected a finished analysis, got values alone in {path}."),
        ({**about, "model": 3}, f"expected one of heads in {path}, got model: Input should be a valid string."),
        ({**about, "players": []}, f"expected one of heads in {path}, got players: "),
        (deep, f"expected heads of the model, got others in {path}."),
        ({**about, "options": {**about["options"], "heads_per_player": 1}, "players": [[[[0, 1]]]]},
         f"expected values of all coalitions, got fewer in {path}."),
    ]:  # fmt: skip
        store._path = path
        store.note({"x": 1})
        store.note(content)
        assert run("calibrate", tmp_path).stderr.startswith(f"Error: ANALYSIS: {sentence}"), content
    path.write_bytes(b"nonsense")
    assert run("calibrate", tmp_path).stderr == (
        f"Error: ANALYSIS: expected a file of values of samples, got {path}.\n"
    )
    result = analyse(place, "--output", tmp_path / "a", "local_files_only=true", model="nowhere")
    assert result.stderr.startswith("Error: MODEL: expected")
    assert not (tmp_path / "a").exists()
