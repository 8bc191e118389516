"""Trotter steps on a torch device: sums over states, phases, and small real matrix products, forwards and backwards."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from diabat.circuits.plan import TrotterPlan
from diabat.circuits.problem import spin_table
from diabat.circuits.schedules import FloatArray

# Qubits that one matrix of the mixer acts on: 2^4 rows keep a matrix product near the speed of the machine.
_WIDEST = 4


class HalvedStates:
    """The 2^n states of n spins as a matrix: row x is the state of the high spins, column y of the low ones.

    State index = x·B + y with A·B = 2^n: [A, B, Q] is a view of [2^n, Q]. Sums of spins and pairs over all states need
    only tables of A and of B rows, not one of 2^n rows and n columns.

    Attributes:
        num_spins: n.
        high: Spins ±1 of the rows, float64 [A, n - b]: spins b, b+1, ... with b = ⌈n/2⌉.
        low: Spins ±1 of the columns, float64 [B, b]: spins 0 ... b-1.
    """

    def __init__(self, num_spins: int, device: torch.device) -> None:
        self.num_spins, self.split = num_spins, (num_spins + 1) // 2
        self.high, self.low = (
            torch.tensor(spin_table(count), dtype=torch.float64, device=device)
            for count in (num_spins - self.split, self.split)
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(A, B)."""
        return len(self.high), len(self.low)

    def field_terms(self, fields: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_j h_j s_j for h [Q, n], float64, as a sum: the high spins' part [A, 1, Q], the low ones' [1, B, Q]."""
        low, high = fields[:, : self.split], fields[:, self.split :]
        return (self.high @ high.T)[:, None], (self.low @ low.T)[None]

    def pair_terms(self, matrix: Tensor) -> Tensor:
        """Σ_{jk} W_jk s_j s_k for symmetric W, float64 [n, n] or [Q, n, n]: [A, B, 1] or [A, B, Q]."""
        stack, b = matrix.reshape(-1, *matrix.shape[-2:]), self.split
        within_high = ((self.high @ stack[:, b:, b:]) * self.high).sum(-1)  # [Q, A]
        within_low = ((self.low @ stack[:, :b, :b]) * self.low).sum(-1)  # [Q, B]
        across = 2 * self.high @ stack[:, b:, :b] @ self.low.T  # [Q, A, B]
        total = across + within_high[:, :, None] + within_low[:, None, :]
        return total.permute(1, 2, 0).contiguous()

    def spin_sums(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Σ_x w(x) s_j(x), float64 [Q, n], from w summed over columns [A, Q] and over rows [B, Q]."""
        return torch.cat([columns.T @ self.low, rows.T @ self.high], dim=1)

    def up_sums(self, weights: Tensor) -> Tensor:
        """Σ_x w(x) [s_j(x) = +1] for w [A, B, Q]: float64 [Q, n]; no difference of large numbers in it."""
        low, high = (self.low > 0).to(self.low), (self.high > 0).to(self.high)
        return torch.cat([weights.sum(0).T @ low, weights.sum(1).T @ high], dim=1)

    def pair_sums(self, weights: Tensor) -> Tensor:
        """Σ_x w(x) s_j(x) s_k(x) for w [A, B, Q]: float64 [Q, n, n], symmetric."""
        low, high = self.low, self.high
        across = torch.einsum("xi,xyq,yj->qij", high, weights, low)
        within_high = torch.einsum("xi,xq,xj->qij", high, weights.sum(1), high)
        within_low = torch.einsum("yi,yq,yj->qij", low, weights.sum(0), low)
        upper = torch.cat([within_low, across.mT], dim=2)
        return torch.cat([upper, torch.cat([across, within_high], dim=2)], dim=1)


class TorchSteps:
    """The steps of one plan for Q problems, on states [m, A, B, Q] that are changed in place.

    The amplitudes are kept as φ with <x|ψ> = i^|x| φ(x), |x| the number of ones: then the mixer of a qubit,

        exp(i a/2 X)  ->  exp(a/2 R) = [[cos a/2, -sin a/2], [sin a/2, cos a/2]],   R = [[0, -1], [1, 0]],

    is real, and a group of qubits is one real matrix product for real and imaginary parts. Phases and probabilities do
    not change. A step first multiplies by exp(iΦ),

        Φ = ( b_k Σ_j h_j s_j + c_k Σ_{i<j} J_ij s_i s_j ) / 2,

    the product of a phase of the high spins [A, 1, Q], one of the low spins [1, B, Q] and one of the couplings,
    whose table [A, B, 1] serves all problems when they share J. Angles are float64 whatever the amplitudes are.

    Attributes:
        fields: The two parts of Σ h_j s_j, float64 [A, 1, Q] and [1, B, Q].
        couplings: Σ_{i<j} J_ij s_i s_j, float64 [A, B, 1] or [A, B, Q].
    """

    def __init__(
        self, plan: TrotterPlan, states: HalvedStates, fields: Tensor, couplings: Tensor, dtype: torch.dtype
    ) -> None:
        """Tables for `fields` h [Q, n] and `couplings` J, [n, n] or [Q, n, n], both float64 on the device."""
        self.plan, self.states, self.dtype = plan, states, dtype
        self.num_problems = len(fields)
        self.fields = states.field_terms(fields)
        self.couplings = states.pair_terms(couplings) / 2
        groups = -(-states.num_spins // _WIDEST)
        # Widths of the groups, from qubit 0 upwards; n = 10 is 3 + 3 + 4.
        self._widths = [(states.num_spins + g) // groups for g in range(groups)]
        self._mixers, self._generators = (
            {w: torch.tensor(build(w), dtype=dtype.to_real(), device=fields.device) for w in {*self._widths}}
            for build in (partial(_mixers, plan.mixer_angles), _generator)
        )

    def run(self) -> Tensor:
        """The state after the plan, [1, A, B, Q]."""
        ones = (self.states.high > 0).sum(1)[:, None] + (self.states.low > 0).sum(1)
        quarter_turns = torch.tensor([1, -1j, -1, 1j], dtype=self.dtype, device=ones.device)
        # φ(x) = (-i)^|x| <x|ψ>
        start = quarter_turns[ones % 4] * 2.0 ** (-self.states.num_spins / 2)
        state = start[None, :, :, None].repeat(1, 1, 1, self.num_problems)
        scratch = torch.empty_like(state)
        for step in range(self.plan.steps):
            self.turn(step, state)
            state, scratch = self.mix(step, state, scratch)
        return state

    def turn(self, step: int, state: Tensor, sign: int = 1) -> None:
        """Multiply by exp(± iΦ) of the step, in place."""
        b, c = float(self.plan.field_angles[step]), float(self.plan.coupling_angles[step])
        for angle, table in ((b, self.fields[0]), (b, self.fields[1]), (c, self.couplings)):
            phase = table * (sign * angle / 2)
            state *= torch.complex(phase.cos(), phase.sin()).to(self.dtype)

    def mix(self, step: int, state: Tensor, scratch: Tensor, sign: int = 1) -> tuple[Tensor, Tensor]:
        """The mixer of the step, or its inverse; returns the new state and the buffer that is now free."""
        for low, width in self._groups():
            matrix = self._mixers[width][step]
            _product(matrix if sign > 0 else matrix.T, state, scratch, low)
            state, scratch = scratch, state
        return state, scratch

    def mixer_slope(self, bra: Tensor, ket: Tensor, scratch: Tensor) -> Tensor:
        """Re <bra| Σ_j R_j |ket>, the derivative of Re <bra|ket> by half the mixer angle; no dimensions."""
        total = torch.zeros((), dtype=torch.float64, device=bra.device)
        flat = torch.view_as_real(bra).reshape(-1)
        for low, width in self._groups():
            _product(self._generators[width], ket, scratch, low)
            total += torch.dot(flat, torch.view_as_real(scratch).reshape(-1))
        return total

    def _groups(self) -> Iterator[tuple[int, int]]:
        """Lowest qubit and number of qubits of each group."""
        low = 0
        for width in self._widths:
            yield low, width
            low += width


def _product(matrix: Tensor, state: Tensor, out: Tensor, low: int) -> None:
    """Apply a real matrix [2^w, 2^w] to the qubits low ... low+w-1 of states [m, A, B, Q]."""
    problems, rows = state.shape[-1], len(matrix)
    shape = (-1, rows, (2 * problems) << low)  # qubits above; the group; qubits below, problems, re and im
    before, after = torch.view_as_real(state).view(shape), torch.view_as_real(out).view(shape)
    torch.bmm(matrix.expand(len(before), rows, rows), before, out=after)


def _mixers(angles: FloatArray, width: int) -> FloatArray:
    """exp(a/2 Σ_j R_j) on `width` qubits for every angle, float64 [steps, 2^width, 2^width]."""
    c, s = np.cos(angles / 2), np.sin(angles / 2)
    one = np.array([[c, -s], [s, c]]).transpose(2, 0, 1)
    product = np.ones((len(angles), 1, 1))
    for _ in range(width):
        rows = 2 * product.shape[1]
        product = np.einsum("kij,kmn->kimjn", product, one).reshape(-1, rows, rows)
    return product


def _generator(width: int) -> FloatArray:
    """Σ_j R_j on `width` qubits, float64 [2^width, 2^width]."""
    total: FloatArray = np.zeros((1, 1))
    one = np.array([[0.0, -1.0], [1.0, 0.0]])
    for _ in range(width):
        total = np.kron(total, np.eye(2)) + np.kron(np.eye(len(total)), one)  # type: ignore[assignment]  # stub
    return total
