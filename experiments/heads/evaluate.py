"""lm-eval on a model as it is, with calibrations by GAC, and with LoRA adapters.

    python -m experiments.heads.evaluate MODEL --tasks gac_sst2 gac_mr --calibration runs/heads/gac.json
    python -m experiments.heads.evaluate MODEL --tasks game_lora --adapter plain/adapter --adapter game/adapter

Every state is a model that is loaded anew.  Differences are those from the model as it is, paired by document, with the
standard error of their mean; p is McNemar's, exact and two-sided, for scores of 0 and 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest

from diabat.heads import load_gac
from diabat.huggingface.boltzmann.model import SETTINGS
from diabat.huggingface.loading import check_adapter
from experiments.common import Row, needed, parser, report

TASKS = Path(__file__).parent / "tasks"
METRICS = ("acc", "exact_match", "f1")
"""The metric that is compared is the first of these that a task has, chosen before any value is known."""

Scores = dict[tuple[str, str], NDArray[np.float64]]
"""By task and metric, the score of every document."""


def measure(
    model: str,
    tasks: list[str],
    *,
    calibration: Path | None = None,
    adapter: Path | None = None,
    folder: Path = TASKS,
    limit: int | None = None,
    batch_size: int = 16,
    dtype: str = "float32",
) -> Scores:
    """Scores of single documents by task."""
    if adapter is not None:
        check_adapter(adapter)
        if (adapter / SETTINGS).exists():
            raise SystemExit(
                f"--adapter: expected one without couplings, which lm-eval would drop, got '{adapter}'."
            )
    lm_eval, TaskManager = needed("lm_eval", "eval"), needed("lm_eval.tasks", "eval").TaskManager
    loaded = needed("lm_eval.models.huggingface", "eval").HFLM(
        model,
        attn_implementation="gac",  # without a calibration the same as eager, to the bit
        device="cuda" if torch.cuda.is_available() else "cpu",
        peft=None if adapter is None else str(adapter),
        dtype=dtype,
        batch_size=batch_size,
    )
    if calibration is not None:
        load_gac(loaded.model, calibration)
    own = TaskManager(include_path=[str(TASKS), str(folder)], include_defaults=False)
    # Reading the thousands of tasks of lm-eval takes seconds.
    manager = own if set(tasks) <= set(own.all_tasks) else TaskManager(include_path=[str(TASKS), str(folder)])
    found: Any = lm_eval.simple_evaluate(
        loaded, tasks=tasks, task_manager=manager, limit=limit, log_samples=True, bootstrap_iters=0
    )
    return _scores(found["samples"])


def _scores(samples: dict[str, list[dict[str, Any]]]) -> Scores:
    found = {}
    for task, documents in samples.items():
        metric = next((name for name in METRICS if name in documents[0]), None)
        if metric is not None:
            by_document = {one["doc_id"]: float(one[metric]) for one in documents}
            found[task, metric] = np.array([by_document[k] for k in sorted(by_document)])
    return found


def compare(states: dict[str, Scores]) -> list[Row]:
    """One row for each task and state; the first state is what the others are compared with."""
    before, rows = next(iter(states.values())), []
    for key, first in before.items():
        for name, scores in states.items():
            change = scores[key] - first
            row = {"task": key[0], "metric": key[1], "state": name, "documents": len(first)}
            row |= {"score": float(scores[key].mean()), "difference": float(change.mean())}
            row["error"] = float(change.std(ddof=1) / len(change) ** 0.5) if len(change) > 1 else None
            row["p"] = _mcnemar(first, scores[key]) if {*first, *scores[key]} <= {0.0, 1.0} else None
            rows.append(row)
    return rows


def _mcnemar(before: NDArray[np.float64], after: NDArray[np.float64]) -> float:
    lost, won = int((before > after).sum()), int((before < after).sum())
    return 1.0 if lost + won == 0 else float(binomtest(lost, lost + won).pvalue)


def main(arguments: list[str] | None = None) -> None:
    """Measure every state and print the comparison."""
    command = parser(__doc__)
    command.add_argument("model")
    command.add_argument("--tasks", nargs="+", required=True)
    command.add_argument("--calibration", type=Path, action="append", default=[])
    command.add_argument("--adapter", type=Path, action="append", default=[])
    command.add_argument(
        "--task-folder", type=Path, default=TASKS, help="of YAML files; !function in them runs Python"
    )
    command.add_argument("--limit", type=int)
    command.add_argument("--batch-size", type=int, default=16)
    command.add_argument("--dtype", default="float32")
    given, version = command.parse_args(arguments), needed("lm_eval", "eval").__version__
    changes: dict[str, dict[str, Any]] = {"off": {}}
    changes |= {str(file): {"calibration": file} for file in given.calibration}
    changes |= {str(folder): {"adapter": folder} for folder in given.adapter}
    options = {"limit": given.limit, "batch_size": given.batch_size, "dtype": given.dtype}
    options["folder"] = given.task_folder
    measured = {name: measure(given.model, given.tasks, **options, **one) for name, one in changes.items()}
    rows = compare(measured)
    report(
        f"{given.model}, lm-eval {version}",
        rows,
        as_json=given.json,
        formats=dict.fromkeys(rows[0], ".4g"),
    )


if __name__ == "__main__":
    main()
