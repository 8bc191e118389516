"""Tasks for lm-eval that come with diabat, and named sets of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from diabat.checks import ArgumentError

SUITES: dict[str, dict[str, tuple[str, ...]]] = {
    "game-lora": {
        "hallucination": (
            "halueval_dialogue",
            "halueval_qa",
            "halueval_summarization",
            "inverse_scaling_memo_trap",
            "truthfulqa_mc1",
            "truthfulqa_mc2",
        ),
        "knowledge": ("mmlu", "nq_open", "popqa", "wikitext", "winogrande"),
    },
}
"""Categories of every suite; ``game-lora`` are the benchmarks of table 1 of the paper."""

ALL, OTHER = "all tasks", "other tasks"
_PREFERRED = ("acc", "exact_match", "bits_per_byte")


def shipped_tasks() -> Path:
    """Folder of the tasks that come with diabat: HaluEval and PopQA."""
    return Path(str(files("diabat") / "runs" / "heads" / "evaluation" / "tasks"))


def expanded(names: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Replace suites by their tasks.

    Args:
        names: Tasks of lm-eval and suites.

    Returns:
        The tasks in order, and those of every category over which differences are averaged: the categories of the
        suites, and the tasks outside suites together if they are two or more.

    Raises:
        ArgumentError: If there is no name, or a task is named twice.
    """
    if isinstance(names, str) or not names:
        raise ArgumentError("tasks", f"expected a list of at least one task, got {names!r}.")
    tasks: list[str] = []
    categories: dict[str, list[str]] = {}
    others: list[str] = []
    for name in names:
        for category, members in SUITES.get(name, {}).items():
            categories[category] = list(members)
            tasks.extend(members)
        if name not in SUITES:
            others.append(name)
            tasks.append(name)
    for task in tasks:
        if tasks.count(task) > 1:
            raise ArgumentError("tasks", f"expected different tasks, got '{task}' twice.")
    if len(others) > 1:
        categories[OTHER if categories else ALL] = others
    return tasks, categories


def main_metric(keys: Sequence[str]) -> str | None:
    """The metric of a task that counts in averages, chosen before its value is known.

    Args:
        keys: Metrics with their filters as in the results of lm-eval, for example ``acc,none``.

    Returns:
        The first of ``acc``, ``exact_match`` and ``bits_per_byte`` that is there, else the first metric; None if there
        is none.
    """
    for wanted in _PREFERRED:
        for key in keys:
            if key.partition(",")[0] == wanted:
                return key
    return keys[0] if keys else None
