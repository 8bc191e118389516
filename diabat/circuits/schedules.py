"""Annealing schedules: A(s) and B(s) in GHz, as tables with linear interpolation; D-Wave's are built in.

The annealing Hamiltonian, in D-Wave's convention (Ocean documentation), is

    H(s) = -A(s)/2 Σ_i X_i + B(s)/2 (Σ_i h_i Z_i + Σ_{i<j} J_ij Z_i Z_j),     s = t / t_a,

with A and B in GHz and t in ns: a term of E GHz changes a phase by 2π·E·dt radians in dt nanoseconds.
`diabat.circuits.plan` defines the sign of h and J in diabat, and the map from Z to spins.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import ArrayLike, NDArray

from diabat.checks import ArgumentError, check_choice, is_positive

FloatArray = NDArray[np.float64]

PROTOCOLS = ("fast", "standard")
OWN = "own schedule"

# The built-in schedules: five solvers, each in both protocols, with D-Wave's published sheet (data/README.md).
SHEETS = {
    "Advantage2_system1": "09-1312A-N",
    "Advantage2_system2": "09-1324A-B",
    "Advantage2_system4": "09-1323A-D",
    "Advantage_system4": "09-1263A-C",
    "Advantage_system6": "09-1273A-F",
}

# Far above any annealer: such a table is in MHz or Hz. There is no lower bound here, because slow simulators in kHz
# are valid (`schedule_csv` has one for files).
MAX_GHZ = 1000.0
LEAST_STEP = 1e-9  # of s; the slope between points that are closer is not finite


@dataclass(frozen=True, eq=False)
class AnnealingSchedule:
    """A table of A(s) and B(s), interpolated linearly between its points.

    Attributes:
        name: Name for messages and reports.
        s: Normalised time, float64 [points], strictly increasing from 0 to 1.
        A_GHz: Transverse-field energy scale in GHz, float64 [points], not negative.
        B_GHz: Problem energy scale in GHz, float64 [points], not negative.
        protocol: "fast" (flux ramped linearly), "standard", or any name; "own schedule" if none is given.
        source: Source of the numbers.

    Raises:
        ValueError: The arrays differ in length, are not finite, are negative, exceed 1000 GHz (a table in
            another unit), or s does not rise from 0 to 1.
    """

    name: str
    s: FloatArray
    A_GHz: FloatArray
    B_GHz: FloatArray
    protocol: str = OWN
    source: str = ""

    def __post_init__(self) -> None:
        """Copy the tables into read-only arrays and check them."""
        for key in ("s", "A_GHz", "B_GHz"):
            object.__setattr__(self, key, self._column(key, getattr(self, key)))
        if self.s[0] != 0.0 or self.s[-1] != 1.0:
            got = f"got {self.s[0]:g} to {self.s[-1]:g}{span_hint(self.s[-1])}"
            raise self._refusal(f"s to span 0 to 1, {got}")
        for at in np.flatnonzero(np.diff(self.s) < LEAST_STEP)[:1] + 1:
            got = f"got {self.s[at]:g} after {self.s[at - 1]:g} at point {at}"
            raise self._refusal(f"s strictly increasing by {LEAST_STEP:g} or more, {got}")

    def _column(self, key: str, values: ArrayLike) -> FloatArray:
        column = np.array(values, dtype=np.float64)
        if column.ndim != 1 or len(column) < 2 or len(column) != np.size(self.s):
            count = max(np.size(self.s), 2)
            raise self._refusal(f"{key} as a list of {count} numbers, got shape {column.shape}")
        for at in np.flatnonzero(~np.isfinite(column) | (column < 0))[:1]:
            raise self._refusal(f"{key} finite and not negative, got {column[at]:g} at point {at}")
        if key != "s" and column.max() > MAX_GHZ:
            got = f"got a maximum of {column.max():.2g}; is the table in MHz, Hz or rad/s?"
            raise self._refusal(f"{key} in GHz, {got}")
        column.flags.writeable = False
        return column

    def _refusal(self, expected: str) -> ValueError:
        return ValueError(f"schedule {self.name!r}: expected {expected}")

    def A(self, s: ArrayLike) -> FloatArray:  # noqa: N802 - the physicists' name
        """Transverse-field energy in GHz at normalised times s in [0, 1], any shape."""
        return np.interp(np.asarray(s, dtype=np.float64), self.s, self.A_GHz)

    def B(self, s: ArrayLike) -> FloatArray:  # noqa: N802 - the physicists' name
        """Problem energy in GHz at normalised times s in [0, 1], any shape."""
        return np.interp(np.asarray(s, dtype=np.float64), self.s, self.B_GHz)

    def integral_A(self, s: ArrayLike) -> FloatArray:  # noqa: N802 - as above
        """∫_0^s A(s') ds' in GHz, exact for the interpolated table; times t_a [ns] and 2π it is a phase."""
        return _integral(np.asarray(s, dtype=np.float64), self.s, self.A_GHz)

    def integral_B(self, s: ArrayLike) -> FloatArray:  # noqa: N802 - as above
        """∫_0^s B(s') ds' in GHz, exact for the interpolated table; times t_a [ns] and 2π it is a phase."""
        return _integral(np.asarray(s, dtype=np.float64), self.s, self.B_GHz)


def _integral(at: FloatArray, s: FloatArray, y: FloatArray) -> FloatArray:
    """Integral from 0 to `at` of the piecewise linear function through (s, y)."""
    cumulative = np.concatenate([[0.0], np.cumsum(np.diff(s) * (y[1:] + y[:-1]) / 2)])
    segment = np.clip(np.searchsorted(s, at, side="right") - 1, 0, len(s) - 2)
    ds = at - s[segment]
    slope = (np.diff(y) / np.diff(s))[segment]
    result: FloatArray = cumulative[segment] + ds * (y[segment] + slope * ds / 2)
    return result


def linear_ramp(A0_GHz: float, B1_GHz: float, B0_GHz: float = 0.0) -> AnnealingSchedule:
    """The textbook ramp A(s) = A0 (1 - s), B(s) = B0 + (B1 - B0) s, in GHz.

    Raises:
        ValueError: A0 or B1 is not a positive finite number, or B0 is negative or not finite.
    """
    for key, value in (("A0_GHz", A0_GHz), ("B1_GHz", B1_GHz)):
        if not is_positive(value):
            raise ArgumentError("linear_ramp", f"expected {key} > 0 in GHz, got {value!r}")
    name = f"linear_ramp({A0_GHz:g}, {B1_GHz:g})"
    ends = np.array([0.0, 1.0]), np.array([A0_GHz, 0.0]), np.array([B0_GHz, B1_GHz])
    return AnnealingSchedule(name, *ends, protocol="linear", source="linear ramp")


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
        ValueError: Unknown name or protocol.
    """
    check_choice("schedule", name, SHEETS)
    if protocol not in PROTOCOLS:
        raise ArgumentError("protocol", " or ".join(map(repr, PROTOCOLS)), f"{protocol!r}")
    table = resources.files(__package__).joinpath("data", "annealing_schedules.npz")
    with table.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        s, a, b = archive[f"{name}.{protocol}"].T
    return AnnealingSchedule(name, s, a, b, protocol, f"D-Wave schedule sheet {SHEETS[name]}")


def named(given: str | AnnealingSchedule) -> AnnealingSchedule:
    """The built-in schedule of a name, in the fast protocol; a schedule as it is."""
    return schedule(given) if isinstance(given, str) else given


def span_hint(last: float) -> str:
    """Hint for a table whose last s is not 1, to be appended to a message."""
    if last < 1:
        return " (truncated?)"
    if last == 100:
        return "; is s in percent? Divide it by 100"
    return "; is it a time? Divide it by its last value" if last > 1 else ""


def check_annealing_time(annealing_time_ns: float) -> float:
    """The annealing time in ns as a float; ArgumentError unless it is a positive finite number."""
    if not is_positive(annealing_time_ns):
        sentence = f"expected a positive finite time in ns, got {annealing_time_ns!r}"
        raise ArgumentError("annealing_time_ns", sentence)
    return float(annealing_time_ns)
