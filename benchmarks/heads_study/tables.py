"""The tables of the study, from its finished pieces: means over seeds, and their spread."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.heads_study.core import ALPHAS, BETAS, REACHES, TARGETS, Piece, chosen
from benchmarks.heads_study.decoder import TASKS

Row = dict[str, Any]
Rows = list[Row]


def every(folder: Path, seeds: int) -> dict[str, Rows]:
    """All tables by title."""
    return {
        "Accuracy [%] and mean v of the decoders": decoders(folder, seeds),
        "Largest dividends by layer, one entry for each seed": dividends(folder, seeds),
        "Largest dividends over all layers": summary(folder, seeds),
        "R² of surrogates on coalitions that were not fitted, by layer": fits(folder, seeds),
        "R² of surrogates, 16 players of two layers, 550 fitted, 1,000 others": pairs(folder, seeds),
        "Calibration at α = β = 0.1, fresh questions: change of accuracy [points] and of v": paper(
            folder, seeds
        ),
        "Change of accuracy [points] in the grid, mean over targets and seeds, salient group": grid(
            folder, seeds
        ),
        "Best α, β and layer of the validation questions, on fresh ones": selected(folder, seeds),
        "Sum of dividends and v(N), before and after calibration at α = β = 0.1": sums(folder, seeds),
    }


def decoders(folder: Path, seeds: int) -> Rows:
    rows = []
    for seed in range(seeds):
        found = Piece("decoder", seed).read(folder)
        row: Row = {"seed": seed}
        for name, accuracy in found["accuracy"].items():
            row |= {name: accuracy, f"v {name}": found["v"][name]}
        rows.append(row)
    return rows


def dividends(folder: Path, seeds: int) -> Rows:
    rows = []
    for task in TASKS:
        for layer in TARGETS[:-1]:
            found = [Piece("dividends", seed, task, layer).read(folder) for seed in range(seeds)]
            sums = [[piece["sums"][order] for piece in found] for order in range(1, 9)]
            rows.append(
                {
                    "task": task, "layer": layer,
                    "size": " ".join(str(len(piece["players"])) for piece in found),
                    "players": " ".join("".join(map(str, piece["players"])) for piece in found),
                    "w ± se": ", ".join(f"{piece['w']:.2f} ± {piece['error']:.2f}" for piece in found),
                    "frequency": " ".join(f"{piece['frequency']:.2f}" for piece in found),
                    **{f"order {k}": fmean(sums[k - 1]) for k in (1, 2, 3)},
                    "order 4+": fmean(sum(piece["sums"][4:]) for piece in found),
                    "v(N) - v(∅)": fmean(piece["v full"] - piece["v empty"] for piece in found),
                }
            )  # fmt: skip
    return rows


def summary(folder: Path, seeds: int) -> Rows:
    """How often the largest dividend is one player's, is sure, agrees between tasks, and eq. 8 is empty."""
    rows = []
    by_task = {
        task: [
            Piece("dividends", s, task, layer).read(folder) for s in range(seeds) for layer in TARGETS[:-1]
        ]
        for task in TASKS
    }
    for task, found in by_task.items():
        rows.append(
            {
                "task": task,
                "games": len(found),
                "one player": sum(len(piece["players"]) == 1 for piece in found),
                "argmax frequency, mean": fmean(piece["frequency"] for piece in found),
                "≥ .95": sum(piece["frequency"] >= 0.95 for piece in found),
                "eq. 8 empty": sum(not piece["intersection"] for piece in found),
                "≥ 2 players, frequency, mean": fmean(piece["frequency of two or more"] for piece in found),
            }
        )
    same = sum(
        a["players"] == b["players"] for a, b in zip(by_task[TASKS[0]], by_task[TASKS[1]], strict=True)
    )
    return [row | {"same in both tasks": same} for row in rows]


def fits(folder: Path, seeds: int) -> Rows:
    rows = []
    for task in TASKS:
        for layer in TARGETS[:-1]:
            found = [Piece("dividends", seed, task, layer).read(folder) for seed in range(seeds)]
            row: Row = {"task": task, "layer": layer}
            for kind in ("linear", "pairs"):
                row[f"{kind}, mean"] = _span([piece[f"R² {kind}, mean"] for piece in found])
                single = sorted(r for piece in found for r in piece[f"R² {kind}, samples"])
                at = [single[int(q * (len(single) - 1))] for q in (0.1, 0.5, 0.9)]
                row[f"{kind}, samples (10, 50, 90 %)"] = ", ".join(f"{r:.2f}" for r in at)
            rows.append(row)
    return rows


def pairs(folder: Path, seeds: int) -> Rows:
    return [
        {"task": task, "seed": seed, **Piece("pair", seed, task).read(folder)}
        for task in TASKS
        for seed in range(seeds)
    ]


