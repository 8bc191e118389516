"""Conversion of Ising problems to one quadratic model, and of its reads to their spins."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.circuits import Betas
from diabat.edges import pairs_of
from diabat.ising import Ising, to_minimised

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Problem:
    """One problem without its invisible spins, as biases of a minimised energy.

    Attributes:
        row: Its index in the flat batch.
        spins: int64 [m], the visible spins.
        fields: h / -beta_h, float64 [m].
        pairs: int64 [E, 2], coupled spins as positions in ``spins``.
        couplings: J / -beta_J of each pair, float64 [E].
    """

    row: int
    spins: IntArray
    fields: FloatArray
    pairs: IntArray
    couplings: FloatArray


def program(ising: Ising, betas: Betas) -> list[Problem]:
    """Divide by the inverse temperatures of the device; problems without visible spins are omitted.

    Args:
        ising: The problems, fields [*batch, n], without three-body terms.
        betas: The device samples exp(-beta_h · field energy - beta_J · coupling energy).
    """
    n, total = ising.num_spins, ising.num_problems
    h = _array(to_minimised(ising.fields, betas.beta_h)).reshape(total, n)
    coupled = _distinct(ising, betas.beta_J)
    visible = ising.visible_mask.cpu().numpy().reshape(total, n)
    problems = []
    for row, which in enumerate(ising.coupling_index().tolist()):
        spins = np.flatnonzero(visible[row])
        if len(spins):
            pairs, J = coupled[which]
            if len(spins) < n:
                both = visible[row][pairs].all(1)
                place = np.cumsum(visible[row]) - 1
                pairs, J = place[pairs[both]], J[both]
            problems.append(Problem(row, spins, h[row, spins], pairs, J))
    return problems


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


@dataclass(frozen=True, eq=False)
class Biases:
    """Biases of a minimised energy.

    Attributes:
        fields: Linear biases, float64 [V].
        pairs: int64 [E, 2], coupled variables as positions in ``fields``.
        couplings: Quadratic biases that belong to the problems, float64 [E].
        chains: Quadratic biases that hold the qubits of one spin together, float64 [E]; no scale applies to them.
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


def coupling_totals(pairs: IntArray, values: FloatArray, count: int) -> FloatArray:
    """Sum of the values [E] of the pairs [E, 2] of each of ``count`` variables."""
    return np.bincount(pairs.reshape(-1), np.repeat(values, 2), minlength=count).astype(np.float64)


def pack(problems: Sequence[Problem], together: int) -> list[Packed]:
    """Pack at most ``together`` problems into a model; the first numbers the model."""
    return [_joined(problems[i : i + together]) for i in range(0, len(problems), together)]


def _joined(problems: Sequence[Problem]) -> Packed:
    sizes = [len(problem.spins) for problem in problems]
    starts = np.cumsum([0, *sizes])
    couplings = np.concatenate([problem.couplings for problem in problems])
    biases = Biases(
        fields=np.concatenate([problem.fields for problem in problems]),
        pairs=np.concatenate([one.pairs + start for one, start in zip(problems, starts, strict=False)]),
        couplings=couplings,
        chains=np.zeros_like(couplings),
    )
    rows = np.repeat([problem.row for problem in problems], sizes)
    return Packed(biases, rows, np.concatenate([problem.spins for problem in problems]), problems[0].row)


Spins = NDArray[np.int8]

FRACTIONS = ("chain_break_fraction", "ancilla_flips")
"""Fields of a sample set: the fractions of broken chains, and of ancillas read as -1."""


@dataclass(frozen=True, eq=False)
class Reads:
    """Reads of one answer.

    Attributes:
        spins: ±1, int8 [R, V], columns in the order of the submitted variables.
        fractions: Of each read, float64 [R], those of ``FRACTIONS`` that the sampler reports.
        access_us: Access time reported by the answer, in microseconds; None if it is missing or invalid.
        answered: Reads that were answered, with those that were not kept; None for as many as there are.
    """

    spins: Spins
    fractions: Mapping[str, FloatArray] = field(default_factory=dict)
    access_us: float | None = None
    answered: int | None = None

    @property
    def rows(self) -> int:
        """Reads that were answered."""
        return len(self.spins) if self.answered is None else self.answered


def most_reads(asked: int) -> int:
    """Largest accepted number of reads; some samplers return more than requested, and the excess is discarded."""
    return 100 * asked


def expand(sampleset: Any, labels: list[int], random: np.random.Generator, asked: int | None = None) -> Reads:
    """Expand a sample set, whose rows have ``num_occurrences``, to one row per read.

    Reads have the order of ``record``.  If rows have several occurrences, the order of draws is lost, and reads get a
    random order, so that any part of them is a fair sample.

    Args:
        sampleset: A dimod.SampleSet, SPIN or BINARY.
        labels: Variables in the order of the columns.
        random: Generator for that order.
        asked: Requested number of reads; None accepts any number.

    Raises:
        ValueError: If the answer lacks a variable, or has an invalid energy, value or count.
    """
    record = sampleset.record
    energies, counts = np.asarray(record.energy), np.asarray(record.num_occurrences)
    if not np.isfinite(energies).all():
        raise ArgumentError("answer", "expected finite energies, got NaN or infinity.")
    if not np.issubdtype(counts.dtype, np.integer) or (counts < 0).any():
        raise ArgumentError("answer", "expected num_occurrences as non-negative integers, got other numbers.")
    total = counts.sum(dtype=np.float64)  # the sum may overflow int64
    if asked is not None and total > most_reads(asked):
        raise ArgumentError("answer", f"expected about the requested {asked} reads, got {total:.10g}.")
    values = _columns(sampleset, labels)
    rows = np.repeat(np.arange(len(values)), counts)
    if (counts != 1).any():
        rows = random.permutation(rows)
    told = [name for name in FRACTIONS if name in record.dtype.names]
    timing = sampleset.info.get("timing")
    return Reads(
        values[rows],
        {name: np.asarray(record[name], dtype=np.float64)[rows] for name in told},
        valid_time(timing.get("qpu_access_time")) if isinstance(timing, Mapping) else None,
    )


def valid_time(value: Any) -> float | None:
    """Return a valid time, which is a finite number >= 0; None for any other value."""
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return float(value) if number and 0 <= value <= sys.float_info.max else None


def _columns(sampleset: Any, labels: list[int]) -> Spins:
    """Values ±1 of the rows, with columns in the order of ``labels``."""
    variables = list(sampleset.variables)
    place = {label: column for column, label in enumerate(variables)}
    missing = [label for label in labels if label not in place]
    if missing:
        raise ArgumentError("answer", f"expected a value for every variable, got none for {missing[0]!r}.")
    values = np.asarray(sampleset.record.sample)[:, [place[label] for label in labels]]
    low = {"SPIN": -1, "BINARY": 0}.get(sampleset.vartype.name)
    if low is None or not np.isin(values, (low, 1)).all():
        raise ArgumentError("answer", f"expected spins or bits, got values of type {sampleset.vartype.name}.")
    return (values if low else 2 * values - 1).astype(np.int8)
