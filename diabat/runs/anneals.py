"""Learned anneals from a configuration: problems, search, error table, and a file with the best plan."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import diabat
from diabat.checks import ArgumentError
from diabat.circuits import (
    NativeEngine,
    TrotterPlan,
    available_plans,
    builtin_plan,
    load_plan,
    save_plan,
)
from diabat.circuits.plan_range import KEY as TRAINED_RANGE
from diabat.config.anneal import AnnealOptions
from diabat.config.errors import ConfigError
from diabat.config.schema import Config
from diabat.progress import new_bar
from diabat.runs.build import use_threads
from diabat.runs.ensembles import attention_ensembles
from diabat.studies.learned import (
    COLUMNS,
    Instances,
    Objective,
    Search,
    Watcher,
    error_table,
    held_out_instances,
    learn_plan,
    random_instances,
    recorded_instances,
    split_windows,
    trained_range,
    wide_instances,
)

if TYPE_CHECKING:
    from rich.progress import Progress

HELD_OUT_STRENGTHS, HELD_OUT_SPINS = (0.3, 0.6, 1.0), (6, 8, 10)
_SAVE_EVERY_S = 1.0
# Arguments of the library that have another name in the section.
_KEYS = {"num_spins": "spins", "plan": "start", "max_field": "wide_fields", "weight": "wide_weight"}


class LearningInterrupted(KeyboardInterrupt):
    """Ctrl-C during a search that has found a plan; the message names the file where it is saved."""


def learn_anneal(
    config: Config,
    output: Path,
    *,
    command: str | None = None,
    progress: bool = True,
    trust: bool = False,
) -> tuple[TrotterPlan, dict[str, Any]]:
    """Train the plan of the section ``anneal`` and judge it on held-out problems.

    The best plan so far is in the file at all times, replaced at most once a second.

    Args:
        config: The configuration; its seed is that of problems and search.
        output: The plan file to write, in a folder that exists.
        command: The command line that makes this plan, for the file.
        progress: Show a progress bar with the time left on standard error.
        trust: As for :func:`diabat.config.load_config`, of the run that the section names.

    Returns:
        The plan and its metadata, as they are in the file.

    Raises:
        LearningInterrupted: Ctrl-C; the best plan so far is in the file.
        ConfigError: A value out of range, or a plan or a run that cannot be used.
        ValueError: The file of the plan to start with is not a plan file.
    """
    began, options = time.perf_counter(), config.anneal
    use_threads(config)
    keeper = _Keeper(output, _metadata(options, config.seed, command))
    engine = NativeEngine()
    try:
        with _naming_keys(options), keeper.display(progress):
            start = None if options.start is None else find_plan(options.start)[0]
            training, held_out = _problems(options, config.seed, trust)
            objective = Objective(training, engine, pair_weight=options.pair_weight, shared=options.shared)
            search = Search(options.layers, options.restarts, options.iterations, options.polish, config.seed)
            plan, loss = learn_plan(objective, search, start=start, watcher=keeper)
            keeper.metadata[TRAINED_RANGE] = asdict(trained_range(plan, training, engine))
            keeper.save(plan, loss)
            held_out += _held_out(options, config.seed)
            rows = error_table(plan, held_out, engine)
    except KeyboardInterrupt as error:
        if keeper.best is None:
            raise KeyboardInterrupt("Nothing was saved yet.") from error
        raise LearningInterrupted(keeper.last_words()) from error
    finished = {"finished": True, "seconds": round(time.perf_counter() - began, 1)}
    keeper.metadata |= finished | {"held_out": {"columns": COLUMNS, "rows": rows}}
    keeper.save(plan, loss)
    return plan, keeper.metadata


def find_plan(name: str) -> tuple[TrotterPlan, dict[str, Any]]:
    """A shipped plan by name, or a plan from a file; and its metadata.

    Raises:
        ArgumentError: There is no plan of this name.
        FileNotFoundError: There is no such file.
        ValueError: The file is not a plan file.
    """
    path = Path(name)
    # A name with a suffix or a folder, or of an existing file, is taken as a file.
    is_file = name not in available_plans() and (bool(path.suffix) or path.name != name or path.exists())
    return load_plan(name) if is_file else builtin_plan(name)


def _problems(options: AnnealOptions, seed: int, trust: bool) -> tuple[list[Instances], list[Instances]]:
    """Training problems, and the held-out problems of a run."""
    if options.run is None:
        sizes, count = options.spins, options.instances
        drawn = random_instances(options.strengths, sizes, count, seed=seed, weights=options.weights)
        return [*drawn, *_wide(options, sizes, count, seed)], []
    layers = attention_ensembles(options.run, seed=seed, trust=trust, key="anneal.run")
    halves = [split_windows(layer) for layer in layers]
    training = [entry for half, _ in halves for entry in recorded_instances(half)]
    return training, [entry for _, half in halves for entry in recorded_instances(half)]


def _held_out(options: AnnealOptions, seed: int) -> list[Instances]:
    """Random problems that are never used for training."""
    drawn = held_out_instances(HELD_OUT_STRENGTHS, HELD_OUT_SPINS, options.held_out, seed=seed)
    return drawn + _wide(options, HELD_OUT_SPINS, options.held_out, seed, held_out=True)


def _wide(
    options: AnnealOptions, spins: Sequence[int], instances: int, seed: int, *, held_out: bool = False
) -> list[Instances]:
    """Problems with fields of every size, if the section has ``wide_fields``."""
    if options.wide_fields is None:
        return []
    weight = 1.0 if held_out or options.wide_weight is None else options.wide_weight
    return wide_instances(options.wide_fields, spins, instances, seed=seed, weight=weight, held_out=held_out)


def _metadata(options: AnnealOptions, seed: int, command: str | None) -> dict[str, Any]:
    """Metadata of the search, in the file from the first plan on."""
    ensemble: dict[str, Any] = {"name": "recorded", "run": str(options.run)}
    if options.run is None:
        ensemble = {
            "name": "SK: h ~ N(0, g), J ~ N(0, g/sqrt(n))",
            "strengths": list(options.strengths),
            "weights": list(options.weights or [1.0] * len(options.strengths)),
            "num_spins": list(options.spins),
            "instances": options.instances,
        }
    if options.wide_fields is not None:
        wide = {"fields": options.wide_fields, "weight": options.wide_weight or 1.0}
        ensemble["wide: h uniform in +-fields, J ~ N(0, 0.5/sqrt(n))"] = wide
    return {
        "kind": "learned anneal",
        "finished": False,
        **({} if command is None else {"command": command}),
        "diabat": diabat.__version__,
        "ensemble": ensemble,
        "seed": seed,
        "shared": options.shared,
        "pair_weight": options.pair_weight,
    }


@contextmanager
def _naming_keys(options: AnnealOptions) -> Iterator[None]:
    """Report errors about the library's arguments with the keys of the section."""
    # The library's arguments for training problems, random or from a run.
    source = "strengths" if options.run is None else "run"
    keys = {**_KEYS, "ensemble": source, "instances": source}
    try:
        yield
    except ConfigError:
        raise
    except ArgumentError as refused:
        key = keys.get(refused.argument or "", refused.argument)
        if key not in AnnealOptions.model_fields:
            raise
        raise ConfigError(f"anneal.{key}", refused.reason) from refused


