"""Learned anneals from a configuration: problems, search, error table, and a file with the best plan."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diabat import circuits
from diabat.checks import ArgumentError
from diabat.circuits import TrotterPlan
from diabat.circuits.plan_range import KEY as TRAINED_RANGE
from diabat.documents.errors import of_section
from diabat.lab.config.loading import to_plain
from diabat.lab.config.schema import Config
from diabat.lab.runs.build import use_threads
from diabat.lab.runs.studies import attention_ensembles
from diabat.lab.studies.ensembles import Ensemble
from diabat.lab.studies.learned import problems as studied
from diabat.lab.studies.learned.search import Objective, learn_plan, trained_range
from diabat.progress import new_bar
from diabat.version import __version__

if TYPE_CHECKING:
    from rich.progress import Progress

_SAVE_EVERY_S = 1.0


def learn_anneal(
    config: Config, *, progress: bool = True, trust: bool = False
) -> tuple[TrotterPlan, dict[str, Any]]:
    """Train the plan of the section ``anneal`` into the file ``config.output``, and judge it on held-out problems.

    The best plan so far is in the file, whose folder exists, at all times; it is replaced at most once a second.
    Returns plan and metadata, as they are in the file.  ``trust`` is that of the run that the section names.

    Raises:
        KeyboardInterrupt: Ctrl-C; the message says that the best plan so far is in the file, or that there is none.
        ConfigError: A value out of range, or a plan or a run that cannot be used.
    """
    began, options = time.perf_counter(), config.anneal
    use_threads(config)
    keeper = _Keeper(config, new_bar(percent=True, shown=progress))
    problems = "anneal.strengths" if options.run is None else "anneal.run"
    keys = {"plan": "anneal.start", "ensemble": problems, "instances": problems}
    engine = circuits.NativeEngine()
    try:
        with of_section("anneal", keys):
            start = None if options.start is None else find_plan(options.start)[0]
            training, held_out = _problems(options, config.seed, trust)
            objective = Objective(training, engine, pair_weight=options.pair_weight)
            plan, loss = learn_plan(objective, options, seed=config.seed, start=start, watch=keeper.watch)
            keeper.save(plan, loss, **{TRAINED_RANGE: asdict(trained_range(plan, training, engine))})
            rows = studied.error_table(plan, held_out)
    except KeyboardInterrupt as error:
        if keeper.best is None:
            raise KeyboardInterrupt("Nothing was saved yet.") from error
        plan, loss = keeper.best
        keeper.save(plan, loss)
        best = f"The best plan so far ({plan.steps} steps, loss {loss:.3g}) is saved in '{config.output}'"
        again = shlex.join([f"anneal.start={config.output}", "--force"])
        raise KeyboardInterrupt(f"{best}; to begin with it, repeat the command with {again}.") from error
    finally:
        if keeper.bar.live.is_started:  # to stop a bar that never started prints an empty line
            keeper.bar.stop()
    table = {"columns": studied.ErrorTable.definitions(), "rows": rows}
    seconds = round(time.perf_counter() - began, 1)
    return plan, keeper.save(plan, loss, finished=True, seconds=seconds, held_out=table)


def find_plan(name: str) -> tuple[TrotterPlan, dict[str, Any]]:
    """A shipped plan by name (else ArgumentError), or a plan from a file (OSError or ValueError), and its metadata."""
    if name in circuits.available_schedules():
        got = f"a schedule; diabat.sampler('dqa', schedule={name!r}).circuit(problem) is its circuit"
        raise ArgumentError("plan", "a plan", got)
    path = Path(name)
    # A name with a suffix or a folder, or of an existing file, is taken as a file.
    like_a_file = bool(path.suffix) or path.name != name or path.exists()
    shipped = name in circuits.available_plans() or not like_a_file
    return circuits.builtin_plan(name) if shipped else circuits.load_plan(name)


def _problems(
    options: studied.AnnealOptions, seed: int, trust: bool
) -> tuple[list[studied.Instances], list[Ensemble]]:
    """Problems for training, and held-out ones."""
    if options.run is None:
        return options.training(seed), options.judging(seed)
    layers = attention_ensembles(options.run, seed=seed, trust=trust, key="anneal.run")
    halves = [studied.split_windows(layer) for layer in layers]
    training = [entry for half, _ in halves for entry in studied.with_moments(half)]
    return training, [half for _, half in halves] + options.judging(seed)


class _Keeper:
    """Writes the best plan to the file, and updates the progress bar."""

    def __init__(self, config: Config, bar: Progress) -> None:
        section = to_plain(config)["anneal"]
        words = [f"anneal.{key}={json.dumps(value)}" for key, value in section.items() if value is not None]
        command = ["diabat", "anneal", "learn", f"output={config.output}", *words, f"seed={config.seed}"]
        self.output, self.bar, self.task = config.output, bar, bar.add_task("", total=1.0)
        self.best: tuple[TrotterPlan, float] | None = None
        self.last = -_SAVE_EVERY_S
        self.metadata: dict[str, Any] = {
            "kind": "learned anneal",
            "finished": False,
            "command": shlex.join(command),
            "diabat": __version__,
            "anneal": section,
            "seed": config.seed,
        }

    def watch(self, done: float, plan: TrotterPlan, loss: float) -> None:
        """Save a better plan, at most once a second (they come by the hundred), and move the bar."""
        better = self.best is None or plan is not self.best[0]
        self.best = plan, loss
        if better and time.monotonic() - self.last >= _SAVE_EVERY_S:
            self.save(plan, loss)
        self.bar.start()  # not before: an error message must start on a new line
        self.bar.update(self.task, completed=done, description=f"loss {loss:.5f}, {plan.steps} steps")

    def save(self, plan: TrotterPlan, loss: float, **further: Any) -> dict[str, Any]:
        """Write the file, and return its metadata."""
        self.metadata |= {"loss": loss, **further}
        circuits.save_plan(self.output, plan, self.metadata)
        self.best, self.last = (plan, loss), time.monotonic()
        return self.metadata
