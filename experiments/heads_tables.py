"""Tables of the study of heads, from its results: by task and seed, and means over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from experiments.common import Row, Titled
from experiments.heads_tasks import LAYERS, LENGTHS, TASKS

if TYPE_CHECKING:
    from experiments.heads_study import Place

TARGETS = (*map(str, range(LAYERS)), "all")


def tables(places: Sequence[Place]) -> Titled:
    """Results by task and seed; changes by calibration as means over seeds."""
    for title, stage in (
        ("Accuracy [%] and mean v of the decoders", "accuracies"),
        ("Largest dividends by layer, and R² of surrogates on the other half of the coalitions", "dividends"),
    ):
        for place in places:
            found = place.read(stage)
            for row in found if isinstance(found, list) else [found]:
                yield title, {"task": place.task, "seed": place.seed, **row}
    for task in TASKS:
        own = [place for place in places if place.task == task]
        for reach in LENGTHS:
            yield from _calibrations(own, task, reach)


def _calibrations(places: Sequence[Place], task: str, reach: str) -> Titled:
    """Changes at α = β = 0.1 over seeds, and those at the choice of the validation questions seed by seed."""
    title = "Calibration at α = β = 0.1, fresh questions: change of accuracy [points] and of v (σ over seeds)"
    for target in TARGETS:
        row = Row(task=task, lengths=reach, layer=target)
        for kind in ("salient", "random", "no group"):
            for what in ("accuracy", "v"):
                means = [fmean(tested(p, what, target, reach, "paper", kind)) for p in places]
                spread = f" ({stdev(means):.2f})" if len(means) > 1 else ""
                row[f"{what}, {kind}"] = f"{fmean(means):+.2f}{spread}"
        yield title, row
    for place in places:
        best = place.chosen(reach)
        row = Row(
            task=task, lengths=reach, seed=place.seed, layer=best["target"], α=best["alpha"], β=best["beta"]
        )
        row["on validation"] = best["accuracy change"]
        for kind in ("salient", "random", "no group"):
            row[kind] = fmean(tested(place, "accuracy", best["target"], reach, "chosen", kind))
        yield "Change of accuracy [points] at the best α, β and layer of the validation questions", row


def tested(place: Place, what: str, *wanted: str) -> list[float]:
    """Changes on the test questions of a target, lengths, a setting and a kind of group."""
    keys = ("target", "reach", "setting", "kind")
    return [row[f"{what} change"] for row in place.read("test") if tuple(row[k] for k in keys) == wanted]
