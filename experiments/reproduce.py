"""Train the rows of a published table with several seeds, and compare with the published values.

    python -m experiments.reproduce                                  # what there is
    python -m experiments.reproduce table2-shakespeare --row t8-softmax --row t8-h+J --jobs 2
    python -m experiments.reproduce table2-shakespeare --no-train --json

Finished runs are read, interrupted ones are continued: repeat the command.  KEY=VALUE changes the configuration of
every row.  The tables are in the YAML files beside this script:

    title, time     heading, and what it takes on one core
    config          configuration that comes with diabat, or a file
    set             overrides KEY=VALUE of every row, which those of the command line replace
    rows            {group: {arm: published}}, a row GROUP-ARM each, or {arm: published}; [mean, σ], [mean] or null
    overrides       those of a group or an arm, by its name; else task.window=8 for t8, and model.mode=ARM
    baseline        arm that the others of its group are compared with; the first one if left out
    gaps            pairs of rows to compare, in place of those
    folder          of the runs, below --output; tables with the same rows share one
    seeds           [0, 1, 2] if left out
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import yaml
from scipy.optimize import OptimizeWarning, curve_fit

from diabat.lab.config import Config, ConfigError, load_config, make_config, to_plain
from diabat.lab.runs import run_training
from diabat.lab.runs.build import require_same_run
from diabat.lab.training import TrainingInterrupted, TrainResult, is_finished
from diabat.progress import without_bars
from experiments.common import Row, calls, parser, report, run_script
from experiments.verdicts import Gap, combined, gap, holm, interval, power, seeds_needed, verdict, weighted

HERE = Path(__file__).parent
FEWEST = 5
"""Windows of a fit: three determine a, b and c exactly, four leave one degree of freedom."""


@dataclass(frozen=True)
class Entry:
    """One row of a table: its overrides, and the published mean and standard deviation."""

    group: str
    arm: str
    overrides: tuple[str, ...]
    mean: float | None = None
    deviation: float | None = None

    @property
    def window(self) -> int | None:
        """T of a group t8."""
        return int(self.group[1:]) if self.group[1:].isdigit() else None


@dataclass(frozen=True)
class Experiment:
    """A table; see the module."""

    title: str
    time: str
    config: str
    entries: Mapping[str, Entry]
    gaps: Sequence[tuple[str, str]]
    folder: str
    set: Sequence[str] = ()
    seeds: Sequence[int] = (0, 1, 2)


@dataclass(frozen=True)
class Outcome:
    """A finished run: the metric with the lowest validation loss, and its cost."""

    row: str
    seed: int
    result: TrainResult


def load(folder: Path = HERE) -> dict[str, Experiment]:
    """All tables of the YAML files in a folder, by name."""
    documents = (yaml.safe_load(file.read_text("utf-8")) for file in sorted(folder.glob("*.yaml")))
    return {name: _table(name, table) for document in documents for name, table in document.items()}


def _table(name: str, table: Row) -> Experiment:
    rows, named, baseline = table.pop("rows"), table.pop("overrides", {}), table.pop("baseline", None)
    entries, gaps = {}, []
    for group, arms in rows.items() if isinstance(next(iter(rows.values())), dict) else [("", rows)]:
        window = [f"task.window={group[1:]}"] if group else []
        prefix, first = f"{group}-" if group else "", baseline or next(iter(arms))
        for arm, published in arms.items():
            overrides = (*named.get(group, window), *named.get(arm, [f"model.mode={arm}"]))
            entries[prefix + arm] = Entry(group, arm, overrides, *(published or ()))
            gaps += [(prefix + arm, prefix + first)] if arm != first else []
    return Experiment(**{"entries": entries, "gaps": gaps, "folder": name, **table})


def plan(
    experiment: Experiment, output: Path, rows: Sequence[str], seeds: Sequence[int], overrides: Sequence[str]
) -> list[tuple[str, int, Config]]:
    """Row, seed and configuration of every run."""
    runs = []
    for row in rows or experiment.entries:
        if row not in experiment.entries:
            raise ConfigError("row", f"one of {', '.join(experiment.entries)}", f"'{row}'")
        own = experiment.entries[row].overrides
        for text in overrides:
            if text.split("=")[0] in ("seed", "output", *(key.split("=")[0] for key in own)):
                raise ConfigError(f"override '{text}'", f"expected a key that the row '{row}' does not set.")
        for seed in seeds or experiment.seeds:
            folder = json.dumps(str(output / f"reproduce-{experiment.folder}" / f"{row}-seed{seed}"))
            keys = (*experiment.set, *overrides, *own, f"seed={seed}", f"output={folder}")
            runs.append((row, seed, load_config(experiment.config, keys)))
    return runs


def outcome(row: str, seed: int, document: dict[str, Any], begins: str, progress: bool) -> Outcome:
    """Train a run, continue it, or read it if it is finished; ``begins`` is what a log says before a training."""
    config = make_config(document)
    if not is_finished(config.output, config.training):
        without_bars(begins)
    started = (config.output / "config.json").exists()
    if started:
        require_same_run(config)
    return Outcome(row, seed, run_training(config, resume=started, progress=progress))


def metrics_of(row: str, outcomes: Sequence[Outcome]) -> list[float]:
    """Metric of every seed of a row."""
    return [one.result.best_metric for one in outcomes if one.row == row]


def summary(experiment: Experiment, outcomes: Sequence[Outcome]) -> list[Row]:
    """Every seed, mean and standard deviation of each row beside the published ones."""
    table = []
    for row, entry in experiment.entries.items():
        runs, metrics = [one for one in outcomes if one.row == row], metrics_of(row, outcomes)
        mean, epochs = fmean(metrics) if runs else None, sum(max(one.result.epochs, 1) for one in runs)
        table.append({
            "row": row, "metric": metrics, "mean": mean, "σ": stdev(metrics) if len(runs) > 1 else None,
            "published": entry.mean, "published σ": entry.deviation,
            "difference": mean / entry.mean - 1 if mean and entry.mean else None,
            "s/epoch": sum(one.result.seconds for one in runs) / epochs if runs else None,
            "CPU s/epoch": sum(one.result.cpu_seconds for one in runs) / epochs if runs else None,
            "missing": sorted({*experiment.seeds} - {one.seed for one in runs}),
        })  # fmt: skip
    return table


def gaps(experiment: Experiment, outcomes: Sequence[Outcome]) -> tuple[list[Row], list[Row]]:
    """A row for each pair that has runs: its gap beside the published one; and one for each pair of arms over windows.

    Holm's p are of the windows of a pair of arms, or of all gaps of a table without windows.
    """
    families: dict[tuple[str, ...], list[tuple[Row, Gap | None]]] = {}
    for pair in experiment.gaps:
        ours, others = (metrics_of(row, outcomes) for row in pair)
        if ours and others:
            a, b = (experiment.entries[row] for row in pair)
            published = None if a.mean is None or b.mean is None else round(a.mean - b.mean, 6)
            difference = gap(ours, others)
            row = {
                "gap": " - ".join(pair), "runs": f"{len(ours)} and {len(others)}",
                **compared(difference, fmean(ours) - fmean(others), published), "Holm": None,
                "power": None if published is None else power(ours, others, published),
                "seeds for 80 %": None if published is None else seeds_needed(ours, others, published),
            }  # fmt: skip
            family = () if a.window is None else (a.arm, b.arm)
            families.setdefault(family, []).append((row, difference))
    together = []
    for arms, members in families.items():
        known = [(row, difference) for row, difference in members if difference is not None]
        for (row, _), adjusted in zip(known, holm([difference.p for _, difference in known]), strict=True):
            row["Holm"] = adjusted
        if arms and len(known) > 1:
            whole = combined([difference for _, difference in known])
            told = [row["published"] for row, _ in known]
            mean = None if None in told else weighted(told, [difference for _, difference in known])
            place = {"gap": " - ".join(arms), "of": f"{len(known)} windows"}
            together.append(place | compared(whole, whole.difference, mean))
    return [row for members in families.values() for row, _ in members], together


def compared(tested: Gap | None, difference: float, published: float | None) -> Row:
    """Difference, interval, p, published gap, and what they say."""
    inside = None if tested is None or published is None else tested.holds(published)
    told = {"published": published, "inside": inside, "verdict": verdict(tested, published)}
    return {"difference": difference} | interval(tested) | told


def means_by_window(
    experiment: Experiment, outcomes: Sequence[Outcome]
) -> dict[tuple[str, str], dict[int, float]]:
    """Our means of every arm by window T, and the published ones, by (arm, "ours") and (arm, "published")."""
    means: dict[tuple[str, str], dict[int, float]] = {}
    for row, entry in experiment.entries.items():
        metrics = metrics_of(row, outcomes)
        for whose, mean in (("ours", fmean(metrics) if metrics else None), ("published", entry.mean)):
            if mean is not None and entry.window is not None:
                means.setdefault((entry.arm, whose), {})[entry.window] = mean
    return means


def fit_decay(values: Mapping[int, float]) -> Row | None:
    """Least squares of a exp(-b T) + c with standard errors; None for few windows, or if b is less than its error."""
    if len(values) < FEWEST:
        return None
    x, y = np.array(list(values), dtype=float), np.array(list(values.values()))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", OptimizeWarning)
            start = (2 * (y[0] - y[-1]), 0.3, y[-1])
            fitted, covariance = curve_fit(
                lambda T, a, b, c: a * np.exp(-b * T) + c, x, y, p0=start, maxfev=10_000
            )
    except (RuntimeError, OptimizeWarning):
        return None
    (a, b, c), errors = fitted.tolist(), np.sqrt(np.diag(covariance)).tolist()
    return {"a": a, "b": b, "± b": errors[1], "c": c, "± c": errors[2]} if errors[1] < b else None


def show(experiment: Experiment, options: argparse.Namespace) -> None:
    """Train or read the runs, and print their tables."""
    runs = plan(experiment, options.output, options.row, options.seed, options.overrides)
    if options.no_train:
        runs = [run for run in runs if is_finished(run[2].output, run[2].training)]
    progress = options.jobs == 1 and not options.no_train and sys.stderr.isatty()
    jobs = [
        (row, seed, to_plain(config), f"run {k} of {len(runs)}: {row}, seed {seed}", progress)
        for k, (row, seed, config) in enumerate(runs, start=1)
    ]
    outcomes = []
    for one in calls(outcome, jobs, options.jobs):
        outcomes.append(one)
        run = one.result
        cost = f"({run.epochs} epochs, {run.seconds:.0f} s), {run.run_dir}"
        print(f"{one.row}, seed {one.seed}: {run.best_metric:.4f} {cost}", file=sys.stderr, flush=True)
    outcomes.sort(key=lambda one: one.seed)
    formats = {key: ".4f" for key in ("metric", "mean", "σ", "published", "published σ")}
    formats |= {"difference": "+.2%", "s/epoch": ".1f", "CPU s/epoch": ".1f"}
    report(experiment.title, summary(experiment, outcomes), as_json=options.json, formats=formats)
    formats = dict.fromkeys(("difference", "95 % interval", "published"), "+.4f")
    formats |= {"p": ".2g", "Holm": ".2g", "power": ".0%"}
    single, together = gaps(experiment, outcomes)
    for title, rows in (("Gaps, by Welch's t test", single), ("Gaps over all windows", together)):
        report(title, rows, as_json=options.json, formats=formats)
    fits = [
        {"arm": arm, "means": whose, **fit}
        for (arm, whose), values in means_by_window(experiment, outcomes).items()
        if (fit := fit_decay(values)) is not None
    ]
    report("Fits of a exp(-b T) + c to the means", fits, as_json=options.json)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    command = parser(__doc__)
    command.add_argument("name", nargs="?", help="of a table; none lists them")
    command.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    command.add_argument("--row", action="append", default=[], help="this row only; may be repeated")
    command.add_argument("--seed", action="append", default=[], type=int, help="likewise")
    command.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    command.add_argument("--no-train", action="store_true", help="show the runs that are finished")
    command.add_argument("--output", type=Path, default=Path("runs"))
    command.add_argument("--folder", type=Path, default=HERE, help="of the YAML files")
    options = command.parse_intermixed_args(arguments)
    known = load(options.folder)
    if options.name is None:
        listed = [{"name": name, "title": table.title, "time": table.time} for name, table in known.items()]
        report("Tables, and their time on one core", listed, as_json=options.json)
        return
    if options.name not in known:
        command.error(f"name: expected one of {', '.join(known)}, got '{options.name}'.")
    try:
        show(known[options.name], options)
    except (KeyboardInterrupt, TrainingInterrupted):
        command.exit(130, "Stopped; repeat the command to continue.\n")


if __name__ == "__main__":
    run_script(main)
