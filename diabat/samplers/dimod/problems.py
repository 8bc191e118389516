"""Ising problems become one quadratic model, whose values and times are within the limits of a device.

Limits are checked before anything is submitted.  Source of the rules: Ocean documentation, solver parameters and "fast
anneal".  The client does not check most of them; the server refuses violations only after the time in the queue.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.circuits import Betas
from diabat.ising import Ising, to_minimised
from diabat.ising.edges import pairs_of

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Range = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Biases:
    """Biases of a minimised energy.

    Attributes:
        fields: Linear biases, float64 [V].
        pairs: int64 [E, 2], coupled variables as positions in ``fields``.
        couplings: Quadratic biases that belong to the problems, float64 [E].
        chains: Those that hold the qubits of one spin together, float64 [E], of other pairs; no scale applies to them.
        longest_chain: Largest number of qubits of one spin.
    """

    fields: FloatArray
    pairs: IntArray
    couplings: FloatArray
    chains: FloatArray
    longest_chain: int = 1

    def scaled(self, factor: float) -> tuple[FloatArray, FloatArray]:
        """Programmed linear [V] and quadratic [E] biases."""
        return factor * self.fields, factor * self.couplings + self.chains

    def totals(self, values: FloatArray) -> FloatArray:
        """Sum of the values [E] of the pairs of each variable, float64 [V]."""
        return coupling_totals(self.pairs, values, len(self.fields))


def coupling_totals(pairs: IntArray, values: FloatArray, count: int) -> FloatArray:
    """Sum of the values [E] of the pairs [E, 2] of each of ``count`` variables."""
    return np.bincount(pairs.reshape(-1), np.repeat(values, 2), minlength=count).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Packed:
    """Problems packed into one quadratic model of the variables 0, 1, ..., one for each of their spins.

    Attributes:
        biases: The model.
        rows: int64 [V], problem of each variable.
        spins: int64 [V], spin of each variable within its problem.
        number: Identifies the random numbers of the submission.
        chip: What is programmed on the device; None where a composite does not tell.
    """

    biases: Biases
    rows: IntArray
    spins: IntArray
    number: int
    chip: Biases | None = None

    def part(self, variables: IntArray, number: int) -> Packed:
        """The model of some variables, which are coupled to no others."""
        place = np.full(len(self.rows), -1, dtype=np.int64)
        place[variables] = np.arange(len(variables))
        whole, kept = self.biases, place[self.biases.pairs[:, 0]] >= 0
        biases = Biases(
            whole.fields[variables], place[whole.pairs[kept]], whole.couplings[kept], whole.chains[kept]
        )
        return Packed(biases, self.rows[variables], self.spins[variables], number)


def program(ising: Ising, betas: Betas) -> list[Packed]:
    """Each problem, without three-body terms, as a model of its visible spins; those without any are omitted.

    The device samples exp(-beta_h · field energy - beta_J · coupling energy), so that h / -beta_h and J / -beta_J are
    programmed.
    """
    n, total = ising.num_spins, ising.num_problems
    h = _array(to_minimised(ising.fields, betas.beta_h)).reshape(total, n)
    coupled = _distinct(ising, betas.beta_J)
    visible = ising.visible_mask.cpu().numpy().reshape(total, n)
    models = []
    for row, which in enumerate(ising.coupling_index().tolist()):
        spins = np.flatnonzero(visible[row])
        if len(spins):
            pairs, J = coupled[which]
            if len(spins) < n:
                both = visible[row][pairs].all(1)
                place = np.cumsum(visible[row]) - 1
                pairs, J = place[pairs[both]], J[both]
            biases = Biases(h[row, spins], pairs, J, np.zeros_like(J))
            models.append(Packed(biases, np.full(len(spins), row), spins, row))
    return models


def _distinct(ising: Ising, beta: float) -> list[tuple[IntArray, FloatArray]]:
    """Coupled pairs [E, 2] and their biases J / -beta [E], of each distinct J of a batch."""
    if ising.edges is not None:
        pairs, values = ising.edges.index.cpu().numpy(), _array(to_minimised(ising.edges.values, beta))
        rows = values.reshape(ising.num_couplings, len(pairs))
        return [(pairs[row != 0], row[row != 0]) for row in rows]
    if ising.matrix is None:
        return [(np.empty((0, 2), np.int64), np.empty(0))]
    matrices = _array(to_minimised(ising.matrix, beta)).reshape(-1, ising.num_spins, ising.num_spins)
    return [pairs_of(J) for J in matrices]


def _array(values: Tensor) -> FloatArray:
    return values.detach().double().cpu().numpy()


def pack(models: Sequence[Packed], together: int) -> list[Packed]:
    """Join up to ``together`` models into one; the first numbers it."""
    return [_joined(models[i : i + together]) for i in range(0, len(models), together)]


def _joined(models: Sequence[Packed]) -> Packed:
    starts = np.cumsum([0, *(len(one.rows) for one in models)])
    parts = [one.biases for one in models]
    biases = Biases(
        np.concatenate([part.fields for part in parts]),
        np.concatenate([part.pairs + start for part, start in zip(parts, starts, strict=False)]),
        np.concatenate([part.couplings for part in parts]),
        np.concatenate([part.chains for part in parts]),
    )
    rows, spins = (np.concatenate([getattr(one, name) for one in models]) for name in ("rows", "spins"))
    return Packed(biases, rows, spins, models[0].number)


def placed(packed: Sequence[Packed]) -> tuple[int | None, int | None]:
    """Largest numbers of qubits of one model, and of one spin; None where a composite does not tell."""
    chips = [one.chip for one in packed if one.chip is not None]
    if len(chips) < len(packed):
        return None, None
    longest = max((chip.longest_chain for chip in chips), default=0)
    return max((len(chip.fields) for chip in chips), default=0), longest


def model(packed: Packed, factor: float = 1.0) -> Any:
    """The dimod model."""
    import dimod

    h, J = packed.biases.scaled(factor)
    terms = h, (*packed.biases.pairs.T, J), 0.0
    return dimod.BinaryQuadraticModel.from_numpy_vectors(*terms, "SPIN", variable_order=range(len(h)))


# Values of ±range/beta may exceed the range by a rounding error after multiplication and division.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Ranges:
    """Ranges that a device reports; None if it reports none.

    Attributes:
        h: Range of linear biases.
        J: Range of quadratic biases; the extended range if there is one.
        sums: Range of the sum of the quadratic biases of one variable.
        J_name: Property from which ``J`` was read.
    """

    h: Range | None = None
    J: Range | None = None
    sums: Range | None = None
    J_name: str = "j_range"

    def check(self, chip: Biases, factor: float) -> None:
        """Refuse values outside the ranges by a ValueError that names the value, the range and a fix."""
        h, J = chip.scaled(factor)
        sums = "per_qubit_coupling_range"
        for name, values, allowed, of, what in (
            ("fields", h, self.h, "h_range", "a value"),
            ("couplings", J, self.J, self.J_name, "a value"),
            ("couplings", chip.totals(J), self.sums, sums, "a sum over one qubit of value"),
        ):
            if allowed is not None and len(outside := values[beyond(values, allowed)]):
                fix = "program smaller values (weaker problems, or a device with a larger beta), or give scale='fit', "
                got = f"{what} {max(outside, key=abs):.4g}; {fix}which changes the effective temperature"
                expected = f"programmed values within {of} [{allowed[0]:g}, {allowed[1]:g}]"
                raise ArgumentError(name, expected, got)

    def fitting(self, chips: Sequence[Biases | None]) -> float:
        """Largest factor of the problems' biases that keeps a whole call in range; 1 if nothing is programmed.

        ValueError without ranges, if a composite does not tell what it programs, or if qubit chains leave no range.
        """
        if (self.h, self.J, self.sums) == (None, None, None):
            reason = "'fit' needs a sampler that reports h_range or j_range, got one that does not."
            raise ArgumentError("scale", reason)
        factor = math.inf
        for chip in chips:
            if chip is None:
                reason = (
                    "'fit' needs values on the chip, got a composite that does not tell what it programs."
                )
                raise ArgumentError("scale", reason)
            sums = room(chip.totals(chip.couplings), chip.totals(chip.chains), self.sums)
            factor = min(factor, room(chip.fields, 0.0, self.h), room(chip.couplings, 0.0, self.J), sums)
        if factor <= 0:
            expected = "qubit chains that leave range for the problems"
            raise ArgumentError("scale", expected, "none; use weaker chains")
        return factor if math.isfinite(factor) else 1.0


def stated_ranges(properties: Mapping[str, Any]) -> Ranges:
    """Read the ranges from a sampler's properties."""

    def pair(name: str) -> Range | None:
        value = properties.get(name)
        return None if value is None else (float(value[0]), float(value[1]))

    name = "j_range" if properties.get("extended_j_range") is None else "extended_j_range"
    return Ranges(pair("h_range"), pair(name), pair("per_qubit_coupling_range"), name)


