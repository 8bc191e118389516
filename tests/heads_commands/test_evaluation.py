from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diabat.attention.heads import Calibration
from diabat.attention.heads.decoder import Site
from diabat.checks import ArgumentError
from diabat.runs.heads import read_question_sets
from diabat.runs.heads.evaluation.compare import evaluate
from diabat.runs.heads.evaluation.paired import compared, mcnemar, mean_and_error
from diabat.runs.heads.evaluation.states import states_of
from diabat.runs.heads.questions.sets import QuestionSet

from .tiny import GROUPS, HEADS, LAYERS, decoder, films, lines, options, tokenizer

CALIBRATION = Calibration.of_groups({1: [0], 2: [1, 3]}, 2, alpha=0.08)


@pytest.fixture(scope="module")
def model() -> Any:
    return decoder()


def sets(folder: Path, **samples: list[dict[str, Any]]) -> list[QuestionSet]:
    return read_question_sets([str(lines(folder / f"{name}.jsonl", some)) for name, some in samples.items()])


def test_rows_are_the_statistics_of_the_same_questions(model: Any, tmp_path: Path) -> None:
    found = evaluate(
        model, tokenizer(), sets(tmp_path, first=films(20), second=films(12, 1)), CALIBRATION, all_heads=True
    )
    assert [(row["set"], row["state"], row["samples"]) for row in found.rows] == [
        (name, state, n)
        for name, n in (("first", 20), ("second", 12), ("all sets", 32))
        for state in ("off", "calibrated", "all heads")
    ]
    table = {(row["set"], row["state"]): row for row in found.rows}
    for state in ("off", "calibrated", "all heads"):
        for measure in ("v", "accuracy"):
            parts = [table[name, state][measure] * n for name, n in (("first", 20), ("second", 12))]
            assert table["all sets", state][measure] == pytest.approx(sum(parts) / 32)
    on, off = table["first", "calibrated"], table["first", "off"]
    assert on["v_difference"] == pytest.approx(on["v"] - off["v"])
    assert on["accuracy_difference"] == pytest.approx(on["accuracy"] - off["accuracy"])
    assert on["v_difference"] != 0
    # Paired: smaller than that of two independent sets.
    assert 0 < on["v_difference_error"] < (on["v_error"] ** 2 + off["v_error"] ** 2) ** 0.5
    assert "v_difference" not in off


def test_pools_are_taken_apart_into_their_data_sets(model: Any) -> None:
    samples = tuple(films(5))
    parts: list[dict[str, Any]] = [{"name": "a", "drawn": 2}, {"name": "b", "drawn": 3}]
    pool = QuestionSet("task", "log_odds", samples, {"name": "task", "sets": parts})
    found = evaluate(model, tokenizer(), [pool])
    alone = evaluate(model, tokenizer(), [QuestionSet("b", "log_odds", samples[2:], {})])
    assert [row["set"] for row in found.rows] == ["a", "b", "task"]
    assert found.rows[1]["v"] == pytest.approx(alone.rows[0]["v"], abs=1e-5)


def test_random_groups_are_a_control_of_equal_size(model: Any, tmp_path: Path) -> None:
    found = evaluate(model, tokenizer(), sets(tmp_path, mine=films(15)), CALIBRATION, random_groups=6, seed=3)
    on, mean = (row for row in found.rows if row["state"] != "off")
    values = np.array([row["v"] for row in found.controls])
    assert len(values) == 6
    assert mean["state"] == "random (6)"
    assert mean["v"] == pytest.approx(values.mean())
    assert mean["v_error"] == pytest.approx(values.std(ddof=1))
    assert on["rank"] == 1 + sum(values > on["v"])
    assert on["ranked"] == 7
    same = evaluate(model, tokenizer(), sets(tmp_path, mine=films(15)), CALIBRATION, random_groups=6, seed=3)
    assert [row["v"] for row in same.controls] == values.tolist()


SITES = {layer: Site(None, HEADS, GROUPS) for layer in range(LAYERS)}  # type: ignore[arg-type]


