"""The calibration table: predicted and fitted inverse temperatures of one schedule over annealing times."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from diabat.checks import ArgumentError, check_count
from diabat.circuits import AnnealingSchedule, Engine, TrotterPlan, available_schedules
from diabat.ising import Ising
from diabat.progress import progress_bar
from diabat.samplers.anneals import Anneal, Protocol, find_schedule
from diabat.samplers.dqa import DQASampler
from diabat.samplers.seeds import draw_seed
from diabat.studies.calibration.measure import Measurement, measure
from diabat.studies.ensembles import sk
from diabat.studies.report import Column, Report, Row

DEFAULT_TIMES_NS = (2.0, 5.0, 7.0, 10.0, 20.0)


def _shown_beta(key: str) -> Callable[[Row], str]:
    """β to four digits or so, with ± half of its interval where there is one."""

    def show(row: Row) -> str:
        value, high = row[key], row.get(f"{key}_high")
        form = ".3f" if abs(value) < 10 else ".2f" if abs(value) < 100 else ".1f"
        return format(value, form) + ("" if high is None else f" ± {format(high - value, form)}")

    return show


def _beta(key: str, meaning: str, title: str) -> Column:
    return Column(key, meaning, title, narrow=True, show=_shown_beta(key))


def _interval(key: str) -> tuple[Column, Column]:
    return (
        Column(f"{key}_low", "lower end of its confidence interval over instances"),
        Column(f"{key}_high", "upper end"),
    )


@dataclass(frozen=True, kw_only=True)
class CalibrationTable(Report):
    """Calibration of one schedule.

    Attributes:
        rows: One for each annealing time, ascending; keys as in :data:`diabat.studies.calibration.COLUMNS`.
        schedule: Name of the schedule.
        protocol: ``fast``, ``standard``, or the protocol name of a user's schedule; None for a file.
        num_spins: n of the SK problems.
        strength: Their g, the standard deviation of h and of √n · J.
        instances: Number of different J; confidence intervals are over these.
        queries: Number of different h for each J.
        num_reads: Reads per problem behind the fits; None for exact state probabilities.
        level: Confidence level of the intervals.
        engine: Engine of the anneal.
        seed: Seed of problems and reads.
    """

    schedule: str
    protocol: str | None
    num_spins: int
    strength: float
    instances: int
    queries: int
    num_reads: int | None
    level: float
    engine: str
    seed: int

    columns = (
        Column("annealing_time_ns", "annealing time in ns", "t_a\nns", "g", True),
        Column("steps", "Trotter steps", "steps", "d", True),
        _beta("predicted_beta_h", "beta_h = 2 pi int B sin(2 pi int A) of the schedule (A, B in GHz, t in ns), "
              "weak fields", "β_h\npredicted"),
        _beta("fitted_beta_h", "predicted_beta_h times the scale of the fields by maximum pseudo-likelihood",
              "β_h\nfitted"),
        *_interval("fitted_beta_h"),
        _beta("predicted_beta_J", "beta_J = 2 pi int B sin(4 pi int A), weak couplings", "β_J\npredicted"),
        _beta("fitted_beta_J", "predicted_beta_J times the scale of the couplings, fitted together with beta_h",
              "β_J\nfitted"),
        *_interval("fitted_beta_J"),
        Column("programmed_h_rms", "root mean square of the programmed fields h/beta_h, hardware units "
               "(factor of B/2)", "h rms\nhardware", ".4f"),
        Column("programmed_J_rms", "root mean square of the programmed couplings J/beta_J, hardware units",
               "J rms\nhardware", ".4f"),
        Column("tv_before", "total variation to the target (beta = 1), predicted betas programmed; mean over "
               "problems", "TV\nbefore", ".4f", True),
        Column("tv_after", "the same with the fitted betas programmed", "TV\nafter", ".4f", True),
        Column("tv_own", "total variation between the sampler and Boltzmann at the fitted betas; no beta reduces it",
               "TV\nown β", ".4f"),
        Column("kl_before", "KL(sampler || target) in nats, predicted betas programmed", "KL\nbefore", ".1e"),
        Column("kl_own", "KL(sampler || Boltzmann at the fitted betas) in nats"),
        Column("explained", "share of the pseudo-likelihood gain over random spins that the fitted Boltzmann law "
               "explains; 1 is all", "explained", ".3f"),
        Column("pseudo_r2", "McFadden's 1 - l(fit)/l(0): 0 for random spins, 1 if the others fix each spin"),
    )  # fmt: skip

    @property
    def label(self) -> str:
        """Name and protocol of the schedule."""
        return self.schedule if self.protocol is None else f"{self.schedule} ({self.protocol})"

    @property
    def title(self) -> str:
        """Lines above the table: the schedule, and the problems."""
        source = "exact laws" if self.num_reads is None else f"{self.num_reads} reads each"
        return (
            f"{self.label}\nSK n = {self.num_spins}, g = {self.strength:g}, {self.instances} J x "
            f"{self.queries} h, {source}; ± {100 * self.level:g} % over J"
        )


COLUMNS = CalibrationTable.definitions()


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

    SK problems with h ~ N(0, g), J ~ N(0, g/√n) are programmed as h/β_h, J/β_J with the predicted values.  The scale
    fitted to the result, times the predicted value, is the fitted value.  It decreases with g; the prediction holds
    for weak problems.  Intervals are over instances (Student's t, instances - 1 degrees of freedom): they cover the
    fit to infinitely many instances of this ensemble.

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
        ValueError: If an argument is out of range.  Raised before anything is computed.
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
    with progress_bar(progress) as bar:
        for backend in bar.track(backends, description="annealing times") if bar else backends:
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


def _row(anneal: Anneal, ising: Ising, found: Measurement, level: float) -> Row:
    betas, n, fit = anneal.betas, ising.num_spins, found.fit
    assert ising.couplings is not None
    pairs = ising.couplings[..., *torch.triu_indices(n, n, offset=1)]
    judged = dataclasses.asdict(found.goodness) if found.goodness else {}
    return {
        "annealing_time_ns": anneal.annealing_time_ns,
        "steps": anneal.plan.steps,
        "predicted_beta_h": betas.beta_h,
        "predicted_beta_J": betas.beta_J,
        **_absolute("fitted_beta_h", betas.beta_h, fit.field, fit.interval("field", level)),
        **_absolute("fitted_beta_J", betas.beta_J, fit.coupling, fit.interval("coupling", level)),
        "programmed_h_rms": _rms(ising.fields) / betas.beta_h,
        "programmed_J_rms": _rms(pairs) / betas.beta_J,
        "tv_before": found.tv_before,
        "tv_after": found.tv_after,
        "tv_own": judged.get("tv"),
        "kl_before": judged.get("kl_at_one"),
        "kl_own": judged.get("kl"),
        "explained": judged.get("explained"),
        "pseudo_r2": judged.get("pseudo_r2"),
    }


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


def _absolute(key: str, predicted: float, scale: float | None, interval: tuple[float, float] | None) -> Row:
    """A fitted value and the ends of its interval in the units of the predicted value."""
    low, high = interval or (None, None)
    scales = {key: scale, f"{key}_low": low, f"{key}_high": high}
    return {name: None if x is None else predicted * x for name, x in scales.items()}


def _rms(values: torch.Tensor) -> float:
    return math.sqrt(float(values.double().square().mean())) if values.numel() else 0.0


def _check_times(times_ns: Sequence[float]) -> list[float]:
    times = sorted({float(time) for time in times_ns})
    if not times or not all(math.isfinite(time) and time > 0 for time in times):
        raise ArgumentError("times_ns", f"expected positive finite times in ns, got {list(times_ns)}.")
    return times
