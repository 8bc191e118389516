"""Tasks of lm-eval (EleutherAI's evaluation harness) with and without calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from diabat.attention.heads.calibration import Calibration
from diabat.checks import ArgumentError, check_count, did_you_mean, is_number
from diabat.extras import extra
from diabat.runs.heads.evaluation.paired import compared, mcnemar
from diabat.runs.heads.evaluation.states import OFF, ON, State, entered
from diabat.samplers.base import UnsupportedError
from diabat.studies.report import Column, Report, Row

# Only scores that are no means are resampled: perplexities, BLEU.
_BOOTSTRAP = 1000


def _score(key: str) -> Column:
    def show(row: Row) -> str:
        error = row[f"{key}_error"]
        return f"{row[key]:.4f}" + ("" if error is None else f" ± {error:.4f}")

    meaning = f"score {'as the model is' if key == OFF else 'with calibration'}, and lm-eval's standard error"
    return Column(key, meaning, title=key, narrow=True, show=show)


def _show_difference(row: Row) -> str:
    error = row["difference_error"]
    return f"{row['difference']:+.4f}" + ("" if error is None else f" ± {error:.4f}")


@dataclass(frozen=True)
class HarnessReport(Report):
    """Scores of tasks, off and on.

    Attributes:
        model: Its name.
        calibration: As in gac.json; None if there is none.
        version: That of lm-eval.
        versions: Versions of the tasks.
        limit: Documents of each task; None for all.
    """

    model: str = ""
    calibration: dict[str, Any] | None = None
    version: str = ""
    versions: dict[str, Any] = field(default_factory=dict)
    limit: int | None = None

    labels: ClassVar[tuple[Column, ...]] = (
        Column("task", title="task", narrow=True),
        Column("metric", "metric of lm-eval, and its filter if there is one", title="metric", narrow=True),
        Column("samples", "number of documents", title="n", form="d"),
    )
    columns: ClassVar[tuple[Column, ...]] = (
        _score(OFF),
        _score(ON),
        Column(
            "difference",
            "calibrated minus off, and the standard error of the difference paired by document where the score is a "
            "mean over documents",
            title="difference",
            narrow="diff.",
            show=_show_difference,
        ),
        Column(
            "mcnemar_p", "exact two-sided p of McNemar's test, for scores of 0 and 1", title="p", form=".3g"
        ),
    )
    groups: ClassVar[tuple[str, ...]] = ("task",)

    @property
    def title(self) -> str:
        """Line above the table."""
        return f"{self.model}, lm-eval {self.version}"


def evaluate_tasks(
    model: Any,
    tokenizer: Any,
    tasks: Sequence[str],
    calibration: Calibration | None,
    *,
    name: str = "model",
    folder: Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = 16,
) -> HarnessReport:
    """Run tasks of lm-eval on a decoder as it is, and calibrated if there is a calibration.

    Args:
        model: A causal language model of transformers; left in the state in which it was.
        tokenizer: Its tokenizer.
        tasks: Names of tasks or groups.
        calibration: None for the model as it is alone.
        name: Name of the model in the report.
        folder: Tasks of one's own (YAML files), beside those of lm-eval.
        limit: First documents of each task that are used; None for all.
        seed: Of lm-eval: order of documents, examples in the prompt.
        batch_size: Sequences in one forward pass.

    Raises:
        ArgumentError: If a task is unknown, there is no tokenizer, or the calibration does not suit the tasks.
        ImportError: If the extra ``eval`` is not installed.
    """
    check_count("limit", limit, optional=True)
    if tokenizer is None:
        raise ArgumentError("tokenizer", "expected that of the model for tasks of lm-eval, got none.")
    harness = extra("lm_eval", "eval")
    manager = _manager(tasks, folder)
    lm = extra("lm_eval.models.huggingface", "eval").HFLM(
        pretrained=model, tokenizer=tokenizer, batch_size=batch_size
    )
    states = [State(OFF, None)] if calibration is None else [State(OFF, None), State(ON, calibration)]
    results: dict[str, Any] = {}
    for state in states:
        with entered(model, state):
            results[state.name] = _run(harness, lm, tasks, manager, limit, seed, batch_size)
    return HarnessReport(
        rows=_rows(results[OFF], results.get(ON)),
        model=name,
        calibration=None if calibration is None else calibration.as_dict(),
        version=harness.__version__,
        versions=dict(results[OFF]["versions"]),
        limit=limit,
    )


def _manager(tasks: Sequence[str], folder: Path | None) -> Any:
    if folder is not None and not folder.is_dir():
        raise ArgumentError("task_folder", f"expected a folder with tasks of lm-eval, got '{folder}'.")
    kind = extra("lm_eval.tasks", "eval").TaskManager
    if folder is not None:
        # Reading the thousands of tasks of lm-eval takes seconds: they are left out if they are not needed.
        own = kind(include_path=str(folder), include_defaults=False)
        if set(tasks) <= set(own.all_tasks):
            return own
    manager = kind(include_path=None if folder is None else str(folder))
    for task in tasks:
        if task not in manager.all_tasks:
            raise ArgumentError(
                "tasks",
                f"expected names of tasks of lm-eval, got '{task}'.{did_you_mean(task, manager.all_tasks)}",
            )
    return manager


def _run(
    harness: Any, lm: Any, tasks: Sequence[str], manager: Any, limit: int | None, seed: int, batch_size: int
) -> Any:
    try:
        return harness.simple_evaluate(
            model=lm,
            tasks=list(tasks),
            task_manager=manager,
            limit=limit,
            batch_size=batch_size,
            bootstrap_iters=_BOOTSTRAP,
            log_samples=True,
            random_seed=seed,
            numpy_random_seed=seed,
            torch_random_seed=seed,
            fewshot_random_seed=seed,
        )
    except UnsupportedError as error:
        if error.argument != "rows":
            raise
        raise ArgumentError(
            "calibration",
            "expected rows='running' for the likelihoods of lm-eval, got 'prompt', where later tokens change those of "
            "earlier ones; calibrate with rows='running'.",
        ) from None


def _rows(off: Any, on: Any) -> list[Row]:
    rows = []
    for task, scores in off["results"].items():
        for key, score in scores.items():
            metric, _, kind = key.partition(",")
            if not kind or metric.endswith("_stderr") or not is_number(score):
                continue
            row: Row = {"task": task, "metric": metric if kind == "none" else key}
            row["samples"] = off.get("n-samples", {}).get(task, {}).get("effective")
            row |= {OFF: float(score), f"{OFF}_error": _error(scores, metric, kind)}
            if on is not None:
                after = on["results"][task]
                row |= {ON: float(after[key]), f"{ON}_error": _error(after, metric, kind)}
                row |= {"difference": row[ON] - row[OFF], "difference_error": None}
                row |= _paired(off["samples"].get(task, ()), on["samples"].get(task, ()), metric, kind)
            rows.append(row)
    return rows


def _error(scores: Mapping[str, Any], metric: str, kind: str) -> float | None:
    error = scores.get(f"{metric}_stderr,{kind}")
    return float(error) if error is not None and is_number(error) else None


def _paired(off: Sequence[Any], on: Sequence[Any], metric: str, kind: str) -> Row:
    """The difference paired by document, if the metric is one number per document."""
    tables = [
        {sample["doc_id"]: sample.get(metric) for sample in samples if sample["filter"] == kind}
        for samples in (off, on)
    ]
    before, after = tables
    if (
        not before
        or before.keys() != after.keys()
        or not all(map(is_number, (*before.values(), *after.values())))
    ):
        return {}
    first = np.array([float(before[key]) for key in before])
    second = np.array([float(after[key]) for key in before])
    row: Row = {"difference_error": compared("", first, second)["_difference_error"]}
    if set(np.unique((first, second))) <= {0.0, 1.0}:
        row["mcnemar_p"] = mcnemar(first, second)
    return row