def test_random_groups_are_key_value_groups_or_heads() -> None:
    size = HEADS // GROUPS
    groups = states_of(CALIBRATION, SITES, random_groups=40, seed=0)[2:]
    for state in groups:
        assert state.calibration is not None
        for layer, count in ((1, 1), (2, 2)):
            heads = list(state.calibration.salient[layer])
            assert len(heads) == size * count
            assert len({head // size for head in heads}) == count
    firsts = {tuple(state.calibration.salient[1]) for state in groups if state.calibration is not None}
    assert firsts == {(0, 1), (2, 3), (4, 5), (6, 7)}
    single = states_of(Calibration({1: [0, 5, 6]}), SITES, random_groups=40, seed=0)[2:]
    drawn = {head for s in single if s.calibration is not None for head in s.calibration.salient[1]}
    assert drawn == set(range(HEADS))
    assert {len(s.calibration.salient[1]) for s in single if s.calibration is not None} == {3}


def test_mcnemar_counts_what_is_lost_and_won() -> None:
    """Against the sum over all ways in which b + c coins fall."""
    before = np.array([1.0, 1, 1, 1, 0, 0, 0, 0, 0])
    after = np.array([1.0, 0, 1, 1, 1, 1, 1, 1, 0])  # 1 lost, 4 won
    ways = [sum(coins) for coins in product((0, 1), repeat=5)]
    assert mcnemar(before, after) == pytest.approx(2 * sum(way <= 1 for way in ways) / len(ways))
    assert mcnemar(before, before) == 1


def test_errors_of_means() -> None:
    values = np.array([1.0, 2.0, 4.0])
    mean, error = mean_and_error(values)
    assert mean == pytest.approx(7 / 3)
    assert error == pytest.approx((7 / 3) ** 0.5 / 3**0.5)
    assert mean_and_error(values[:1]) == (1, None)
    found = compared("v", values, values + 1)
    assert found == {"v_difference": 1, "v_difference_error": 0}


def test_progress_counts_every_state_once(model: Any, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    evaluate(
        model,
        tokenizer(),
        sets(tmp_path, mine=films(3)),
        CALIBRATION,
        progress=lambda *done: seen.append(done),
    )
    assert [done for _, done, _ in seen] == list(range(1, 7))
    assert {total for _, _, total in seen} == {6}
    assert seen[0][0] == "mine, off"
    assert seen[-1][0] == "mine, calibrated"


def test_the_report_is_plain_json(model: Any, tmp_path: Path) -> None:
    found = evaluate(model, tokenizer(), sets(tmp_path, mine=films(3)), CALIBRATION, name="tiny")
    content = json.loads(found.to_json())
    assert content["calibration"] == CALIBRATION.as_dict()
    assert content["sources"][0]["drawn"] == 3
    keys = {key for row in content["rows"] for key in row if not key.endswith("_error")}
    assert keys - {"set"} <= set(content["definitions"])


def test_arguments_that_are_refused(model: Any, tmp_path: Path) -> None:
    mine = sets(tmp_path, mine=films(2))
    with pytest.raises(
        ArgumentError, match="random_groups: expected a calibration to compare with, got none"
    ):
        evaluate(model, tokenizer(), mine, random_groups=2)
    with pytest.raises(ArgumentError, match="all_heads: expected a calibration"):
        evaluate(model, tokenizer(), mine, all_heads=True)
    with pytest.raises(
        ArgumentError, match="calibration: expected layers among 0, 1, 2 of this model, got 7"
    ):
        evaluate(model, tokenizer(), mine, Calibration({7: []}))
    with pytest.raises(ArgumentError, match=r"value: expected one of .*Did you mean 'log_odds'"):
        evaluate(model, tokenizer(), mine, value="logodds")
    with pytest.raises(ArgumentError, match="sets: expected at least one"):
        evaluate(model, tokenizer(), [])
    with pytest.raises(ArgumentError, match="calibration: expected rows='running'"):
        evaluate(
            model,
            tokenizer(),
            sets(tmp_path, some=options(2)),
            Calibration({1: []}, rows="prompt"),
            value="option_log_odds",
        )