def beyond(values: FloatArray, allowed: Range) -> NDArray[np.bool_]:
    """Which values are outside a range by more than rounding."""
    return (values < allowed[0] - _ROUNDING) | (values > allowed[1] + _ROUNDING)


def room(values: FloatArray, held: FloatArray | float, allowed: Range | None) -> float:
    """Largest f with f · values + held in the range."""
    if allowed is None or not len(values):
        return math.inf
    bound = np.where(values > 0, allowed[1], allowed[0]) - held
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = np.where(values == 0, np.inf, bound / values)
    return float(factors.min())


def check_times(parameters: Mapping[str, Any], properties: Mapping[str, Any]) -> None:
    """Refuse times (microseconds) and schedules that the processor refuses, by a ValueError that names the keyword.

    Ranges that its properties do not state are not checked.
    """
    fast = bool(parameters.get("fast_anneal"))
    schedule, time = parameters.get("anneal_schedule"), parameters.get("annealing_time")
    if schedule is not None and time is not None:
        raise ArgumentError("anneal_schedule", "cannot be combined with annealing_time, got both.")
    for name in ("initial_state", "reinitialize_state", "h_gain_schedule"):
        if fast and parameters.get(name) is not None:
            reason = "cannot be combined with fast_anneal, which runs forward at constant speed."
            raise ArgumentError(name, reason)
    if fast and schedule is not None and ([*schedule[0]] != [0, 0] or [s for _, s in schedule] != [0, 1]):
        raise ArgumentError("anneal_schedule", "two points [[0, 0], [t, 1]] with fast_anneal", repr(schedule))
    of = "fast_anneal_time_range" if fast else "annealing_time_range"
    total = time if schedule is None else schedule[-1][0]
    if total is not None and of in properties:
        low, high = properties[of]
        if not low <= total <= high:
            raise ArgumentError("annealing_time", f"{low:g} to {high:g} microseconds ({of})", f"{total:g}")


def longest_run(parameters: Mapping[str, Any], properties: Mapping[str, Any]) -> int | None:
    """Largest number of reads of one submission, by ``num_reads_range`` and ``problem_run_duration_range``.

    The duration is (annealing time + readout thermalization) · reads + programming thermalization, microseconds.
    """

    def of_call(name: str) -> float:
        value = parameters.get(name)
        return float(properties.get(f"default_{name}", 0.0) if value is None else value)

    limits = []
    if (reads := properties.get("num_reads_range")) is not None:
        limits.append(int(reads[1]))
    if (duration := properties.get("problem_run_duration_range")) is not None:
        schedule = parameters.get("anneal_schedule")
        anneal = float(schedule[-1][0]) if schedule else of_call("annealing_time")
        each = anneal + of_call("readout_thermalization")
        left = float(duration[1]) - of_call("programming_thermalization")
        # The quotient may round up by one read.
        limits.append(int(left / each * (1 - 1e-12)) if each > 0 else 2**31)
    return max(1, min(limits)) if limits else None
