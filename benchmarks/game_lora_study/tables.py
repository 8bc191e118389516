"""The tables of the study: every arm, and its paired difference from plain LoRA, over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.game_lora_study.arms import ARMS, Run, read_result

KINDS = ("old", "new", "unseen", "contradicted", "probabilistic")
Value = Callable[[Mapping[str, Any]], float]


def _of(part: str, kind: str) -> Value:
    return lambda result: float(result[part][kind])


VALUES: Mapping[str, Value] = {
    "Γ": lambda result: result["gamma"],
    "Γ'": lambda result: result["gamma_invariant"],
    "TC": lambda result: result["tc"],
    "diag": lambda result: result["diagonal"],
    "text": lambda result: result["text"],
    **{f"E {kind}": _of("E", kind) for kind in KINDS},
    **{f"Pr {kind}": _of("Pr", kind) for kind in KINDS},
}
"""What is reported of a run."""


def every(folder: Path, seeds: int) -> dict[str, list[dict[str, Any]]]:
    """All tables by title."""
    results = {arm: [Run(arm, seed).read(folder) for seed in range(seeds)] for arm in ARMS}
    spread = "mean over seeds ± standard deviation"
    heads, truth = list(VALUES)[:5], list(VALUES)[5:]
    before = [read_result(folder / "before.json")]
    found = {}
    for title, names in (("Heads and text", heads), ("Truth", truth)):
        rows = [_row(arm, runs, names) for arm, runs in {"before": before, **results}.items()]
        if title == "Heads and text":
            for row, runs in zip(rows[1:], results.values(), strict=True):
                row["pairs up"] = _show([_risen(run) for run in runs])
        found[f"{title}, {spread}"] = rows
    if seeds > 1:
        rows = [
            {
                "arm": arm,
                **{name: _difference(runs, results["plain"], value) for name, value in VALUES.items()},
            }
            for arm, runs in results.items()
            if arm != "plain"
        ]
        caption = "mean ± half of the 95 % t interval; * if it excludes 0"
        for title, names in (("Heads and text", heads), ("Truth", truth)):
            found[f"{title} less plain LoRA of the same seed, {caption}"] = [
                {name: row[name] for name in ("arm", *names)} for row in rows
            ]
    return found


def _row(arm: str, runs: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    return {"arm": arm, **{name: _show([VALUES[name](run) for run in runs]) for name in names}}


def _show(values: list[float]) -> str:
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def _difference(runs: list[dict[str, Any]], plain: list[dict[str, Any]], value: Value) -> str:
    """Mean difference over seeds, and half of its interval by Student's t."""
    from scipy.stats import t

    changes = [value(run) - value(other) for run, other in zip(runs, plain, strict=True)]
    half = float(t.ppf(0.975, len(changes) - 1)) * stdev(changes) / len(changes) ** 0.5
    mean = fmean(changes)
    return f"{mean:+.3f} ± {half:.3f}{' *' if abs(mean) > half else ''}"


def _risen(result: Mapping[str, Any]) -> float:
    """Share of the pairs whose coupling is higher at the end than at the beginning."""
    first = result["traces"][0]
    return sum(b > a for a, b in zip(first, result["pairs"], strict=True)) / len(first)
