"""Documented rules of a D-Wave processor: refuse the problems and keywords that its server refuses.

Source: Ocean documentation, "QPU solver parameters" and "QPU solver properties".  Times in microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from diabat.checks import ArgumentError, is_integer
from diabat.samplers.dimod.problems import (
    FloatArray,
    IntArray,
    beyond,
    check_times,
    coupling_totals,
    longest_run,
    room,
    stated_ranges,
)

Properties = Mapping[str, Any]
Keywords = Mapping[str, Any]
Rule = tuple[str, Any, str]
"""Keyword, whether the rule is kept, and what was expected."""


def check_keywords(keywords: Keywords, properties: Properties, known: set[str]) -> None:
    """Raise ArgumentError, which starts with the keyword, for one that is unknown, out of range or in conflict."""
    for name, kept, expected in _rules(keywords, properties, known):
        if not kept:
            raise ArgumentError(name, expected)


def _rules(keywords: Keywords, properties: Properties, known: set[str]) -> Iterator[Rule]:
    for name in keywords:
        yield name, name in known, "this solver has no such parameter."
    reads, (low, high) = keywords.get("num_reads", 1), properties["num_reads_range"]
    fits = is_integer(reads) and low <= reads <= high
    yield "num_reads", fits, f"expected an integer in [{low}, {high}], got {reads!r}."
    mode = keywords.get("answer_mode", "histogram")
    yield "answer_mode", mode in ("histogram", "raw"), f"expected 'histogram' or 'raw', got {mode!r}."
    most = keywords.get("max_answers")
    kept = most is None or 1 <= most <= reads
    yield "max_answers", kept, f"expected 1 to num_reads = {reads}, got {most!r}."
    biases, size = keywords.get("flux_biases"), properties["num_qubits"]
    if biases is not None:
        yield "flux_biases", len(biases) == size, f"expected {size} numbers, got {len(biases)}."
        yield "flux_biases", np.isfinite(biases).all(), "expected finite numbers."
        unscaled = keywords.get("auto_scale", True) is False
        yield "flux_biases", unscaled, "expected auto_scale=False with flux biases (the default is True)."
    check_times(keywords, properties)
    if not keywords.get("fast_anneal"):
        yield from _standard(keywords, properties)
    most = longest_run(keywords, properties)
    fits = most is None or reads <= most
    yield "num_reads", fits, f"expected a run of at most {most} reads, got {reads}."


def _standard(keywords: Keywords, properties: Properties) -> Iterator[Rule]:
    """Schedules of a standard anneal, forward or reverse."""
    schedule, started = keywords.get("anneal_schedule"), "initial_state" in keywords
    if schedule is None:
        yield "initial_state", not started, "expected an anneal_schedule that starts at s = 1, got none."
        return
    name, most = "anneal_schedule", properties["max_anneal_schedule_points"]
    yield name, 2 <= len(schedule) <= most, f"expected 2 to {most} points, got {len(schedule)}."
    t, s = (np.asarray(column, dtype=np.float64) for column in zip(*schedule, strict=True))
    yield name, t[0] == 0 and (np.diff(t) > 0).all(), "expected times that rise from 0."
    yield name, s[-1] == 1 and ((s >= 0) & (s <= 1)).all(), "expected s in [0, 1] that ends at 1."
    if s[0] == 1:
        yield "initial_state", started, "expected a state for a reverse anneal, got none."
    else:
        yield "initial_state", not started, "cannot be combined with a forward anneal."
        yield name, s[0] == 0 and (np.diff(s) >= 0).all(), "expected s that rises from 0 to 1."
    most = 1 / properties["annealing_time_range"][0]
    steepest = float(np.abs(np.diff(s) / np.diff(t)).max())
    yield name, steepest <= most + 1e-10, f"expected slopes up to {most:g}, got {steepest:g}."


def fast_annealing_time(keywords: Keywords) -> float:
    """Time of a fast anneal in microseconds; ArgumentError if it is not one, or no time is given."""
    if not keywords.get("fast_anneal"):
        raise ArgumentError("fast_anneal", "expected True with a schedule.")
    points = keywords.get("anneal_schedule")
    time: Any = keywords.get("annealing_time") if points is None else points[-1][0]
    if time is None:
        raise ArgumentError("annealing_time", "one with a schedule", "none")
    return float(time)


def programmed(
    h: FloatArray, pairs: IntArray, J: FloatArray, keywords: Keywords, properties: Properties
) -> tuple[FloatArray, FloatArray]:
    """Biases on the chip: in range as they are, or multiplied by the factor of ``auto_scale``, True by default.

    The factor is the largest that keeps h, J and the sums over each qubit in range: small problems are scaled **up**.

    Raises:
        ValueError: Out of range without ``auto_scale``, or h other than 0 with ``fast_anneal``.
    """
    if keywords.get("fast_anneal") and h.any():
        raise ArgumentError("h", "0 with fast_anneal", f"{h[np.flatnonzero(h)[0]]:g}")
    ranges = stated_ranges(properties)
    parts = (
        ("h", "values", h, ranges.h),
        ("J", "values", J, ranges.J),
        ("J", "sums over one qubit", coupling_totals(pairs, J, len(h)), ranges.sums),
    )
    if keywords.get("auto_scale", True):
        factor = min(room(values, 0.0, allowed) for _, _, values, allowed in parts)
        return (h * factor, J * factor) if math.isfinite(factor) else (h, J)
    for name, what, values, allowed in parts:
        if allowed is not None and len(outside := values[beyond(values, allowed)]):
            raise ArgumentError(name, f"{what} in [{allowed[0]:g}, {allowed[1]:g}]", f"{outside[0]:g}")
    return h, J
