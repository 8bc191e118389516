"""Report of tasks of lm-eval: scores beside chance, differences paired by document, and their means over tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from diabat.checks import is_number
from diabat.runs.heads.evaluation.documents import (
    Change,
    Documents,
    chance_levels,
    difference,
    documents_of,
    joined,
    mean_change,
    relative,
)
from diabat.runs.heads.evaluation.paired import Array, mcnemar
from diabat.runs.heads.evaluation.states import OFF
from diabat.runs.heads.evaluation.suites import main_metric
from diabat.studies.report import Column, Report, Row


def _with_error(key: str, form: str, factor: float = 1) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        error = row.get(f"{key}_error")
        second = "" if error is None else f" ± {factor * error:{form.lstrip('+')}}"
        return format(factor * row[key], form) + second

    return show


@dataclass(frozen=True)
class HarnessReport(Report):
    """Scores of tasks in every state.

    Attributes:
        model: Its name.
        calibration: As in gac.json; None if there is none.
        version: That of lm-eval.
        versions: Versions of the tasks.
        limit: Documents of each task; None for all.
        adapters: Checksums of the adapters by state.
        categories: Tasks over which differences are averaged.
    """

    model: str = ""
    calibration: dict[str, Any] | None = None
    version: str = ""
    versions: dict[str, Any] = field(default_factory=dict)
    limit: int | None = None
    adapters: dict[str, str] = field(default_factory=dict)
    categories: dict[str, list[str]] = field(default_factory=dict)

    labels: ClassVar[tuple[Column, ...]] = (
        Column("task", "task or group of lm-eval, or a category of tasks", title="task"),
        Column("metric", "metric of lm-eval, and its filter if there is one", title="metric"),
        Column(
            "state",
            "off: the model as it is; calibrated; else the folder of an adapter",
            title="state",
        ),
        Column("samples", "number of documents", title="n"),
    )
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            "score",
            "score and its standard error",
            title="score",
            show=_with_error("score", ".4f"),
        ),
        Column(
            "chance",
            "score of guessing: mean over documents of the share of right choices; none for generated text",
            title="chance",
        ),
        Column(
            "difference",
            "score minus that of off, and the standard error of the difference paired by document where the score is a "
            "sum over documents; of a category the mean over its tasks whose score is a mean over documents, positive "
            "if better, with tasks taken as given and documents as drawn",
            title="difference",
            show=_with_error("difference", "+.4f"),
        ),
        Column(
            "relative",
            "improvement over off as a share of the score of off, positive if better (GAME-LoRA, appendix A), and its "
            "standard error; of a category the mean over all its tasks. In per cent in the table",
            title="relative, %",
            show=_with_error("relative", "+.2f", 100),
        ),
        Column("mcnemar_p", "exact two-sided p of McNemar's test, for scores of 0 and 1", title="p"),
        Column("tasks", "tasks of a category, and the metric of each"),
    )

    @property
    def title(self) -> str:
        """Line above the table."""
        return f"{self.model}, lm-eval {self.version}"


@dataclass(frozen=True)
class _Score:
    """A task's score in one state."""

    value: float
    error: float | None
    documents: Documents | None
    sign: int


def rows_of(
    results: Mapping[str, Any], categories: Mapping[str, Sequence[str]], self_scoring: Mapping[str, Any]
) -> list[Row]:
    """Rows of every task, metric and state, then of every category.

    Args:
        results: Those of lm-eval by state; the first is what others are compared with.
        categories: Tasks over which differences are averaged.
        self_scoring: Tasks that compute their own scores.
    """
    off = results[OFF]
    rows: list[Row] = []
    for task in off["results"]:
        for key in _metrics(off, task):
            metric, _, kind = key.partition(",")
            levels = _chance(off, task, metric, kind, self_scoring)
            before = _score(off, task, key)
            for state, result in results.items():
                row: Row = {"task": task, "metric": metric if kind == "none" else key, "state": state}
                row["samples"] = _count(off, task)
                after = _score(result, task, key)
                row |= {"score": after.value, "score_error": after.error}
                row["chance"] = None if levels is None else float(levels.mean())
                if state != OFF:
                    row |= _compared(before, after)
                rows.append(row)
    for name, tasks in categories.items():
        rows += [_category(name, tasks, off, results[state], state) for state in results if state != OFF]
    return rows


