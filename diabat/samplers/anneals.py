"""Anneals of the ``dqa`` backend (a schedule divided into steps, or a plan of free angles) and their engines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, runtime_checkable
from typing import Protocol as Interface

import torch

from diabat.checks import ArgumentError, check_choice, did_you_mean
from diabat.circuits import (
    AerEngine,
    AnnealingSchedule,
    Betas,
    Engine,
    NativeEngine,
    PlanRange,
    PrimitiveEngine,
    TrotterPlan,
    available_plans,
    available_schedules,
    builtin_plan,
    from_csv,
    load_plan,
    plan_betas,
    predicted_beta,
    trotter_plan,
)
from diabat.circuits import schedule as built_in_schedule
from diabat.circuits.engines.engine import Precision
from diabat.circuits.trotter import Order
from diabat.samplers.diagnostics import Watched

DEFAULT_TIME_NS = 5.0
_WIDE = "boltzmann-16-wide"
ENGINES = ("native", "aer", "torch", "primitive")

Protocol = Literal["fast", "standard"]


@runtime_checkable
class Primitive(Interface):
    """The used part of ``qiskit.primitives.BaseSamplerV2``."""

    def run(self, pubs: Any, *, shots: int | None = None) -> Any:
        """Run circuits with values and shots; returns a job."""


@dataclass(frozen=True, eq=False)
class Anneal:
    """A plan with its properties.

    Attributes:
        name: Name of the schedule or the plan.
        plan: Angles of the steps.
        betas: First-order inverse temperatures of fields and couplings.
        learned: Whether the plan was trained to sample at beta = 1, not derived from a schedule.
        annealing_time_ns: t_a in ns; None for learned plans.
        trained: Range of fields and couplings stated in the file of the plan; None if the file states none.
    """

    name: str
    plan: TrotterPlan
    betas: Betas
    learned: bool
    annealing_time_ns: float | None
    trained: PlanRange | None = None


def resolve_anneal(
    schedule: str | AnnealingSchedule | TrotterPlan,
    *,
    protocol: Protocol | None,
    annealing_time_ns: float | None,
    steps: int | None,
    order: Order | None,
) -> Anneal:
    """Find the schedule or plan, and divide a schedule into steps; options as of ``DQASampler``.

    ``strang`` steps are on the adaptive grid, ``first`` ones on the uniform grid, on which they err less.  ValueError
    if the name is unknown or an option does not apply, FileNotFoundError if there is no such file.
    """
    source: Any  # of the caller
    source, metadata = _named(schedule, protocol) if isinstance(schedule, str) else (schedule, {})
    if isinstance(source, AnnealingSchedule):
        if protocol is not None and source is schedule:
            reason = f"cannot be combined with a schedule object, which has a protocol, got {protocol!r}."
            raise ArgumentError("protocol", reason)
        time = DEFAULT_TIME_NS if annealing_time_ns is None else annealing_time_ns
        order = "strang" if order is None else order
        check_choice("order", order, get_args(Order))
        plan = trotter_plan(source, time, steps, order, "uniform" if order == "first" else "adaptive")
        return Anneal(source.name, plan, predicted_beta(source, time), False, float(time))
    if not isinstance(source, TrotterPlan):
        raise ArgumentError(
            "schedule", "a name, a path, an AnnealingSchedule or a TrotterPlan", repr(schedule)
        )
    fixed = {"protocol": protocol, "annealing_time_ns": annealing_time_ns, "steps": steps, "order": order}
    for option, value in fixed.items():
        if value is not None:
            reason = f"cannot be combined with a plan, whose angles are fixed, got {value!r}."
            raise ArgumentError(option, reason)
    shipped = isinstance(schedule, str) and schedule in available_plans()
    name = str(schedule) if shipped else source.label or "plan"
    try:
        trained = PlanRange.of_metadata(metadata)
    except ValueError as error:
        raise ArgumentError(str(schedule), str(error)) from None
    return Anneal(name, source, plan_betas(source), True, None, trained)


def beyond(anneal: Anneal, allowed: PlanRange, share: float) -> str:
    """The warning for problems outside the range of a plan; ``share`` is the fraction of such spins."""
    count = f"{share:.1%} of the spins" if share >= 0.001 else "a few spins"
    if not anneal.learned:
        field, asked = allowed.max_field, allowed.max_field * anneal.betas.beta_h
        return (
            f"fields: {count} are programmed with |h| above {field:.3g} (h = {asked:.3g} at beta = 1), which "
            f"{anneal.plan.label} does not answer: even one spin alone is not +1 there; leave spins out with visible "
            "rather than by large fields, or bound the fields. info['outside_range'] has this share at every call."
        )
    wider = "" if anneal.name == _WIDE else f"schedule='{_WIDE}' (|h| up to 6), "
    return (
        f"schedule: {count} have |h| above {allowed.max_field:g} or a row of J of norm above "
        f"{allowed.max_row_norm:g}, for which plan '{anneal.name}' was not trained and may be far off; use {wider}a "
        "plan learned on such problems (diabat anneal learn), or 'exact', or bound the fields. "
        "info['outside_range'] has this share at every call."
    )


WATCHED = (
    Watched(
        "outside_range", "share of spins outside the range", None, 0.0, f"try schedule='{_WIDE}', or 'exact'"
    ),
    Watched("beta_h", "predicted beta of the programmed fields"),
    Watched("beta_J", "predicted beta of the programmed couplings"),
    Watched(
        "effective_beta", "predicted beta of the reads", 0.7, 1.4, "give calibration='predicted', or betas"
    ),
)
"""Entries of ``info`` that measure the quality of an anneal."""


def _named(name: str, protocol: Protocol | None) -> tuple[AnnealingSchedule | TrotterPlan, Mapping[str, Any]]:
    """The schedule or plan of a name or path, and the metadata of a plan."""
    if protocol is not None and not isinstance(protocol, str):
        raise ArgumentError("protocol", "a name or None", f"{protocol!r}")
    if name in available_schedules():
        return built_in_schedule(name, "fast" if protocol is None else protocol), {}
    if name in available_plans():
        return builtin_plan(name)
    try:
        if name.endswith(".json"):
            return load_plan(name)
        if name.endswith(".csv") or os.sep in name:  # a path; if it is missing, the error is about the file
            return from_csv(name, protocol=protocol), {}
    except ArgumentError as error:
        raise ArgumentError("schedule", error.reason) from error
    known = [*available_schedules(), *available_plans()]
    expected = f"one of {', '.join(known)}, or a path ending in .csv (schedule) or .json (plan)"
    raise ArgumentError("schedule", f"expected {expected}, got {name!r}.{did_you_mean(name, known)}")


def build_engines(
    engine: str | Engine | Primitive, precision: Precision | None, device: str | None
) -> tuple[Engine, Engine | None]:
    """The engine, and the same in single precision for float32 fields, if no precision is given and it has both.

    ValueError if the name is unknown, or an option is invalid or unsupported by the engine.
    """
    named = isinstance(engine, str)
    if engine not in ENGINES if named else not isinstance(engine, (Engine, Primitive)):
        hint = did_you_mean(engine, ENGINES)
        expected = f"expected one of {', '.join(ENGINES)}, an Engine or a Qiskit BaseSamplerV2"
        raise ArgumentError("engine", f"{expected}, got {engine!r}.{hint}")
    if device is not None and not (named and engine == "torch"):
        raise ArgumentError("device", f"requires engine 'torch', got {device!r} with another engine.")
    if not named or engine == "primitive":
        if precision is not None:
            raise ArgumentError("precision", f"cannot be combined with this engine, got {precision!r}.")
        if isinstance(engine, Engine):
            return engine, None
        return PrimitiveEngine(None if named else engine), None
    if not isinstance(precision, str | None):
        raise ArgumentError("precision", "'double' or 'single'", f"{precision!r}")
    wanted: tuple[Precision, ...] = ("double", "single") if precision is None else (precision,)
    if engine == "native":  # as many threads as torch uses at the time of the call
        built: list[Engine] = [NativeEngine(one, torch.get_num_threads) for one in wanted]
    elif engine == "aer":
        built = [AerEngine(one) for one in wanted]
    else:
        from diabat.circuits.engines.torch.engine import TorchEngine

        built = [TorchEngine("cpu" if device is None else device, one) for one in wanted]
    return built[0], built[1] if precision is None else None
