"""Scores as sums over documents: errors, differences, means over tasks, chance; suites of tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from diabat.checks import ArgumentError
from diabat.runs.heads.evaluation.documents import (
    chance_levels,
    difference,
    documents_of,
    joined,
    mean_change,
    relative,
)
from diabat.runs.heads.evaluation.harness_report import rows_of
from diabat.runs.heads.evaluation.suites import SUITES, expanded, main_metric


def logged(metric: str, values: Any, start: int = 0, **more: Any) -> list[dict[str, Any]]:
    return [
        {"doc_id": k, "doc_hash": str(start + k), "filter": "none", metric: value, **more}
        for k, value in enumerate(values)
    ]


def test_a_mean_has_the_error_of_a_mean_and_its_difference_that_of_the_paired_one() -> None:
    g = np.random.default_rng(0)
    first, second = g.random((2, 30))
    before, after = (
        documents_of(logged("acc", values.tolist()), "acc", "none") for values in (first, second)
    )
    assert before is not None
    assert after is not None
    assert before.error() == pytest.approx(first.std(ddof=1) / 30**0.5)
    change = difference(before, after)
    assert change is not None
    assert change.value == pytest.approx((second - first).mean())
    assert change.error() == pytest.approx((second - first).std(ddof=1) / 30**0.5)


def test_bits_per_byte_and_relative_changes_have_the_errors_of_a_jackknife() -> None:
    g = np.random.default_rng(1)
    sizes = g.integers(500, 1500, 200)
    first = -0.7 * sizes * g.normal(1, 0.05, 200)
    second = first * g.normal(0.97, 0.01, 200)
    samples = [
        logged("bits_per_byte", list(zip(ll.tolist(), sizes.tolist(), strict=True))) for ll in (first, second)
    ]
    before, after = (documents_of(part, "bits_per_byte", "none") for part in samples)
    assert before is not None
    assert after is not None
    assert before.score == pytest.approx(-first.sum() / sizes.sum() / np.log(2))

    def errors(score: Any) -> float:
        left_out = np.array([score(np.delete(np.arange(200), k)) for k in range(200)])
        return float(np.sqrt(199 / 200 * ((left_out - left_out.mean()) ** 2).sum()))

    def bits(x: Any, at: Any) -> float:
        return float(-x[at].sum() / sizes[at].sum() / np.log(2))

    assert before.error() == pytest.approx(errors(lambda at: bits(first, at)), rel=0.01)
    change, share = difference(before, after), relative(before, after)
    assert change is not None
    assert share is not None
    assert change.error() == pytest.approx(errors(lambda at: bits(second, at) - bits(first, at)), rel=0.01)
    assert share.value == pytest.approx(second.sum() / first.sum() - 1)
    assert share.error() == pytest.approx(errors(lambda at: second[at].sum() / first[at].sum() - 1), rel=0.01)


def test_documents_in_two_tasks_are_drawn_once() -> None:
    g = np.random.default_rng(2)
    first, second = g.random((2, 40))

    def change(start: int) -> Any:
        parts = [documents_of(logged("acc", x.tolist(), start), "acc", "none") for x in (first, second)]
        assert parts[0] is not None
        assert parts[1] is not None
        return difference(parts[0], parts[1])

    one = change(0).error()
    value, same = mean_change([change(0), change(0)])  # the same documents twice tell nothing new
    assert value == pytest.approx((second - first).mean())
    assert same == pytest.approx(one)
    _, apart = mean_change([change(0), change(1000)])
    assert apart == pytest.approx(one / 2**0.5)


def test_different_documents_are_not_paired() -> None:
    a, b = (documents_of(logged("acc", [0.0, 1.0], start), "acc", "none") for start in (0, 5))
    assert a is not None
    assert b is not None
    assert difference(a, b) is None
    assert relative(a, b) is None
    assert joined([a, None]) is None
    assert documents_of(logged("f1", [(0, 1), (1, 1)]), "f1", "none") is None


def test_chance_counts_choices_and_right_ones() -> None:
    samples: list[dict[str, Any]] = [
        {"doc_id": 0, "filter": "none", "arguments": [()] * 4, "target": 1, "acc": 1.0},
        {"doc_id": 1, "filter": "none", "arguments": [()] * 5, "target": [0, 2], "acc": 0.0},
    ]
    assert chance_levels(None, samples, "acc", "none") == pytest.approx([1 / 4, 2 / 5])
    assert chance_levels(None, samples, "exact_match", "none") is None
    twice = [{**sample, "arguments": sample["arguments"] * 2, "acc_mutual_info": 0.0} for sample in samples]
    assert chance_levels(None, twice, "acc", "none") == pytest.approx([1 / 4, 2 / 5])


def result(scores: dict[str, tuple[str, Any]], group: list[str] | None = None) -> dict[str, Any]:
    """Results as lm-eval returns them."""
    found: dict[str, Any] = {
        "results": {},
        "samples": {},
        "configs": {},
        "higher_is_better": {},
        "n-samples": {},
    }
    for k, (task, (metric, values)) in enumerate(scores.items()):
        samples = logged(metric, values, 1000 * k, arguments=[()] * 2, target=0)
        score = documents_of(samples, metric, "none")
        assert score is not None
        found["results"][task] = {f"{metric},none": score.score, f"{metric}_stderr,none": "N/A"}
        found["samples"][task] = samples
        found["configs"][task] = {"output_type": "multiple_choice" if metric == "acc" else "other"}
        found["higher_is_better"][task] = {metric: metric == "acc"}
        found["n-samples"][task] = {"effective": len(values)}
    if group is not None:
        both = [value for task in group for value in scores[task][1]]
        found["results"] = {"both": {"acc,none": float(np.mean(both))}} | found["results"]
        found["group_subtasks"] = {"both": group}
        found["higher_is_better"]["both"] = {"acc": True}
    return found


def test_categories_turn_losses_around_and_keep_other_units_out_of_the_plain_mean() -> None:
    before = result({"a": ("acc", [0.0, 1.0, 1.0, 0.0]), "w": ("bits_per_byte", [(-10.0, 10), (-12.0, 10)])})
    after = result({"a": ("acc", [1.0, 1.0, 1.0, 0.0]), "w": ("bits_per_byte", [(-9.0, 10), (-10.8, 10)])})
    rows = rows_of({"off": before, "x": after}, {"knowledge": ["a", "w"]}, {})
    by_task = {(row["task"], row["state"]): row for row in rows}
    assert by_task["a", "x"]["chance"] == 0.5
    assert by_task["w", "x"]["chance"] is None
    assert by_task["a", "off"]["score_error"] is not None
    assert by_task["w", "x"]["difference"] < 0
    assert by_task["w", "x"]["relative"] == pytest.approx(0.1)  # better
    mean = by_task["knowledge", "x"]
    assert mean["tasks"] == {"a": "acc,none", "w": "bits_per_byte,none"}
    assert mean["difference"] == pytest.approx(0.25)
    assert mean["difference_error"] == pytest.approx(by_task["a", "x"]["difference_error"])
    assert mean["relative"] == pytest.approx((0.5 + 0.1) / 2)
    assert mean["relative_error"] > 0


def test_a_group_is_paired_over_the_documents_of_its_tasks() -> None:
    first = {"a": ("acc", [0.0, 1.0, 0.0]), "b": ("acc", [1.0, 0.0])}
    second = {"a": ("acc", [1.0, 1.0, 0.0]), "b": ("acc", [1.0, 1.0])}
    rows = rows_of({"off": result(first, ["a", "b"]), "x": result(second, ["a", "b"])}, {}, {})
    row = next(row for row in rows if row["task"] == "both" and row["state"] == "x")
    changes = np.array([1, 0, 0, 0, 1])
    assert (row["samples"], row["chance"]) == (5, 0.5)
    assert row["difference"] == pytest.approx(0.4)
    assert row["difference_error"] == pytest.approx(changes.std(ddof=1) / 5**0.5)
    assert row["mcnemar_p"] == pytest.approx(0.5)


def test_a_score_that_is_no_mean_over_documents_has_no_paired_error() -> None:
    before, after = (result({"a": ("acc", [0.0, 1.0])}) for _ in range(2))
    before["results"]["a"]["acc,none"] = 0.9  # an aggregation of its own
    row = rows_of({"off": before, "x": after}, {}, {})[1]
    assert row["difference"] == pytest.approx(-0.4)
    assert row["difference_error"] is None
    assert "mcnemar_p" not in row


def test_suites_become_their_tasks_and_categories() -> None:
    tasks, categories = expanded(["game-lora", "own"])
    assert tasks == [*SUITES["game-lora"]["hallucination"], *SUITES["game-lora"]["knowledge"], "own"]
    assert list(categories) == ["hallucination", "knowledge"]
    assert len(tasks) == 12
    assert expanded(["a", "b"])[1] == {"all tasks": ["a", "b"]}
    assert expanded(["a"])[1] == {}
    with pytest.raises(ArgumentError, match="tasks: expected different tasks, got 'popqa' twice"):
        expanded(["game-lora", "popqa"])
    with pytest.raises(ArgumentError, match="tasks: expected a list of at least one task"):
        expanded([])


def test_the_metric_of_an_average_is_chosen_by_its_name() -> None:
    assert main_metric(["acc_norm,none", "acc,none"]) == "acc,none"
    assert main_metric(["word_perplexity,none", "bits_per_byte,none"]) == "bits_per_byte,none"
    assert main_metric(["f1,none", "em,none"]) == "f1,none"
    assert main_metric([]) is None
