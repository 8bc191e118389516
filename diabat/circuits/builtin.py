"""The built-in schedules: D-Wave's published tables for five solvers and two protocols."""

from __future__ import annotations

import difflib
from functools import cache
from importlib import resources

import numpy as np

from diabat.checks import ArgumentError
from diabat.circuits.schedules import AnnealingSchedule

PROTOCOLS = ("fast", "standard")

# D-Wave's published schedule sheet behind each built-in table (data/README.md).
SHEETS = {
    "Advantage2_system1": "09-1312A-N",
    "Advantage2_system2": "09-1324A-B",
    "Advantage2_system4": "09-1323A-D",
    "Advantage_system4": "09-1263A-C",
    "Advantage_system6": "09-1273A-F",
}


def available_schedules() -> tuple[str, ...]:
    """Names of the built-in D-Wave schedules; each exists in both `PROTOCOLS`."""
    return tuple(SHEETS)


@cache
def schedule(name: str, protocol: str = "fast") -> AnnealingSchedule:
    """A built-in D-Wave schedule with about 1000 points.

    Args:
        name: One of `available_schedules()`.
        protocol: "fast" (the fast-anneal protocol, for diabatic sampling) or "standard".

    Raises:
        ValueError: Unknown name (the message gives the nearest one) or protocol.
    """
    if name not in SHEETS:
        nearest = difflib.get_close_matches(
            str(name).lower(), [key.lower() for key in SHEETS], n=1, cutoff=0.0
        )
        wanted = next((key for key in SHEETS if [key.lower()] == nearest), next(iter(SHEETS)))
        raise ArgumentError(
            "schedule",
            f"unknown name {name!r}, did you mean {wanted!r}? Expected one of {', '.join(SHEETS)}.",
        )
    if protocol not in PROTOCOLS:
        raise ArgumentError("protocol", f"expected {' or '.join(map(repr, PROTOCOLS))}, got {protocol!r}.")
    table = resources.files(__package__).joinpath("data", "annealing_schedules.npz")
    with table.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        s, a, b = archive[f"{name}.{protocol}"].T
    return AnnealingSchedule(name, s, a, b, protocol, f"D-Wave schedule sheet {SHEETS[name]}")