def _metrics(result: Any, task: str) -> list[str]:
    return [
        key
        for key, score in result["results"][task].items()
        if "," in key and not key.partition(",")[0].endswith("_stderr") and is_number(score)
    ]


def _score(result: Any, task: str, key: str) -> _Score:
    scores = result["results"][task]
    metric, _, kind = key.partition(",")
    value = float(scores[key])
    documents = joined(
        [documents_of(result["samples"].get(leaf, ()), metric, kind) for leaf in _leaves(result, task)]
    )
    if documents is not None and not documents.matches(value):  # another average than that over documents
        documents = None
    error = scores.get(f"{metric}_stderr,{kind}")
    known = float(error) if error is not None and is_number(error) else None
    if known is None and documents is not None:
        known = documents.error()
    higher = result.get("higher_is_better", {}).get(task, {}).get(metric)
    return _Score(value, known, documents, -1 if higher is False else 1)


def _leaves(result: Any, task: str) -> list[str]:
    """The tasks of a group, or the task itself."""
    members = result.get("group_subtasks", {}).get(task)
    return [leaf for member in members for leaf in _leaves(result, member)] if members else [task]


def _count(result: Any, task: str) -> int | None:
    counts = [result.get("n-samples", {}).get(leaf, {}).get("effective") for leaf in _leaves(result, task)]
    return None if None in counts else sum(counts)


def _chance(result: Any, task: str, metric: str, kind: str, self_scoring: Mapping[str, Any]) -> Array | None:
    parts = []
    for leaf in _leaves(result, task):
        if result["configs"].get(leaf, {}).get("output_type") != "multiple_choice":
            return None
        found = chance_levels(self_scoring.get(leaf), result["samples"].get(leaf, ()), metric, kind)
        if found is None:
            return None
        parts.append(found)
    return np.concatenate(parts)


def _compared(before: _Score, after: _Score) -> Row:
    row: Row = {"difference": after.value - before.value, "difference_error": None}
    plain, share = _changes(before, after)
    if before.value > 0:
        row |= {"relative": before.sign * (after.value / before.value - 1), "relative_error": None}
    if plain is not None:
        row["difference_error"] = plain.error()
    if share is not None:
        row["relative_error"] = share.error()
    first, second = before.documents, after.documents
    if first is not None and second is not None and plain is not None and first.is_mean:
        pair = (first.amounts, second.amounts)
        if set(np.unique(pair)) <= {0.0, 1.0}:
            row["mcnemar_p"] = mcnemar(*pair)
    return row


def _changes(before: _Score, after: _Score) -> tuple[Change | None, Change | None]:
    if before.documents is None or after.documents is None:
        return None, None
    return difference(before.documents, after.documents), relative(before.documents, after.documents)


def _category(name: str, tasks: Sequence[str], off: Any, on: Any, state: str) -> Row:
    """Mean differences of a category; without a standard error if one of its tasks has none."""
    plain: list[tuple[float, Change | None]] = []
    shares: list[tuple[float, Change | None]] = []
    chosen: dict[str, str] = {}
    for task in tasks:
        key = main_metric(_metrics(off, task)) if task in off["results"] else None
        if key is None:
            continue
        chosen[task] = key
        before, after = _score(off, task, key), _score(on, task, key)
        change, share = _changes(before, after)
        if before.documents is not None and before.documents.is_mean:
            plain.append((before.sign * (after.value - before.value), _signed(change, before.sign)))
        if before.value > 0:
            shares.append((before.sign * (after.value / before.value - 1), _signed(share, before.sign)))
    row: Row = {"task": name, "metric": f"mean of {len(chosen)} tasks", "state": state, "tasks": chosen}
    for key, changes in (("difference", plain), ("relative", shares)):
        # A change relative to 0 is not defined, nor is then the mean over the category.
        if changes and not (key == "relative" and len(changes) < len(chosen)):
            row[key], row[f"{key}_error"] = _mean(changes)
    return row


def _signed(change: Change | None, sign: int) -> Change | None:
    return None if change is None else Change(sign * change.value, change.keys, sign * change.influence)


def _mean(changes: Sequence[tuple[float, Change | None]]) -> tuple[float, float | None]:
    known = [change for _, change in changes if change is not None]
    if len(known) == len(changes):
        return mean_change(known)
    return float(np.mean([value for value, _ in changes])), None
