"""Tables and figure of the study of heads, from its results: means over seeds, and their spread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from experiments.common import Row
from experiments.heads_tasks import HEADS, LAYERS, LENGTHS, TASKS

if TYPE_CHECKING:
    from experiments.heads_study import Place

TARGETS = (*map(str, range(LAYERS)), "all")
ALPHAS, BETAS = (0.05, 0.1, 0.2, 0.3), (0.1, 0.3, 0.5, 0.7, 0.9)


def every(places: Sequence[Place]) -> dict[str, list[Row]]:
    """All tables by title."""
    tasks = [[place for place in places if place.task == task] for task in TASKS]
    by_reach = [(group, reach) for group in tasks for reach in LENGTHS]
    return {
        "Accuracy [%] and mean v of the decoders": [_named(place, place.read("accuracies")) for place in places],
        "Largest dividends by layer, one entry for each seed": [
            _dividends(group, layer) for group in tasks for layer in range(LAYERS)
        ],
        "Largest dividends over all layers": [_summary(group, tasks[0]) for group in tasks],
        "R² of surrogates on coalitions that were not fitted, by layer": [
            _fits(group, layer) for group in tasks for layer in range(LAYERS)
        ],
        "R² of surrogates, 16 players of two layers, 550 fitted, 1,000 others": [
            _named(place, place.read("pair")) for place in places
        ],
        "Calibration at α = β = 0.1, fresh questions: change of accuracy [points] and of v (σ over seeds)": [
            _calibration(group, reach, target) for group, reach in by_reach for target in TARGETS
        ],
        "Change of accuracy [points] in the grid, mean over targets and seeds": [
            _grid(group, reach, kind, targets, alpha)
            for group, reach in by_reach for targets in (TARGETS[:-1], TARGETS[-1:])
            for kind in ("salient", "no group") for alpha in ALPHAS
        ],
        "Best α, β and layer of the validation questions, on fresh ones": [
            _chosen(place, reach) for group, reach in by_reach for place in group
        ],
        "Sum of dividends and v(N), before and after calibration at α = β = 0.1": [
            _named(place, place.read("sums")) for place in places
        ],
    }  # fmt: skip


def _named(place: Place, row: Row) -> Row:
    return {"task": place.task, "seed": place.seed, **row}


def _dividends(places: Sequence[Place], layer: int) -> Row:
    found = [place.read("dividends")[layer] for place in places]
    means = [fmean(one["sums"][k] for one in found) for k in range(HEADS + 1)]
    return {
        "task": places[0].task, "layer": layer, "players": " ".join("".join(map(str, o["players"])) for o in found),
        "w ± se": ", ".join(f"{one['w']:.2f} ± {one['error']:.2f}" for one in found),
        "frequency": [one["frequency"] for one in found], "v(N) - v(∅)": [one["v(N) - v(∅)"] for one in found],
        "Σ w of order 1, 2, 3, 4+": [*means[1:4], sum(means[4:])],
    }  # fmt: skip


def _summary(places: Sequence[Place], others: Sequence[Place]) -> Row:
    """How often the largest dividend is one player's, is sure, and that of the other task; and eq. 8 is empty."""
    found, first = ([one for p in group for one in p.read("dividends")] for group in (places, others))
    return {
        "task": places[0].task, "games": len(found), "one player": sum(len(one["players"]) == 1 for one in found),
        "frequency ≥ .95": sum(one["frequency"] >= 0.95 for one in found),
        "eq. 8 empty": sum(not one["intersection"] for one in found),
        f"as in {others[0].task}": sum(a["players"] == b["players"] for a, b in zip(found, first, strict=True)),
    }  # fmt: skip


def _fits(places: Sequence[Place], layer: int) -> Row:
    found, row = (
        [place.read("dividends")[layer] for place in places],
        {"task": places[0].task, "layer": layer},
    )
    for kind in ("linear", "pairs"):
        single = sorted(r for one in found for r in one[f"R² {kind}, samples"])
        row[f"{kind}, mean"] = [one[f"R² {kind}, mean"] for one in found]
        row[f"{kind}, samples (10, 50, 90 %)"] = [single[int(q * (len(single) - 1))] for q in (0.1, 0.5, 0.9)]
    return row


