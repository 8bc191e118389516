"""Experiments: train a configuration for several values of a key and several seeds; compare with published values."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from diabat.checks import ArgumentError
from diabat.config.errors import ConfigError, explain, refused
from diabat.config.loading import load_config, make_config, parse_override, to_plain
from diabat.config.schema import Config
from diabat.config.sections import STRICT
from diabat.config.yaml_files import read_mapping
from diabat.runs.build import require_same_run, run_training
from diabat.runs.finished import evaluate_run, load_run
from diabat.runs.parallel import in_processes
from diabat.runs.reproduction.table import rows_of_table
from diabat.training import is_finished


class Experiment(BaseModel):
    """Rows of runs to train, and the published values.

    A file may describe the rows by a ``table`` instead (:mod:`diabat.runs.reproduction.table`).

    Attributes:
        title: Heading of the table.
        config: Name or path of the configuration.
        vary: Dotted key that changes from row to row; a heading of the rows if they have ``variants``.
        protocol: Overrides KEY=VALUE of every row, which those of the command line replace.
        runs: Name of the folder of the runs, for experiments with the same rows; None takes the name of the file.
        published: Published metric of each row (null if there is none), by the row's value of the key.
        published_std: Published standard deviation over seeds.
        variants: Overrides KEY=VALUE of rows that differ in more than one key.
        gaps: Pairs of rows whose difference is tested; None compares every row with the first.
        series: Rows of each arm by window T.
        seeds: Seeds of every row.
        split: Set on which the metric is computed, with the weights of the lowest validation loss.
    """

    model_config = STRICT

    title: str
    config: str
    vary: str
    protocol: tuple[str, ...] = ()
    runs: str | None = None
    published: Annotated[dict[str, float | None], Field(min_length=1)]
    published_std: dict[str, float | None] = {}
    variants: dict[str, tuple[str, ...]] = {}
    gaps: tuple[tuple[str, str], ...] | None = None
    series: dict[str, dict[str, str]] = {}
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0, 1, 2)
    split: Literal["validation", "test"] = "validation"

    @model_validator(mode="after")
    def _names_are_rows(self) -> Experiment:
        named: dict[str, Iterable[str]] = {
            "variants": self.variants,
            "published_std": self.published_std,
            "gaps": [row for gap in self.gaps or () for row in gap],
            "series": [row for rows in self.series.values() for row in rows.values()],
        }
        for key, names in named.items():
            for name in names:
                if name not in self.published:
                    raise ArgumentError(key, f"expected rows of published, got '{name}'.")
        return self

    def overrides(self, row: str) -> tuple[str, ...]:
        """Overrides of the configuration that make a row."""
        return self.variants.get(row, (f"{self.vary}={row}",))

    @property
    def compared(self) -> tuple[tuple[str, str], ...]:
        """Pairs of rows whose difference is tested."""
        first, *others = self.published
        return tuple((row, first) for row in others) if self.gaps is None else self.gaps


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
        return Experiment.model_validate_json(json.dumps(rows_of_table(document)))
    except ArgumentError as error:
        raise refused(error, "") from error
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
    train: bool = True,
    progress: bool = True,
    finished: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Train every row and seed; finished runs are read, interrupted runs are continued.

    Args:
        experiment: What to train.
        output: Folder of all runs, one folder each.
        seeds: Seeds instead of the experiment's own.
        rows: Some of the rows instead of all.
        overrides: Further dotted overrides of the configuration, which replace those of the protocol.
        jobs: Number of runs at the same time, each in a separate process of one thread if there are several.
        train: False reads the runs that are finished and trains none.
        progress: Show a progress bar for each run (only with one job).
        finished: Called with every outcome when its run is finished.

    Returns:
        Outcomes in the order of rows and seeds.

    Raises:
        ConfigError: If an override is not valid, there is no such row, or a run there has another configuration.
        TrainingError: If a run fails.
    """
    plans = [
        (row, seed, config)
        for row, seed, config in planned_runs(experiment, output, seeds=seeds, rows=rows, overrides=overrides)
        if train or is_finished(config.output, config.training)
    ]
    outcomes = {}
    for outcome in _outcomes(plans, experiment.split, jobs, progress):
        outcomes[outcome.value, outcome.seed] = outcome
        if finished is not None:
            finished(outcome)
    return [outcomes[row, seed] for row, seed, _ in plans]


def _outcomes(
    plans: Sequence[tuple[str, int, Config]], split: str, jobs: int, progress: bool
) -> Iterator[Outcome]:
    """Outcome of every run as soon as it is finished."""
    if jobs == 1:
        for row, seed, config in plans:
            yield _train(row, seed, to_plain(config), split, progress)
        return
    calls = [(row, seed, to_plain(config), split, False) for row, seed, config in plans]
    yield from in_processes(_train, calls, jobs)


def planned_runs(
    experiment: Experiment,
    output: Path,
    *,
    seeds: Sequence[int] | None = None,
    rows: Sequence[str] | None = None,
    overrides: Iterable[str] = (),
) -> list[tuple[str, int, Config]]:
    """Row, seed and configuration of every run of an experiment; arguments as of :func:`run_experiment`.

    Raises:
        ConfigError: If an override is not valid or there is no such row.
    """
    chosen = tuple(overrides)
    for row in rows or ():
        if row not in experiment.published:
            raise ConfigError("row", f"expected one of {', '.join(experiment.published)}, got '{row}'.")
    _refuse_what_rows_set(experiment, chosen)
    plans = []
    for row in (name for name in experiment.published if not rows or name in rows):
        for seed in experiment.seeds if seeds is None else seeds:
            folder = json.dumps(str(output / f"{row}-seed{seed}"))
            keys = (*experiment.protocol, *chosen, *experiment.overrides(row), f"seed={seed}")
            plans.append((row, seed, load_config(experiment.config, (*keys, f"output={folder}"))))
    return plans


def _refuse_what_rows_set(experiment: Experiment, overrides: Iterable[str]) -> None:
    """Refuse overrides of keys that every row sets."""
    set_by = [{_key(text) for text in experiment.overrides(row)} for row in experiment.published]
    ways = dict.fromkeys(set.intersection(*set_by), "--row chooses rows")
    ways |= {"seed": "--seed chooses seeds", "output": "--output names the folder"}
    for text in overrides:
        if _key(text) in ways:
            raise ConfigError(
                f"override '{text}': expected a key that the experiment does not set ({ways[_key(text)]})."
            )


def _key(override: str) -> str:
    return ".".join(parse_override(override)[0])


def _train(value: str, seed: int, document: dict[str, Any], split: str, progress: bool) -> Outcome:
    config = make_config(document)
    started = (config.output / "config.json").exists()
    if started:
        require_same_run(config)
    result = run_training(config, resume=started, progress=progress)
    metric = result.best_metric
    if split != "validation":
        # Trusted: a run that was trained earlier has the sampler of this configuration.
        metric = evaluate_run(load_run(config.output, trust=True), split).value
    return Outcome(value, seed, metric, result.epochs, result.seconds, result.cpu_seconds)
