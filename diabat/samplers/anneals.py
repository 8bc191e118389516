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
    """Find the schedule or plan, and divide a schedule into steps.

    Args:
        schedule: Name of a built-in schedule or learned plan, a path ending in .csv (schedule) or .json (plan), an
            AnnealingSchedule or a TrotterPlan.
        protocol: Protocol of a built-in schedule (None for ``fast``), or of a CSV file that contains several.
        annealing_time_ns: t_a in ns; None for 5 ns.
        steps: As in :func:`diabat.circuits.trotter_plan`.
        order: ``strang``, also None, on the adaptive grid, or ``first`` on the uniform one, on which it errs less.

    Raises:
        ValueError: If the name is unknown, or an option does not apply.
        FileNotFoundError: If the file does not exist.
    """
    if protocol is not None and not isinstance(protocol, str):
        raise ArgumentError("protocol", f"expected a name or None, got {protocol!r}.")
    found, metadata = _find(schedule, protocol)
    if isinstance(found, AnnealingSchedule):
        time = DEFAULT_TIME_NS if annealing_time_ns is None else annealing_time_ns
        order = "strang" if order is None else order
        check_choice("order", order, get_args(Order))
        plan = trotter_plan(found, time, steps, order, "uniform" if order == "first" else "adaptive")
        return Anneal(found.name, plan, predicted_beta(found, time), False, float(time))
    of_schedules = {
        "protocol": protocol,
        "annealing_time_ns": annealing_time_ns,
        "steps": steps,
        "order": order,
    }
    for option, value in of_schedules.items():
        if value is not None:
            raise ArgumentError(
                option, f"cannot be combined with a plan, whose angles are fixed, got {value!r}."
            )
    shipped = isinstance(schedule, str) and schedule in available_plans()
    name = str(schedule) if shipped else found.label or "plan"
    try:
        trained = PlanRange.of_metadata(metadata)
    except ValueError as error:
        raise ArgumentError(str(schedule), str(error)) from None
    return Anneal(name, found, plan_betas(found), True, None, trained)


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
        "outside_range",
        "share of spins outside the range",
        most=0.0,
        advice=f"try schedule='{_WIDE}', or 'exact'",
    ),
    Watched("beta_h", "predicted beta of the programmed fields"),
    Watched("beta_J", "predicted beta of the programmed couplings"),
    Watched(
        "effective_beta",
        "predicted beta of the reads",
        least=0.7,
        most=1.4,
        advice="give calibration='predicted', or betas",
    ),
)
"""Entries of ``info`` that measure the quality of an anneal."""


def _find(
    value: Any, protocol: Protocol | None
) -> tuple[AnnealingSchedule, Mapping[str, Any]] | tuple[TrotterPlan, Mapping[str, Any]]:
    """The schedule or plan, and the metadata of a plan."""
    if isinstance(value, AnnealingSchedule) and protocol is not None:
        raise ArgumentError(
            "protocol",
            f"cannot be combined with a schedule object, which has a protocol, got {protocol!r}.",
        )
    if isinstance(value, AnnealingSchedule):
        return value, {}
    if isinstance(value, TrotterPlan):
        return value, {}
    if not isinstance(value, str):
        raise ArgumentError(
            "schedule", f"expected a name, a path, an AnnealingSchedule or a TrotterPlan, got {value!r}."
        )
    if value in available_schedules():
        return built_in_schedule(value, "fast" if protocol is None else protocol), {}
    if value in available_plans():
        return builtin_plan(value)
    # A name with a separator or a suffix is a path; if it is missing, the error is about the file.
    try:
        if value.endswith(".json"):
            return load_plan(value)
        if value.endswith(".csv") or os.sep in value:
            return from_csv(value, protocol=protocol), {}
    except ArgumentError as error:
        raise ArgumentError("schedule", error.reason) from error
    known = [*available_schedules(), *available_plans()]
    raise ArgumentError(
        "schedule",
        f"expected one of {', '.join(known)}, or a path ending in .csv (schedule) or .json (plan), got {value!r}."
        f"{did_you_mean(value, known)}",
    )


def build_single(engine: str | Engine | Primitive, device: str | None) -> Engine | None:
    """The engine in single precision, for float32 fields if no precision is given; None if it has only one."""
    if not isinstance(engine, str) or engine == "primitive":
        return None
    return build_engine(engine, "single", device)


def build_engine(engine: str | Engine | Primitive, precision: Precision | None, device: str | None) -> Engine:
    """Build an engine by name or on a Qiskit primitive, or return the given one.

    Args:
        engine: ``native``, ``aer``, ``torch``, ``primitive``, an Engine, or a sampler primitive of Qiskit.
        precision: Precision of the state vectors; None for ``double``.
        device: Device of the torch engine; None for ``cpu``.

    Raises:
        ValueError: If the name is unknown, or an option is invalid or unsupported by the engine.
    """
    if isinstance(engine, Primitive):
        engine = PrimitiveEngine(engine)
    named = isinstance(engine, str)
    if engine not in ENGINES if named else not isinstance(engine, Engine):
        hint = did_you_mean(engine, ENGINES)
        raise ArgumentError(
            "engine",
            f"expected one of {', '.join(ENGINES)}, an Engine or a Qiskit BaseSamplerV2, got {engine!r}.{hint}",
        )
    if device is not None and not (named and engine == "torch"):
        raise ArgumentError("device", f"requires engine 'torch', got {device!r} with another engine.")
    if precision is not None and not isinstance(precision, str):
        raise ArgumentError("precision", f"expected 'double' or 'single', got {precision!r}.")
    if precision is not None and (not named or engine == "primitive"):
        raise ArgumentError("precision", f"cannot be combined with this engine, got {precision!r}.")
    if isinstance(engine, Engine):
        return engine
    chosen: Precision = "double" if precision is None else precision
    if engine == "native":
        # Threads: as many as torch uses at the time of the call.
        return NativeEngine(chosen, torch.get_num_threads)
    if engine == "aer":
        return AerEngine(precision=chosen)
    if engine == "torch":
        from diabat.circuits.engines.torch.engine import TorchEngine

        return TorchEngine("cpu" if device is None else device, chosen)
    return PrimitiveEngine()