def tested(place: Place, **wanted: str) -> list[Row]:
    """Rows of the test questions with these entries."""
    return [row for row in place.read("test") if all(row[key] == value for key, value in wanted.items())]


def _rank(place: Place, **wanted: str) -> str:
    """Place of the salient group by v among it and the random ones, "1/8" for the best of eight."""
    (ours,) = tested(place, kind="salient", **wanted)
    others = tested(place, kind="random", **wanted)
    return f"{1 + sum(other['v'] > ours['v'] for other in others)}/{1 + len(others)}"


def _calibration(places: Sequence[Place], reach: str, target: str) -> Row:
    row: Row = {"task": places[0].task, "lengths": reach, "layer": target}
    for setting, kind in (
        ("paper", "salient"),
        ("paper", "random"),
        ("paper", "no group"),
        ("prompt", "salient"),
    ):
        cells = []
        for what in ("accuracy change", "v change"):
            found = [tested(p, target=target, reach=reach, setting=setting, kind=kind) for p in places]
            values = [fmean(one[what] for one in rows) for rows in found]
            cells.append(f"{fmean(values):+.2f}" + (f" ({stdev(values):.2f})" if len(values) > 1 else ""))
        row[kind if setting == "paper" else f"{setting}, {kind}"] = ", ".join(cells)
    return row | {"rank": " ".join(_rank(p, target=target, reach=reach, setting="paper") for p in places)}


def _grid(places: Sequence[Place], reach: str, kind: str, targets: Sequence[str], alpha: float) -> Row:
    found = [
        row for place in places for row in place.read("grid")
        if (row["reach"], row["kind"], row["alpha"]) == (reach, kind, alpha) and row["target"] in targets
    ]  # fmt: skip
    layers = "all" if len(targets) == 1 else "one"
    return {
        "task": places[0].task, "lengths": reach, "layers": layers, "group": kind, "α": alpha,
        **{f"β = {b}": fmean(row["accuracy change"] for row in found if row["beta"] == b) for b in BETAS},
    }  # fmt: skip


def _chosen(place: Place, reach: str) -> Row:
    best = place.chosen(reach)
    where = {"target": best["target"], "reach": reach, "setting": "chosen"}
    row: Row = {
        "task": place.task, "lengths": reach, "seed": place.seed, "layer": best["target"], "α": best["alpha"],
        "β": best["beta"], "on validation": _change(best, "accuracy"),
    }  # fmt: skip
    for kind in ("salient", "no group"):
        (found,) = tested(place, kind=kind, **where)
        row |= {kind: _change(found, "accuracy"), f"v, {kind}": _change(found, "v")}
    changes = [found["accuracy change"] for found in tested(place, kind="random", **where)]
    random = f"{fmean(changes):+.1f} [{min(changes):+.1f}, {max(changes):+.1f}]"
    return row | {"random": random, "rank by v": _rank(place, **where)}


def _change(row: Row, what: str) -> str:
    return f"{row[f'{what} change']:+.2f} ± {row[f'{what} error']:.2f}"


def groups_figure(places: Sequence[Place], path: Path) -> None:
    """Change of v at α = β = 0.1 by layer: the salient group, no group, and random groups."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(9.5, 7), layout="constrained")
    looks = (("random", "0.6", "o"), ("no group", "C1", "x"), ("salient", "C0", "D"))
    for line, task in zip(axes, TASKS, strict=False):
        for axis, reach in zip(line, LENGTHS, strict=True):
            for place in (place for place in places if place.task == task):
                for kind, colour, marker in looks:
                    found = tested(place, reach=reach, setting="paper", kind=kind)
                    x = [TARGETS.index(row["target"]) + 0.22 * (place.seed - 1) for row in found]
                    label = kind if place.seed == 0 else None
                    axis.scatter(
                        x, [row["v change"] for row in found], 16, colour, marker=marker, label=label
                    )
            axis.set_xticks(range(len(TARGETS)), TARGETS)
            axis.set(title=f"{task}, {reach} lengths", xlabel="layer", ylabel="change of mean v")
    axes[0, 0].legend()
    figure.savefig(path, dpi=160)
    plt.close(figure)
