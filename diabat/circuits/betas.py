"""Effective inverse temperatures of a diabatic anneal, predicted from its schedule or from its plan."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diabat.circuits.schedules import AnnealingSchedule, FloatArray, check_annealing_time
from diabat.circuits.trotter import TrotterPlan

# Six Gauss-Legendre nodes per piece integrate sin over one radian to 1e-13.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)
_PIECES_AT_ONCE = 1 << 16


class Betas(NamedTuple):
    """Inverse temperatures of one-body terms (beta_h) and two-body terms (beta_J), dimensionless."""

    beta_h: float
    beta_J: float  # noqa: N815 - the field's name


def predicted_beta(schedule: AnnealingSchedule, annealing_time_ns: float) -> Betas:
    """Inverse temperatures at which programmed fields and couplings appear in the samples.

    First-order perturbation theory in the problem term, starting from |+>^n and reading out the spins, gives

        P(s) ∝ exp( beta_h Σ h_j s_j + beta_J Σ J_ij s_i s_j ),
        beta_k = 2π ∫_0^{t_a} B(t) sin( 2π k ∫_t^{t_a} A dt' ) dt,     k = 1: beta_h,   k = 2: beta_J

    with A, B in GHz and t in ns, exact in the limit of weak h and J. To sample at beta = 1, program
    h / beta_h and J / beta_J: one number for both is wrong at first order.

    Args:
        schedule: A(s) and B(s).
        annealing_time_ns: t_a in ns.

    Raises:
        ValueError: The annealing time is not a positive finite number.
    """
    time = check_annealing_time(annealing_time_ns)
    return Betas(_beta(schedule, time, 1), _beta(schedule, time, 2))


def plan_betas(plan: TrotterPlan) -> Betas:
    """Inverse temperatures of any plan, learned ones included: the discrete form of `predicted_beta`.

        beta_h = Σ_k b_k sin(A_k),     beta_J = Σ_k c_k sin(2 A_k),     A_k = Σ_{l ≥ k} a_l

    with the angles a, b, c of `diabat.circuits.trotter`. Derivation: seen from the end of the plan, the mixer
    layers that follow problem layer k turn its spin operators into S(A_k) = S cos A_k + Y sin A_k with
    Y = (i/2) [X, S], for which i [S, Y] = 2 X, and X = 1 on |+>. To first order in the problem layers
    exp(i/2 (b_k Σ h_j S_j + c_k Σ J_ij S_i S_j)) then

        <S_j> = Σ_k (i/2) b_k h_j <[S_j, S_j(A_k)]> = h_j Σ_k b_k sin A_k,
        <S_i S_j> = Σ_k (i/2) c_k J_ij <[S_i S_j, S_i(A_k) S_j(A_k)]> = J_ij Σ_k 2 c_k sin A_k cos A_k.

    A plan cut from an anneal gives `predicted_beta` up to its Trotter error.

    Args:
        plan: Angles in radians.

    Returns:
        beta_h and beta_J, dimensionless; they may be negative or 0 for plans that are no anneal.
    """
    ahead = mixer_angle_ahead(plan)
    beta_h = float(plan.field_angles @ np.sin(ahead))
    return Betas(beta_h, float(plan.coupling_angles @ np.sin(2 * ahead)))


def mixer_angle_ahead(plan: TrotterPlan) -> FloatArray:
    """A_k = Σ_{l ≥ k} a_l: the turn of all mixer layers after problem layer k, in radians, float64 [steps]."""
    return np.cumsum(plan.mixer_angles[::-1])[::-1]


def _beta(schedule: AnnealingSchedule, time: float, body: int) -> float:
    """beta_k for k = `body`, by pieces of the table over which the sine turns by at most a radian."""
    s, a = schedule.s, schedule.A_GHz
    turn = 2 * np.pi * body * time * np.maximum(a[1:], a[:-1]) * np.diff(s)
    pieces = np.maximum(1, np.ceil(turn)).astype(np.int64)
    ends = np.cumsum(pieces)
    total_phase = float(schedule.integral_A(1.0))
    beta = 0.0
    for start in range(0, int(ends[-1]), _PIECES_AT_ONCE):
        piece = np.arange(start, min(start + _PIECES_AT_ONCE, int(ends[-1])))
        segment = np.searchsorted(ends, piece, side="right")
        width = np.diff(s)[segment] / pieces[segment]
        left = s[segment] + (piece - (ends - pieces)[segment]) * width
        at = left[:, None] + width[:, None] * (_NODES + 1) / 2
        phase = 2 * np.pi * body * time * (total_phase - schedule.integral_A(at))
        beta += float(np.sum(schedule.B(at) * np.sin(phase) * _WEIGHTS / 2 * width[:, None]))
    return 2 * np.pi * time * beta
