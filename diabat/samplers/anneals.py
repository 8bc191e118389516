"""What the ``dqa`` backend runs: a schedule cut into steps, or a plan of free angles."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from typing import Any, Literal

from diabat.circuits import (
    AnnealingSchedule,
    Betas,
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

DEFAULT_TIME_NS = 5.0

Protocol = Literal["fast", "standard"]
Order = Literal["strang", "first", "suzuki4"]
Grid = Literal["uniform", "adaptive"]


@dataclass(frozen=True, eq=False)
class Anneal:
    """A plan and what is known of it.

    Attributes:
        name: Of the schedule or the plan.
        plan: Angles of the steps.
        betas: First-order inverse temperatures of fields and couplings.
        learned: Whether the plan was trained to sample at beta = 1 rather than cut from a schedule.
        annealing_time_ns: t_a in ns; None for learned plans, which have none.
    """

    name: str
    plan: TrotterPlan
    betas: Betas
    learned: bool
    annealing_time_ns: float | None


def resolve_anneal(
    schedule: str | AnnealingSchedule | TrotterPlan,
    *,
    protocol: Protocol | None,
    annealing_time_ns: float | None,
    steps: int | None,
    order: Order | None,
    grid: Grid | None,
    trotter_error: float | None,
) -> Anneal:
    """Find the schedule or plan and cut the schedule into steps.

    Args:
        schedule: Name of a built-in schedule or learned plan, a path ending in .csv (schedule) or .json (plan), an
            AnnealingSchedule or a TrotterPlan.
        protocol: For built-in schedules; None for ``fast``.
        annealing_time_ns: t_a in ns; None for 5 ns.
        steps: As of :func:`diabat.circuits.trotter_plan`; likewise ``order``, ``grid`` and ``trotter_error``.
        order: Splitting; None for ``strang``.
        grid: Spacing of the steps; None for ``uniform``.
        trotter_error: Total variation to choose the steps by.

    Raises:
        ValueError: If nothing of that name exists, or an option does not apply.
        FileNotFoundError: If the file does not exist.
    """
    found = find_schedule(schedule, protocol)
    if isinstance(found, AnnealingSchedule):
        time = DEFAULT_TIME_NS if annealing_time_ns is None else annealing_time_ns
        order = "strang" if order is None else order
        grid = "uniform" if grid is None else grid
        plan = trotter_plan(found, time, steps, order, grid, trotter_error)
        return Anneal(found.name, plan, predicted_beta(found, time), False, float(time))
    of_schedules = {
        "protocol": protocol,
        "annealing_time_ns": annealing_time_ns,
        "steps": steps,
        "order": order,
        "grid": grid,
        "trotter_error": trotter_error,
    }
    for option, value in of_schedules.items():
        if value is not None:
            raise ValueError(
                f"{option}: expected none with a plan of angles, which are what they are, got {value!r}."
            )
    return Anneal(found.label or "plan", found, plan_betas(found), True, None)


def find_schedule(value: Any, protocol: Protocol | None = None) -> AnnealingSchedule | TrotterPlan:
    """The schedule or plan that ``schedule`` of :func:`resolve_anneal` means.

    Args:
        value: A name, a path, a schedule or a plan.
        protocol: For built-in schedules; None for ``fast``.

    Raises:
        ValueError: If nothing of that name exists, or the schedule has no such protocol.
        FileNotFoundError: If the file does not exist.
    """
    if isinstance(value, (AnnealingSchedule, TrotterPlan)):
        return value
    if not isinstance(value, str):
        raise ValueError(
            f"schedule: expected a name, a path, an AnnealingSchedule or a TrotterPlan, got {value!r}."
        )
    if value in available_schedules():
        return built_in_schedule(value, "fast" if protocol is None else protocol)
    if value in available_plans():
        return builtin_plan(value)[0]
    # A name with a separator or a suffix is meant as a file; then a missing file is the error to report.
    if value.endswith(".json"):
        return load_plan(value)[0]
    if value.endswith(".csv") or os.sep in value:
        return from_csv(value)
    known = [*available_schedules(), *available_plans()]
    lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(value.lower(), lower, n=1, cutoff=0.0)
    raise ValueError(
        f"schedule: unknown name {value!r}, did you mean {lower[near[0]]!r}? Expected one of {', '.join(known)}, "
        "or a path ending in .csv (schedule) or .json (plan)."
    )
