"""What one submission holds, and the plain layout: problems side by side as independent parts of one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diabat.samplers.dimod.programming import FloatArray, IntArray, Problem


@dataclass(frozen=True, eq=False)
class Packed:
    """Problems packed into one quadratic model, and how its variables are read.

    A logical spin is a chain of one or more variables; its value is that of the majority.  The last chains may be
    gauge or ancilla spins, which belong to no problem.

    Attributes:
        labels: int64 [V], labels of the variables (qubits, on a chip).
        fields: Linear biases, float64 [V].
        pairs: int64 [E, 2], positions of coupled variables in ``labels``.
        couplings: Quadratic biases that belong to the problems, float64 [E].
        chains: Quadratic biases that hold chains together, float64 [E]; no scale applies to them.
        rows: int64 [L], problem of each logical spin.
        spins: int64 [L], spin of each logical spin within its problem.
        members: int64 [M], positions of the variables of all chains, chain after chain.
        starts: int64 [C], start of each chain in ``members``, C >= L.
        gauges: int64 [L], chain that a logical spin is multiplied by; None for none.
        parameters: Keywords of this submission alone, such as flux biases.
    """

    labels: IntArray
    fields: FloatArray
    pairs: IntArray
    couplings: FloatArray
    chains: FloatArray
    rows: IntArray
    spins: IntArray
    members: IntArray
    starts: IntArray
    gauges: IntArray | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def first_row(self) -> int:
        """First problem of the submission, by which its random numbers are told from those of others."""
        return int(self.rows[0])

    @property
    def lengths(self) -> IntArray:
        """Number of variables of each chain, int64 [C]."""
        return np.diff(self.starts, append=len(self.members))

    def scaled(self, factor: float) -> tuple[FloatArray, FloatArray]:
        """Linear [V] and quadratic [E] biases as they are programmed."""
        return factor * self.fields, factor * self.couplings + self.chains


def pack_plain(problems: Sequence[Problem], together: int) -> list[Packed]:
    """Pack problems as they are, at most ``together`` of them in one model; variables are 0, 1, ..."""
    return [_plain(problems[i : i + together]) for i in range(0, len(problems), together)]


def _plain(problems: Sequence[Problem]) -> Packed:
    pairs, couplings, start = [], [], 0
    for problem in problems:
        first, second = np.nonzero(np.triu(problem.couplings, 1))
        pairs.append(np.stack((first, second), axis=1) + start)
        couplings.append(problem.couplings[first, second])
        start += len(problem.spins)
    places = np.arange(start)
    values = np.concatenate(couplings)
    return Packed(
        labels=places,
        fields=np.concatenate([problem.fields for problem in problems]),
        pairs=np.concatenate(pairs),
        couplings=values,
        chains=np.zeros_like(values),
        rows=np.repeat([problem.row for problem in problems], [len(problem.spins) for problem in problems]),
        spins=np.concatenate([problem.spins for problem in problems]),
        members=places,
        starts=places,
    )
