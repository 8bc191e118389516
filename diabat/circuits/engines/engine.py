"""The interface of engines: run one plan on batches of programmed problems."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from diabat.checks import ArgumentError
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.problem import check_batch, spin_table
from diabat.circuits.schedules import FloatArray

Precision = Literal["double", "single"]
# Largest rounding of a phase, in rad.
_PHASE_ERROR = 1e-3
# Squares of numbers up to this do not overflow.
_SAFE_SUM = 1e150


class EngineError(ArgumentError):
    """The engine does not support the request; the message names an alternative."""


class Strength(NamedTuple):
    """Largest numbers of a batch: |h|, and Σ_k |J_jk| and √Σ_k J_jk² of a spin."""

    field: float
    row_sum: float
    row_norm: float


@dataclass(frozen=True, eq=False)
class Batch:
    """Programmed problems of one size, in diabat's sign.

    Attributes:
        fields: float64 [Q, n].
        couplings: float64, symmetric with zero diagonal: [n, n] shared by the Q problems, or [Q, n, n].

    Raises:
        ValueError: Arrays of wrong shape, not finite, or couplings not symmetric with zero diagonal.
    """

    fields: FloatArray
    couplings: FloatArray

    def __post_init__(self) -> None:
        """Convert to float64 and check."""
        fields, couplings = check_batch(self.fields, self.couplings)
        object.__setattr__(self, "fields", fields)
        object.__setattr__(self, "couplings", couplings)

    @classmethod
    def several(cls, fields: list[FloatArray], couplings: list[FloatArray], bounds: Strength) -> list[Batch]:
        """Batches of arrays that are known to be what the constructor checks, none stronger than the bounds."""
        batches = [object.__new__(cls) for _ in fields]
        for batch, h, J in zip(batches, fields, couplings, strict=True):
            vars(batch).update(fields=h, couplings=J, bounds=bounds)
        return batches

    @property
    def num_problems(self) -> int:
        """Q."""
        return len(self.fields)

    @property
    def num_spins(self) -> int:
        """Number n of spins of each problem."""
        return self.fields.shape[1]

    @cached_property
    def strength(self) -> Strength:
        """The strongest fields and couplings."""
        if not len(self.fields):
            return Strength(0.0, 0.0, 0.0)
        # Reductions of ufuncs: the functions of numpy take two to three times as long for few numbers.
        sizes = abs(self.couplings)
        row_sum = np.maximum.reduce(np.add.reduce(sizes, -1), axis=None).item()
        if row_sum < _SAFE_SUM:
            squares = np.add.reduce(sizes * sizes, -1)
        else:  # infinity if it overflows, without a warning
            squares = np.einsum("...jk,...jk->...j", sizes, sizes)
        norm = math.sqrt(np.maximum.reduce(squares, axis=None))
        return Strength(np.maximum.reduce(abs(self.fields), axis=None).item(), row_sum, norm)

    @cached_property
    def bounds(self) -> Strength:
        """Upper bounds of `strength` by the roots of the sums of squares, in a fifth of the time."""
        h, J = self.fields, self.couplings
        norm = math.sqrt(np.vdot(J, J))
        return Strength(math.sqrt(np.vdot(h, h)), math.sqrt(self.num_spins) * norm, norm)

    @property
    def shared(self) -> bool:
        """Whether all problems have the same couplings."""
        return self.couplings.ndim == 2


class BatchMoments(NamedTuple):
    """Moments of the measured spins of a batch: P(s_j = +1), float64 [Q, n], and if requested <s_j s_k>, [Q, n, n]."""

    probability: FloatArray
    correlation: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class BatchGradient:
    """Derivative of a loss with respect to one batch of programmed problems.

    Attributes:
        fields: ∂L/∂h, float64 [Q, n].
        couplings: ∂L/∂J, symmetric with zero diagonal, for the exponent ½ Σ_{j≠k} J_jk s_j s_k; [n, n] summed over
            the problems if they share J, else [Q, n, n].
    """

    fields: FloatArray
    couplings: FloatArray


@dataclass(frozen=True, eq=False)
class PlanGradient:
    """Derivative of a loss with respect to the problems of every batch, and to the angles b, c and a, [steps]."""

    batches: list[BatchGradient]
    field_angles: FloatArray
    coupling_angles: FloatArray
    mixer_angles: FloatArray


def largest_phase(angles: tuple[float, float], strength: Strength) -> float:
    """Bound of the rotation of a spin in a step, in rad; ``angles`` are the largest |b| and |c| of the plan."""
    return angles[0] * strength.field + angles[1] * strength.row_sum


def phases_within(angles: tuple[float, float], batches: Sequence[Batch], most: float) -> bool:
    """Whether no spin is rotated by more than ``most`` rad in a step; ``angles`` as in `largest_phase`."""
    for batch in batches:  # a generator in `all` would take longer than the sums
        bounds = batch.bounds
        # The margin covers the rounding of the sums; `not ... <=` also holds for NaN, which is 0 times infinity.
        weak = 1.01 * (angles[0] * bounds.field + angles[1] * bounds.row_sum) <= most
        if not weak and not largest_phase(angles, batch.strength) <= most:
            return False
    return True


MOST_PHASE: dict[Precision, float] = {"double": _PHASE_ERROR * 2.0**52, "single": _PHASE_ERROR * 2.0**23}
"""Largest phase that a precision resolves, in rad."""


class Engine(ABC):
    """Runs a plan: |ψ> = U_{steps-1} … U_0 |+>^n, P(s) = |<s|ψ>|², U_k as in `diabat.circuits.plan`.

    One call can contain problems of different sizes, such as the prefixes of a causal window. An engine that computes
    the probabilities of all states inherits the other methods; faster engines override them.

    Attributes:
        name: Name of the engine in configurations.
        max_spins: Largest n.
        precision: Precision of the state vectors.
        exact: Whether moments are exact for the circuit, not averages over shots.
        differentiable: Whether `gradient` is implemented.
    """

    name: str
    max_spins: int
    precision: Precision = "double"
    exact: bool = True
    differentiable: bool = False

    @abstractmethod
    def probabilities(self, plan: TrotterPlan, fields: ArrayLike, couplings: ArrayLike) -> FloatArray:
        """Probabilities of all spin states.

        Args:
            plan: Angles of the Trotter steps.
            fields: Programmed fields in diabat's sign, [Q, n].
            couplings: Programmed couplings in diabat's sign, [n, n] shared by the Q problems, or [Q, n, n].

        Returns:
            float64 [Q, 2^n]; bit j of the state index is spin j, bit 1 means +1; rows sum to 1.

        Raises:
            ValueError: Arrays of wrong shape, not finite, n too large, or couplings not symmetric with zero
                diagonal.
        """

    def moments(
        self, plan: TrotterPlan, batches: Sequence[Batch], *, correlations: bool = False
    ) -> list[BatchMoments]:
        """Marginals, and pair correlations if requested, of every batch."""
        moments = []
        for batch in batches:
            table = self.probabilities(plan, batch.fields, batch.couplings)
            states = spin_table(batch.num_spins).astype(np.float64)
            pairs = None
            if correlations:
                products = (states[:, :, None] * states[:, None, :]).reshape(len(states), -1)
                pairs = (table @ products).reshape(*batch.fields.shape, -1)
            moments.append(BatchMoments(table @ (states > 0), pairs))
        return moments

    def moments_and_gradient(
        self, plan: TrotterPlan, batches: Sequence[Batch], *, correlations: bool = False
    ) -> tuple[list[BatchMoments], partial[PlanGradient]]:
        """`moments`, and the rest of `gradient` for the same run, which may keep final states."""
        return self.moments(plan, batches, correlations=correlations), partial(self.gradient, plan, batches)

    def sample(
        self, plan: TrotterPlan, batches: Sequence[Batch], num_reads: int, random: np.random.Generator
    ) -> list[NDArray[np.int8]]:
        """Independent measurements.

        Args:
            plan: Angles of the Trotter steps.
            batches: Programmed problems.
            num_reads: Measurements R of each problem, at least 1.
            random: The same state of the generator gives the same draw.

        Returns:
            Spins ±1, int8 [R, Q, n] for each batch.
        """
        tables = (self.probabilities(plan, batch.fields, batch.couplings) for batch in batches)
        counts = ((batch.num_problems, num_reads) for batch in batches)
        return [draw_spins(table, random.random(count)) for table, count in zip(tables, counts, strict=True)]

    def gradient(
        self,
        plan: TrotterPlan,
        batches: Sequence[Batch],
        cotangents: Sequence[FloatArray],
        pair_cotangents: Sequence[FloatArray] | None = None,
        *,
        angles: bool = True,
    ) -> PlanGradient:
        """Exact derivative of L = Σ v_j P(s_j = +1) + Σ_{jk} w_jk <s_j s_k> by the adjoint method.

        With O the diagonal operator of L and |λ> = O|ψ>, the steps are undone one by one on |ψ> and |λ>, and

            ∂L/∂θ_k = 2 Re <λ_k| ∂U_k/∂θ_k |ψ_{k-1}>,

        so that memory does not grow with the number of steps.

        Args:
            plan: Angles of the Trotter steps.
            batches: Programmed problems.
            cotangents: v, [Q, n] for each batch.
            pair_cotangents: w, symmetric [Q, n, n] for each batch; None for zero.
            angles: Whether the derivatives with respect to angles are requested; else they may be zero.

        Raises:
            EngineError: The engine has no gradient (`differentiable` is False).
            ValueError: The cotangents do not have the shapes of the batches.
        """
        reason = f"engine '{self.name}' has no adjoint gradient; use 'native' or 'torch'."
        raise EngineError("gradient", reason)


def check_cotangents(
    batches: Sequence[Batch], cotangents: Sequence[FloatArray], pairs: Sequence[FloatArray] | None
) -> None:
    """Raise ValueError unless there is one cotangent of the right shape for every batch; see `Engine.gradient`."""
    counts = len(cotangents), len(batches) if pairs is None else len(pairs)
    if counts != (len(batches), len(batches)):
        got = f"{counts[0]} and {counts[1]} for pairs"
        raise ArgumentError("cotangents", f"one array per batch ({len(batches)})", got)
    named = [("cotangents", v, b.fields.shape) for v, b in zip(cotangents, batches, strict=True)]
    for w, b in zip(pairs or (), batches, strict=pairs is not None):
        named.append(("pair_cotangents", w, (*b.fields.shape, b.num_spins)))
    for name, array, shape in named:
        if np.shape(array) != shape:
            raise ArgumentError(name, f"shape {shape}", np.shape(array))


def draw_spins(probabilities: FloatArray, uniforms: FloatArray) -> NDArray[np.int8]:
    """Independent draws ±1 [shots, Q, n]: the first state whose cumulative probability exceeds the uniform.

    Args:
        probabilities: float64 [Q, 2^n], not negative; rows need not be normalised.
        uniforms: float64 [Q, shots] in [0, 1); an argument, so that a draw can be reproduced exactly.
    """
    problems, states = probabilities.shape
    cumulative = np.cumsum(probabilities, axis=1)
    cumulative /= cumulative[:, -1:]
    # One search for the whole batch: row q occupies the interval [q, q+1).
    offset = np.arange(problems)[:, None]
    flat = np.searchsorted((cumulative + offset).ravel(), (uniforms + offset).ravel(), side="right")
    # Adding q can round a uniform number up to the next row.
    state = np.minimum(flat.reshape(uniforms.shape) - offset * states, states - 1).T  # [shots, Q]
    n = states.bit_length() - 1
    bits = (state[..., None] >> np.arange(n)) & 1
    return (2 * bits - 1).astype(np.int8)