class _Keeper(Watcher):
    """Writes the best plan to the file, and updates the progress bar."""

    def __init__(self, output: Path, metadata: dict[str, Any]) -> None:
        self.output, self.metadata = output, metadata
        self.best: tuple[TrotterPlan, float] | None = None
        self._saved: TrotterPlan | None = None
        self._last = -_SAVE_EVERY_S
        self._bar: Progress | None = None

    def improved(self, plan: TrotterPlan, loss: float) -> None:
        """Save, at most once a second: improvements come by the hundred."""
        self.best = plan, loss
        if time.monotonic() - self._last >= _SAVE_EVERY_S:
            self.save(plan, loss)

    def advanced(self, done: float, loss: float) -> None:
        """Move the bar."""
        if self._bar is not None:
            layers = self.best[0].steps if self.best else 0
            if not self._bar.live.is_started:  # not before: an error message must start on a new line
                self._bar.start()
            self._bar.update(self._task, completed=done, description=f"loss {loss:.5f}, {layers} layers")

    def save(self, plan: TrotterPlan, loss: float) -> None:
        """Write the file."""
        self.best, self._saved, self._last = (plan, loss), plan, time.monotonic()
        self.metadata["loss"] = loss
        save_plan(self.output, plan, self.metadata)

    def last_words(self) -> str:
        """Save the best plan, and return a sentence that names the file."""
        assert self.best is not None
        plan, loss = self.best
        if self._saved is not plan:
            self.save(plan, loss)
        return f"The best plan so far ({plan.steps} layers, loss {loss:.3g}) is saved in '{self.output}'"

    @contextmanager
    def display(self, wanted: bool) -> Iterator[None]:
        """Show a bar with the time left on stderr from the first step of the search to the end of the block."""
        if not wanted:
            yield
            return
        self._bar = new_bar(percent=True)
        self._task = self._bar.add_task("", total=1.0)
        try:
            yield
        finally:
            if self._bar.live.is_started:
                self._bar.stop()
