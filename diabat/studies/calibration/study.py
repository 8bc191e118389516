"""Predicted and fitted inverse temperatures of one schedule for a table of annealing times."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import torch

from diabat.checks import ArgumentError, check_count
from diabat.circuits import AnnealingSchedule, Engine, TrotterPlan, available_schedules
from diabat.ising import Ising
from diabat.samplers.anneals import Anneal, Protocol, find_schedule
from diabat.samplers.dqa import DQASampler
from diabat.samplers.seeds import draw_seed
from diabat.studies.calibration.measure import Measurement, measure
from diabat.studies.calibration.table import CalibrationRow, CalibrationTable
from diabat.studies.fidelity.ensembles import sk

DEFAULT_TIMES_NS = (2.0, 5.0, 7.0, 10.0, 20.0)


def calibration_table(
    times_ns: Sequence[float] = DEFAULT_TIMES_NS,
    *,
    schedule: str | AnnealingSchedule = "Advantage2_system1",
    protocol: Protocol | None = None,
    engine: str | Engine = "native",
    steps: int | None = None,
    num_spins: int = 6,
    strength: float = 0.3,
    instances: int = 8,
    queries: int = 4,
    num_reads: int | None = None,
    level: float = 0.95,
    seed: int = 0,
    progress: bool = False,
) -> CalibrationTable:
    """Compare predicted with fitted inverse temperatures of a diabatic anneal.

    SK problems with h ~ N(0, g), J ~ N(0, g/√n) are programmed as h/β_h, J/β_J with the predicted values.  The
    fit of what comes out, times the predicted value, is the fitted value in the predicted one's units; it falls
    below the prediction, which holds for weak problems, as g grows.  Intervals are over instances (Student's t,
    instances - 1 degrees of freedom): they cover the fit to infinitely many instances of this ensemble.

    Args:
        times_ns: Annealing times in ns.
        schedule: Name of a built-in schedule, path of a CSV file, or a schedule.
        protocol: ``fast`` or ``standard``, of a built-in schedule (None for ``fast``) or of a CSV file with several.
        engine: Engine of the backend ``dqa``.
        steps: Trotter steps at every time; None chooses them for each time.
        num_spins: n.
        strength: g > 0, dimensionless.
        instances: Number of different J; with one there are no intervals.
        queries: Number of different h for each J.
        num_reads: Reads per problem behind the fits; None fits exact state probabilities, n <= 16.
        level: Confidence level of the intervals.
        seed: Seed of problems and reads.
        progress: Show a progress bar with the time left on standard error.

    Raises:
        ValueError: If an argument is out of range; raised before anything is computed.
    """
    times = _check_times(times_ns)
    if not (math.isfinite(strength) and strength > 0):
        raise ArgumentError("strength", f"expected a finite number > 0, got {strength!r}.")
    if not 0 < level < 1:
        raise ArgumentError("level", f"expected a number between 0 and 1, got {level!r}.")
    if num_reads is not None:
        check_count("num_reads", num_reads)
    _refuse_plans(schedule, protocol)
    seed = draw_seed(seed)
    (ensemble,) = sk([strength], num_spins=num_spins, instances=instances, queries=queries, seed=seed)
    backends = [
        DQASampler(
            engine=engine,
            schedule=schedule,
            protocol=protocol,
            annealing_time_ns=time,
            steps=steps,
            calibration="predicted",
        )
        for time in times
    ]
    groups = torch.arange(instances)[:, None]
    rows = []
    for backend in _tracked(backends, progress):
        found = measure(backend, ensemble.ising, num_reads=num_reads, seed=seed, groups=groups)
        rows.append(_row(backend.anneal, ensemble.ising, found, level))
    return CalibrationTable(
        schedule=backends[0].anneal.name,
        protocol=_protocol(schedule, protocol),
        num_spins=num_spins,
        strength=float(strength),
        instances=instances,
        queries=queries,
        num_reads=num_reads,
        level=level,
        engine=backends[0].engine.name,
        seed=seed,
        rows=rows,
    )


def _row(anneal: Anneal, ising: Ising, found: Measurement, level: float) -> CalibrationRow:
    betas, n = anneal.betas, ising.num_spins
    assert anneal.annealing_time_ns is not None
    assert ising.couplings is not None
    pairs = ising.couplings[..., *torch.triu_indices(n, n, offset=1)]
    judged = dataclasses.asdict(found.goodness) if found.goodness else {}
    return CalibrationRow(
        anneal.annealing_time_ns,
        anneal.plan.steps,
        *betas,
        *_absolute(betas.beta_h, found.fit.field, found.fit.interval("field", level)),
        *_absolute(betas.beta_J, found.fit.coupling, found.fit.interval("coupling", level)),
        programmed_h_rms=_rms(ising.fields) / betas.beta_h,
        programmed_J_rms=_rms(pairs) / betas.beta_J,
        tv_before=found.tv_before,
        tv_after=found.tv_after,
        tv_own=judged.get("tv"),
        kl_before=judged.get("kl_at_one"),
        kl_own=judged.get("kl"),
        explained=judged.get("explained"),
        pseudo_r2=judged.get("pseudo_r2"),
    )


def _refuse_plans(schedule: str | AnnealingSchedule, protocol: Protocol | None) -> None:
    if isinstance(find_schedule(schedule, protocol), TrotterPlan):
        what = f"'{schedule}'" if isinstance(schedule, str) else "one"
        raise ArgumentError(
            "schedule",
            f"expected an annealing schedule, which runs at any annealing time, got {what}: a plan of "
            "angles, which has none.",
        )


def _protocol(schedule: str | AnnealingSchedule, protocol: str | None) -> str | None:
    if isinstance(schedule, AnnealingSchedule):
        return schedule.protocol
    return (protocol or "fast") if schedule in available_schedules() else protocol


def _absolute(
    predicted: float, scale: float | None, interval: tuple[float, float] | None
) -> tuple[float | None, float | None, float | None]:
    low, high = interval or (None, None)
    value, low, high = (None if x is None else predicted * x for x in (scale, low, high))
    return value, low, high


def _rms(values: torch.Tensor) -> float:
    return math.sqrt(float(values.double().square().mean())) if values.numel() else 0.0


def _tracked(backends: list[DQASampler], progress: bool) -> Iterable[DQASampler]:
    if not progress:
        return backends
    from rich.console import Console
    from rich.progress import track

    return track(backends, "annealing times", console=Console(stderr=True))


def _check_times(times_ns: Sequence[float]) -> list[float]:
    times = sorted({float(time) for time in times_ns})
    if not times or not all(math.isfinite(time) and time > 0 for time in times):
        raise ArgumentError("times_ns", f"expected positive finite times in ns, got {list(times_ns)}.")
    return times