def tested(folder: Path, seed: int, task: str, target: str, **wanted: str) -> Rows:
    """Rows of the test questions with these entries."""
    rows = Piece("test", seed, task, target).read(folder)["rows"]
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def paper(folder: Path, seeds: int) -> Rows:
    rows = []
    for task in TASKS:
        for reach in REACHES:
            for target in TARGETS:
                row: Row = {"task": task, "lengths": reach, "layer": target}
                for setting, kind in (
                    ("paper", "salient"), ("paper", "no group"), ("paper", "random"), ("prompt", "salient"),
                    ("prompt", "no group"),
                ):  # fmt: skip
                    name = kind if setting == "paper" else f"prompt, {kind}"
                    for what in ("accuracy", "v"):
                        by_seed = [
                            fmean(found[f"{what} change"] for found in
                                  tested(folder, seed, task, target, reach=reach, setting=setting, kind=kind))
                            for seed in range(seeds)
                        ]  # fmt: skip
                        row[f"{what}, {name}"] = _spread(by_seed)
                row["rank"] = " ".join(
                    rank(folder, seed, task, target, reach, "paper") for seed in range(seeds)
                )
                rows.append(row)
    return rows


def rank(folder: Path, seed: int, task: str, target: str, reach: str, setting: str) -> str:
    """Place of the salient group by v among it and the random ones, "1/8" for the best of eight."""
    (ours,) = tested(folder, seed, task, target, reach=reach, setting=setting, kind="salient")
    others = tested(folder, seed, task, target, reach=reach, setting=setting, kind="random")
    return f"{1 + sum(other['v'] > ours['v'] for other in others)}/{1 + len(others)}"


def grid(folder: Path, seeds: int) -> Rows:
    rows = []
    for task in TASKS:
        for reach in REACHES:
            for name, targets in (("one", TARGETS[:-1]), ("all", TARGETS[-1:])):
                for kind in ("salient", "no group"):
                    changes = grid_changes(folder, seeds, task, reach, kind, targets)
                    for alpha in ALPHAS:
                        row: Row = {"task": task, "lengths": reach, "layers": name, "group": kind, "α": alpha}
                        rows.append(row | {f"β = {beta}": fmean(changes[alpha, beta]) for beta in BETAS})
    return rows


def grid_changes(
    folder: Path, seeds: int, task: str, reach: str, kind: str, targets: tuple[str, ...]
) -> dict[tuple[float, float], list[float]]:
    """Changes of accuracy by α and β, of all seeds and targets."""
    changes: dict[tuple[float, float], list[float]] = {}
    for seed in range(seeds):
        for target in targets:
            for row in Piece("grid", seed, task, target).read(folder)["rows"]:
                if row["reach"] == reach and row["kind"] == kind:
                    changes.setdefault((row["alpha"], row["beta"]), []).append(row["accuracy change"])
    return changes


def selected(folder: Path, seeds: int) -> Rows:
    rows = []
    for task in TASKS:
        for reach in REACHES:
            for seed in range(seeds):
                best = chosen(folder, seed, task, reach)
                target = best["target"]
                row: Row = {
                    "task": task, "lengths": reach, "seed": seed, "layer": target, "α": best["alpha"],
                    "β": best["beta"], "on validation": _change(best, "accuracy"),
                }  # fmt: skip
                for kind in ("salient", "no group"):
                    (found,) = tested(folder, seed, task, target, reach=reach, setting="chosen", kind=kind)
                    row[kind] = _change(found, "accuracy")
                    row[f"v, {kind}"] = _change(found, "v")
                others = tested(folder, seed, task, target, reach=reach, setting="chosen", kind="random")
                changes = [found["accuracy change"] for found in others]
                row["random"] = f"{fmean(changes):+.1f} [{min(changes):+.1f}, {max(changes):+.1f}]"
                row["rank by v"] = rank(folder, seed, task, target, reach, "chosen")
                rows.append(row)
    return rows


def sums(folder: Path, seeds: int) -> Rows:
    rows = []
    for task in TASKS:
        for seed in range(seeds):
            found = Piece("sums", seed, task).read(folder)
            row: Row = {"task": task, "seed": seed, "layer": found["layer"]}
            for when in ("before", "after"):
                numbers = found[when]
                row[f"Σ w + v(∅), {when}"] = numbers["sum of w"] + numbers["v(∅)"]
                row |= {f"{name}, {when}": numbers[name] for name in ("v(N)", "sum of w", "accuracy")}
            rows.append(row)
    return rows


def _change(row: Row, what: str) -> str:
    return f"{row[f'{what} change']:+.2f} ± {row[f'{what} error']:.2f}"


def _spread(values: list[float]) -> str:
    return f"{fmean(values):+.2f} ({stdev(values):.2f})" if len(values) > 1 else f"{values[0]:+.2f}"


def _span(values: list[float]) -> str:
    return f"{min(values):.3f} - {max(values):.3f}"
