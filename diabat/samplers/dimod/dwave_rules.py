"""Rules of the anneal parameters of D-Wave processors, checked before anything is submitted.

Source: Ocean documentation, solver parameters and "fast anneal".  The client does not check most of them: the
server refuses, after the time in the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diabat.checks import ArgumentError

# What a fast anneal excludes: it runs forward from s = 0 to s = 1 at constant speed.
_NOT_WITH_FAST = ("initial_state", "reinitialize_state", "h_gain_schedule")


def check_anneal(parameters: Mapping[str, Any], properties: Mapping[str, Any]) -> None:
    """Refuse keywords that the processor would refuse, or that would change the temperature silently.

    Args:
        parameters: Keywords of the call; times in microseconds, as the processor takes them.
        properties: Of the processor; ranges that it does not state are not checked.

    Raises:
        ValueError: Names the keyword.
    """
    if parameters.get("auto_scale"):
        raise ArgumentError(
            "auto_scale",
            "expected False, got True, which scales every problem to the full range and so gives it a "
            "temperature of its own; scale='fit' does it with a factor that is reported.",
        )
    fast = bool(parameters.get("fast_anneal"))
    schedule, time = parameters.get("anneal_schedule"), parameters.get("annealing_time")
    if schedule is not None and time is not None:
        raise ArgumentError("anneal_schedule", "expected none beside annealing_time, got both.")
    if fast:
        _check_fast(parameters, schedule)
    of = "fast_anneal_time_range" if fast else "annealing_time_range"
    total = time if schedule is None else schedule[-1][0]
    if total is not None and of in properties:
        low, high = properties[of]
        if not low <= total <= high:
            raise ArgumentError(
                "annealing_time", f"expected {low:g} to {high:g} microseconds ({of}), got {total:g}."
            )


def _check_fast(parameters: Mapping[str, Any], schedule: Any) -> None:
    for name in _NOT_WITH_FAST:
        if parameters.get(name) is not None:
            raise ArgumentError(
                name, "expected none with fast_anneal, which runs forward at constant speed, got one."
            )
    if schedule is not None and (len(schedule) != 2 or tuple(schedule[0]) != (0, 0) or schedule[1][1] != 1):
        raise ArgumentError(
            "anneal_schedule", f"expected two points [[0, 0], [t, 1]] with fast_anneal, got {schedule!r}."
        )


def longest_run(parameters: Mapping[str, Any], properties: Mapping[str, Any]) -> int | None:
    """Most reads of one submission: ``num_reads_range``, and what ``problem_run_duration_range`` leaves.

    The duration is (annealing time + readout thermalization) · reads + programming thermalization, microseconds.
    """
    limits = []
    if (reads := properties.get("num_reads_range")) is not None:
        limits.append(int(reads[1]))
    if (duration := properties.get("problem_run_duration_range")) is not None:
        limits.append(_reads_in(float(duration[1]), parameters, properties))
    return max(1, min(limits)) if limits else None


def _reads_in(most: float, parameters: Mapping[str, Any], properties: Mapping[str, Any]) -> int:
    def given(name: str) -> float:
        value = parameters.get(name)
        return float(properties.get(f"default_{name}", 0.0) if value is None else value)

    schedule = parameters.get("anneal_schedule")
    anneal = float(schedule[-1][0]) if schedule else given("annealing_time")
    each = anneal + given("readout_thermalization")
    left = most - given("programming_thermalization")
    # The quotient may round up to one read too many.
    return int(left / each * (1 - 1e-12)) if each > 0 else 2**31
