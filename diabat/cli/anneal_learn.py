"""The job of ``diabat anneal learn``: instances, search, and the error table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import diabat
from diabat.circuits import NativeEngine, TrotterPlan
from diabat.circuits.plan_range import KEY as TRAINED_RANGE
from diabat.cli.anneal_files import choose_plan
from diabat.cli.anneal_keeper import Keeper
from diabat.cli.anneal_request import Request, naming_options
from diabat.cli.failures import Interrupted
from diabat.studies.learned import (
    COLUMNS,
    Instances,
    Objective,
    Search,
    error_table,
    held_out_instances,
    learn_plan,
    random_instances,
    recorded_instances,
    split_windows,
    trained_range,
    wide_instances,
)
from diabat.studies.report import Row

HELD_OUT_STRENGTHS, HELD_OUT_SPINS = (0.3, 0.6, 1.0), (6, 8, 10)


def learn_and_save(request: Request, output: Path, *, progress: bool) -> tuple[TrotterPlan, dict[str, Any]]:
    """Train, save at every improvement, judge, and save with the error table; the plan and its metadata.

    Raises:
        Interrupted: Ctrl-C; the best plan so far is in the file.
        ConfigError: A value out of range, or a run that cannot be used.
    """
    began = time.perf_counter()
    keeper = Keeper(output, _metadata(request, output))
    try:
        with naming_options():
            plan, loss, rows = _learn(request, keeper, progress)
    except KeyboardInterrupt as error:
        raise Interrupted(keeper.last_words()) from error
    finished = {"finished": True, "seconds": round(time.perf_counter() - began, 1)}
    keeper.metadata |= finished | {"held_out": {"columns": COLUMNS, "rows": rows}}
    keeper.save(plan, loss)
    return plan, keeper.metadata


def _learn(request: Request, keeper: Keeper, progress: bool) -> tuple[TrotterPlan, float, list[Row]]:
    """The plan, its loss and its error table."""
    start = None if request.start is None else choose_plan(request.start, "--from")[0]
    training, recorded = _instances(request)
    engine = NativeEngine()
    objective = Objective(training, engine, pair_weight=request.pair_weight, shared=request.shared)
    search = Search(request.layers, request.restarts, request.iterations, request.polish, request.seed)
    with keeper.display(progress):
        plan, loss = learn_plan(objective, search, start=start, watcher=keeper)
        keeper.metadata[TRAINED_RANGE] = asdict(trained_range(plan, training, engine))
        keeper.save(plan, loss)
        held_out = held_out_instances(HELD_OUT_STRENGTHS, HELD_OUT_SPINS, request.held_out, seed=request.seed)
        held_out += _wide(request, HELD_OUT_SPINS, request.held_out, held_out=True)
        return plan, loss, error_table(plan, [*recorded, *held_out], engine)


def _instances(request: Request) -> tuple[list[Instances], list[Instances]]:
    """Instances to train on, and recorded ones that are held out."""
    if request.run is None:
        strengths, weights = request.strengths, request.weights
        drawn = random_instances(
            strengths, request.spins, request.instances, seed=request.seed, weights=weights
        )
        return [*drawn, *_wide(request, request.spins, request.instances)], []
    from diabat.runs.ensembles import attention_ensembles

    halves = [split_windows(layer) for layer in attention_ensembles(request.run, seed=request.seed)]
    training = [entry for half, _ in halves for entry in recorded_instances(half)]
    return training, [entry for _, half in halves for entry in recorded_instances(half)]


def _wide(
    request: Request, spins: Sequence[int], instances: int, *, held_out: bool = False
) -> list[Instances]:
    """Problems with fields of every size, if they are asked for."""
    if request.wide_fields is None:
        return []
    weight = 1.0 if held_out else request.wide_weight
    return wide_instances(
        request.wide_fields, spins, instances, seed=request.seed, weight=weight, held_out=held_out
    )


def _metadata(request: Request, output: Path) -> dict[str, Any]:
    return {
        "kind": "learned anneal",
        "finished": False,
        "command": request.command(output),
        "diabat": diabat.__version__,
        "ensemble": request.ensemble(),
        "seed": request.seed,
        "shared": request.shared,
        "pair_weight": request.pair_weight,
    }
