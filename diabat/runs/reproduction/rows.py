"""Rows of a reproduced table: every seed, mean and standard deviation beside the published mean."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diabat.runs.experiments import Experiment, Outcome


def table_rows(
    experiment: Experiment, outcomes: Sequence[Outcome], *, rows: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """One row per value: every seed, mean, standard deviation, published mean, difference to it, times.

    ``missing`` are the seeds of the experiment without a run.

    Args:
        experiment: The experiment.
        outcomes: Its finished runs.
        rows: Rows that are listed even if none of their runs is finished.
    """
    made = []
    for value, published in experiment.published.items():
        runs = [o for o in outcomes if o.value == value]
        if not runs and value not in rows:
            continue
        metrics = [o.metric for o in runs]
        mean = statistics.fmean(metrics) if runs else None
        epochs = sum(o.epochs or 1 for o in runs)
        cpu = [o.cpu_seconds for o in runs if o.cpu_seconds is not None]
        made.append(
            {
                experiment.vary: value,
                "seeds": metrics,
                "mean": mean,
                "std": statistics.stdev(metrics) if len(metrics) > 1 else None,
                "published": published,
                "relative_difference": None if published is None or mean is None else mean / published - 1,
                "seconds_per_epoch": sum(o.seconds for o in runs) / epochs if runs else None,
                "cpu_seconds_per_epoch": sum(cpu) / epochs if runs and len(cpu) == len(runs) else None,
                "missing": [seed for seed in experiment.seeds if seed not in {o.seed for o in runs}],
            }
        )
    return made
