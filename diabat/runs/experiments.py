"""Experiments: train a configuration for several values of a key and several seeds; compare with published values."""

from __future__ import annotations

import difflib
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.resources import files
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from diabat.checks import ArgumentError
from diabat.config.errors import ConfigError, explain
from diabat.config.loading import load_config, make_config, parse_override, to_plain
from diabat.config.sections import STRICT
from diabat.config.yaml_files import read_mapping
from diabat.runs.build import run_training
from diabat.runs.finished import evaluate_run, load_run


class Experiment(BaseModel):
    """Rows of runs to train, and the published values.

    Attributes:
        title: Heading of the table.
        config: Name or path of the configuration.
        vary: Dotted key that changes from row to row; a heading of the rows if they have ``variants``.
        published: Published metric of each row (null if there is none), by the row's value of the key.
        variants: Overrides KEY=VALUE of rows that differ in more than one key.
        seeds: Seeds of every row.
        split: Set on which the metric is computed, with the weights of the lowest validation loss.
    """

    model_config = STRICT

    title: str
    config: str
    vary: str
    published: Annotated[dict[str, float | None], Field(min_length=1)]
    variants: dict[str, tuple[str, ...]] = {}
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0, 1, 2)
    split: Literal["validation", "test"] = "validation"

    @model_validator(mode="after")
    def _variants_are_rows(self) -> Experiment:
        for name in self.variants:
            if name not in self.published:
                raise ArgumentError("variants", f"expected rows of published, got '{name}'.")
        return self

    def overrides(self, row: str) -> tuple[str, ...]:
        """Overrides of the configuration that make a row."""
        return self.variants.get(row, (f"{self.vary}={row}",))


@dataclass(frozen=True)
class Outcome:
    """One finished run: the metric of the weights with the lowest validation loss, and its cost.

    ``seconds`` is wall-clock time; processor time is None for runs of versions that did not record it.
    """

    value: str
    seed: int
    metric: float
    epochs: int
    seconds: float
    cpu_seconds: float | None = None


def shipped_experiments() -> dict[str, Path]:
    """Experiments that come with diabat, by name."""
    folder = Path(str(files("diabat") / "configs" / "experiments"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load_experiment(name: str) -> Experiment:
    """Read an experiment from a YAML file or by the name of a shipped one.

    Raises:
        ConfigError: If there is none or it is not valid.
    """
    shipped = shipped_experiments()
    path = Path(name) if Path(name).is_file() else shipped.get(name)
    if path is None:
        near = difflib.get_close_matches(name, shipped, n=1)
        hint = f"Did you mean '{near[0]}'?" if near else f"Shipped are {', '.join(shipped)}."
        raise ConfigError(f"'{name}'", f"no such file, and no shipped experiment has this name. {hint}")
    document = read_mapping(path)
    try:
        # As JSON, lists become tuples, as in configurations.
        return Experiment.model_validate_json(json.dumps(document))
    except ValidationError as error:
        raise explain(error, list(Experiment.model_fields)) from error


def run_experiment(
    experiment: Experiment,
    output: Path,
    *,
    seeds: Sequence[int] | None = None,
    rows: Sequence[str] | None = None,
    overrides: Iterable[str] = (),
    jobs: int = 1,
    progress: bool = True,
    finished: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Train every row and seed; finished runs are read, interrupted runs are continued.

    Args:
        experiment: What to train.
        output: Folder of all runs, one folder each.
        seeds: Seeds instead of the experiment's own.
        rows: Some of the rows instead of all.
        overrides: Further dotted overrides of the configuration.
        jobs: Number of runs at the same time, each in a separate process.
        progress: Show a progress bar for each run (only with one job).
        finished: Called with every outcome when its run is finished.

    Returns:
        Outcomes in the order of rows and seeds.

    Raises:
        ConfigError: If an override is not valid or there is no such row.
        TrainingError: If a run fails.
    """
    chosen = tuple(overrides)
    for row in rows or ():
        if row not in experiment.published:
            raise ConfigError("row", f"expected one of {', '.join(experiment.published)}, got '{row}'.")
    _refuse_what_rows_set(experiment, chosen)
    plans = []
    for value in (v for v in experiment.published if not rows or v in rows):
        for seed in experiment.seeds if seeds is None else seeds:
            folder = output / f"{value}-seed{seed}"
            keys = (*experiment.overrides(value), f"seed={seed}")
            config = load_config(experiment.config, (*chosen, *keys))
            plans.append((value, seed, to_plain(config) | {"output": str(folder)}))
    outcomes = {}
    with _executor(jobs) as executor:
        shown = progress and jobs == 1
        futures = {executor.submit(_train, *plan, experiment.split, shown): plan[:2] for plan in plans}
        for future in as_completed(futures):
            outcomes[futures[future]] = outcome = future.result()
            if finished is not None:
                finished(outcome)
    return [outcomes[plan[:2]] for plan in plans]


def _refuse_what_rows_set(experiment: Experiment, overrides: Iterable[str]) -> None:
    """Refuse overrides of keys that every row sets."""
    ways = {
        experiment.vary: "--row chooses rows",
        "seed": "--seed chooses seeds",
        "output": "--output names the folder",
    }
    for text in overrides:
        key = ".".join(parse_override(text)[0])
        if key in ways:
            raise ConfigError(
                f"override '{text}': expected a key that the experiment does not set ({ways[key]})."
            )


def table_rows(experiment: Experiment, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One row per value: every seed, mean, standard deviation, published mean, difference to it, times."""
    rows = []
    for value, published in experiment.published.items():
        runs = [o for o in outcomes if o.value == value]
        metrics = [o.metric for o in runs]
        if not runs:
            continue
        mean, epochs = statistics.fmean(metrics), sum(o.epochs or 1 for o in runs)
        cpu = [o.cpu_seconds for o in runs if o.cpu_seconds is not None]
        rows.append(
            {
                experiment.vary: value,
                "seeds": metrics,
                "mean": mean,
                "std": statistics.stdev(metrics) if len(metrics) > 1 else None,
                "published": published,
                "relative_difference": None if published is None else mean / published - 1,
                "seconds_per_epoch": sum(o.seconds for o in runs) / epochs,
                "cpu_seconds_per_epoch": sum(cpu) / epochs if len(cpu) == len(runs) else None,
            }
        )
    return rows


def _train(value: str, seed: int, document: dict[str, Any], split: str, progress: bool) -> Outcome:
    config = make_config(document)
    started = (config.output / "config.json").exists()
    result = run_training(config, resume=started, progress=progress)
    metric = result.best_metric
    if split != "validation":
        # A run that was trained earlier may name code that this configuration does not name.
        ours = load_config(config.output, trust=True).sampler == config.sampler
        metric = evaluate_run(load_run(config.output, trust=ours), split).value
    return Outcome(value, seed, metric, result.epochs, result.seconds, result.cpu_seconds)


class _InProcess(Executor):
    """Runs a job at once in this process, so that its progress bar is visible."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def _executor(jobs: int) -> Executor:
    # Fresh interpreters: a fork would copy the threads of torch in an unknown state.
    return _InProcess() if jobs == 1 else ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
