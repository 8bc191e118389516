"""Documented rules of a D-Wave processor: refuse the problems and keywords that its server refuses.

Source: Ocean documentation, "QPU solver parameters" and "QPU solver properties".  Times in microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from diabat.checks import ArgumentError, is_integer
from diabat.samplers.dimod.packing import FloatArray, IntArray

Properties = Mapping[str, Any]
Keywords = Mapping[str, Any]


def check_keywords(keywords: Keywords, properties: Properties, known: set[str]) -> None:
    """Refuse keywords that are unknown, out of range or in conflict.

    Raises:
        ValueError: Starts with the keyword.
    """
    for name in keywords:
        _demand(name in known, f"{name}: this solver has no such parameter.")
    _check_reads(keywords, properties)
    if keywords.get("fast_anneal"):
        _check_fast(keywords, properties)
    else:
        _check_standard(keywords, properties)
    _check_run_time(keywords, properties)
    biases = keywords.get("flux_biases")
    if biases is not None:
        size = properties["num_qubits"]
        _demand(len(biases) == size, f"flux_biases: expected {size} numbers, got {len(biases)}.")
        _demand(bool(np.isfinite(biases).all()), "flux_biases: expected finite numbers.")
        _demand(
            keywords.get("auto_scale", True) is False,
            "flux_biases: expected auto_scale=False with flux biases (the default is True).",
        )


def _check_reads(keywords: Keywords, properties: Properties) -> None:
    reads, (low, high) = keywords.get("num_reads", 1), properties["num_reads_range"]
    whole = is_integer(reads)
    _demand(
        whole and low <= reads <= high, f"num_reads: expected an integer in [{low}, {high}], got {reads!r}."
    )
    mode = keywords.get("answer_mode", "histogram")
    _demand(mode in ("histogram", "raw"), f"answer_mode: expected 'histogram' or 'raw', got {mode!r}.")
    most = keywords.get("max_answers")
    if most is not None:
        _demand(1 <= most <= reads, f"max_answers: expected 1 to num_reads = {reads}, got {most!r}.")


def _check_fast(keywords: Keywords, properties: Properties) -> None:
    for name in ("initial_state", "reinitialize_state", "h_gain_schedule"):
        _demand(keywords.get(name) is None, f"{name}: not available with fast_anneal.")
    schedule = keywords.get("anneal_schedule")
    if schedule is not None:
        _demand(
            "annealing_time" not in keywords,
            "anneal_schedule: cannot be combined with annealing_time, got both.",
        )
        _demand(
            len(schedule) == 2, f"anneal_schedule: expected two points with fast_anneal, got {len(schedule)}."
        )
        _demand(
            tuple(schedule[0]) == (0, 0) and schedule[1][1] == 1,
            "anneal_schedule: expected [[0, 0], [t, 1]] with fast_anneal, without pause or reverse.",
        )
    time = schedule[-1][0] if schedule is not None else keywords.get("annealing_time")
    _check_time(time, properties, "fast_anneal_time_range")


def _check_standard(keywords: Keywords, properties: Properties) -> None:
    schedule = keywords.get("anneal_schedule")
    if schedule is None:
        _demand(
            "initial_state" not in keywords,
            "initial_state: expected an anneal_schedule that starts at s = 1, got none.",
        )
        _check_time(keywords.get("annealing_time"), properties, "annealing_time_range")
        return
    _demand(
        "annealing_time" not in keywords, "anneal_schedule: cannot be combined with annealing_time, got both."
    )
    most = properties["max_anneal_schedule_points"]
    _demand(2 <= len(schedule) <= most, f"anneal_schedule: expected 2 to {most} points, got {len(schedule)}.")
    t, s = (np.asarray(column, dtype=np.float64) for column in zip(*schedule, strict=True))
    _demand(t[0] == 0 and bool((np.diff(t) > 0).all()), "anneal_schedule: expected times that rise from 0.")
    _demand(
        s[-1] == 1 and bool(((s >= 0) & (s <= 1)).all()),
        "anneal_schedule: expected s in [0, 1] that ends at 1.",
    )
    if s[0] == 1:
        _demand(
            "initial_state" in keywords, "initial_state: expected a state for a reverse anneal, got none."
        )
    else:
        _demand("initial_state" not in keywords, "initial_state: cannot be combined with a forward anneal.")
        _demand(
            s[0] == 0 and bool((np.diff(s) >= 0).all()), "anneal_schedule: expected s that rises from 0 to 1."
        )
    low, high = properties["annealing_time_range"]
    _demand(t[-1] <= high, f"anneal_schedule: expected at most {high:g} microseconds, got {t[-1]:g}.")
    steepest = float(np.abs(np.diff(s) / np.diff(t)).max())
    _demand(
        steepest <= 1 / low + 1e-10, f"anneal_schedule: expected slopes up to {1 / low:g}, got {steepest:g}."
    )


def _check_time(time: Any, properties: Properties, of: str) -> None:
    if time is not None:
        low, high = properties[of]
        _demand(
            low <= time <= high, f"annealing_time: expected {low:g} to {high:g} microseconds, got {time:g}."
        )


def _check_run_time(keywords: Keywords, properties: Properties) -> None:
    """Refuse (anneal + readout thermalization) · reads + programming thermalization beyond the range."""

    def given(name: str) -> float:
        value = keywords.get(name)
        return float(properties[f"default_{name}"] if value is None else value)

    schedule = keywords.get("anneal_schedule")
    anneal = float(schedule[-1][0]) if schedule is not None else given("annealing_time")
    run = (anneal + given("readout_thermalization")) * keywords.get("num_reads", 1)
    run += given("programming_thermalization")
    low, high = properties["problem_run_duration_range"]
    _demand(low <= run <= high, f"num_reads: expected a run of at most {high:g} microseconds, got {run:g}.")


def fast_annealing_time(keywords: Keywords) -> float:
    """Time of a fast anneal in microseconds.

    Raises:
        ValueError: If it is not a fast anneal, or no time is given.
    """
    _demand(bool(keywords.get("fast_anneal")), "fast_anneal: expected True with law='anneal'.")
    points = keywords.get("anneal_schedule")
    time = keywords.get("annealing_time") if points is None else points[-1][0]
    if time is None:
        raise ArgumentError("annealing_time", "expected one with law='anneal', got none.")
    return float(time)


def programmed(
    h: FloatArray, pairs: IntArray, J: FloatArray, keywords: Keywords, properties: Properties
) -> tuple[FloatArray, FloatArray]:
    """Biases on the chip: in range as they are, or divided by the factor of ``auto_scale``, True by default.

    The factor is the largest of max(h)/max(h_range), min(h)/min(h_range) and the same for J with the extended range
    and for the sums over each qubit: small problems are scaled **up**.

    Raises:
        ValueError: Out of range without ``auto_scale``, or h other than 0 with ``fast_anneal``.
    """
    if keywords.get("fast_anneal") and h.any():
        raise ArgumentError("h", f"expected 0 with fast_anneal, got {h[np.flatnonzero(h)[0]]:g}.")
    extended = properties.get("extended_j_range", properties["j_range"])
    total = np.bincount(pairs.reshape(-1), np.repeat(J, 2), minlength=len(h)).astype(np.float64)
    parts = (
        ("h", h, properties["h_range"]),
        ("J", J, extended),
        ("J", total, properties["per_qubit_coupling_range"]),
    )
    if keywords.get("auto_scale", True):
        factor = max(_used(values, allowed) for _, values, allowed in parts)
        return (h / factor, J / factor) if factor > 0 else (h, J)
    for name, values, (low, high) in parts:
        outside = values[(values < low - 1e-9) | (values > high + 1e-9)]
        what = "sums over one qubit" if values is total else "values"
        _demand(
            not len(outside),
            f"{name}: expected {what} in [{low:g}, {high:g}], got {next(iter(outside), 0):g}.",
        )
    return h, J


def _used(values: FloatArray, allowed: Any) -> float:
    if not len(values):
        return 0.0
    low, high = allowed
    return max(
        float(values.max()) / high if high > 0 else math.inf,
        float(values.min()) / low if low < 0 else math.inf,
        0.0,
    )


def _demand(condition: bool, sentence: str) -> None:
    if not condition:
        raise ValueError(sentence)
