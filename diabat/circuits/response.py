"""Response of an anneal to weak problems: effective inverse temperatures at first order, and the second order.

At second order a fast anneal departs from Boltzmann's law.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diabat.checks import ArgumentError
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.schedules import AnnealingSchedule, FloatArray, check_annealing_time, named

# Six Gauss-Legendre nodes per piece integrate sin over one radian to 1e-13.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)
_PIECES_AT_ONCE = 1 << 16


class Betas(NamedTuple):
    """Inverse temperatures of one-body terms (beta_h) and two-body terms (beta_J), dimensionless."""

    beta_h: float
    beta_J: float  # noqa: N815 - the field's name


class Response(NamedTuple):
    """Second-order coefficients relative to the Boltzmann law at beta = 1, which has 1 for both."""

    c_hJ: float  # noqa: N815 - field through coupling
    c_JJ: float  # noqa: N815 - coupling through coupling


def predicted_beta(schedule: str | AnnealingSchedule, annealing_time_ns: float) -> Betas:
    """Inverse temperatures at which programmed fields and couplings appear in the samples.

    First-order perturbation theory in the problem term, starting from |+>^n and reading out the spins, gives

        P(s) ∝ exp( beta_h Σ h_j s_j + beta_J Σ J_ij s_i s_j ),
        beta_k = 2π ∫_0^{t_a} B(t) sin( 2π k ∫_t^{t_a} A dt' ) dt,     k = 1: beta_h,   k = 2: beta_J

    with A, B in GHz and t in ns, exact in the limit of weak h and J. To sample at beta = 1, program
    h / beta_h and J / beta_J: one number for both is wrong at first order.

    Args:
        schedule: A(s) and B(s), or the name of a built-in schedule.
        annealing_time_ns: t_a in ns.

    Raises:
        ValueError: The annealing time is not a positive finite number.
    """
    schedule, time = named(schedule), check_annealing_time(annealing_time_ns)
    return Betas(_beta(schedule, time, 1), _beta(schedule, time, 2))


def plan_betas(plan: TrotterPlan) -> Betas:
    """Inverse temperatures of any plan, learned ones included: the discrete form of `predicted_beta`.

        beta_h = Σ_k b_k sin(A_k),     beta_J = Σ_k c_k sin(2 A_k),     A_k = Σ_{l ≥ k} a_l

    with the angles a, b, c of `diabat.circuits.plan`. Derivation: seen from the end of the plan, the mixer
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


def second_order_response(plan: TrotterPlan) -> Response:
    """Second-order response of a plan relative to the Boltzmann law, exact in the limit of weak problems.

    With h/beta_h and J/beta_J programmed (`plan_betas`), m_2 = c_hJ J_12 h_1 for a field on spin 1 alone, and
    <s_1 s_3> = c_JJ J_12 J_23 for a chain without fields:

        beta_h beta_J c_hJ = Σ_k Σ_{l<k} c_k b_l sin(A_k) sin(A_l - A_k)
        beta_J² c_JJ       = Σ_k c_k² sin²(A_k) + 2 Σ_k Σ_{l<k} c_k c_l sin(A_k) sin(2 A_l - A_k)

    with a, b, c, A_k as in `plan_betas`. They are the second-order terms of the Heisenberg picture, nested
    commutators [[O, V_k], V_l] with the later layer k inside, of V_k = ½ (b_k Σ h_j S_j(A_k) +
    c_k Σ J_ij S_i(A_k) S_j(A_k)) between |+> states. For O = S_2 only the coupling can come last: the field
    has to act on spin 1 before the coupling carries it over. For O = S_1 S_3 either coupling may come last
    (hence the 2), and both may stand in the same layer (hence the first sum). Cost: linear in the steps.

    A fast anneal has 0.42 and 0.61, whatever its time (0.002 to 0.02 microseconds) and device.

    Args:
        plan: Angles in radians.

    Returns:
        c_hJ and c_JJ, dimensionless.

    Raises:
        ValueError: beta_h or beta_J of the plan is 0, so problems cannot be programmed.
    """
    beta_h, beta_j = plan_betas(plan)
    if not (beta_h and beta_j):
        raise ArgumentError("plan", "beta_h and beta_J other than 0", f"{beta_h:g} and {beta_j:g}")
    ahead, b, c = mixer_angle_ahead(plan), plan.field_angles, plan.coupling_angles
    inner = c * np.sin(ahead)
    field = inner @ _sine_before(b, ahead, ahead)
    pair = inner @ inner + 2 * (inner @ _sine_before(c, 2 * ahead, ahead))
    return Response(float(field) / (beta_h * beta_j), float(pair) / beta_j**2)


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


def _sine_before(weight: FloatArray, early: FloatArray, late: FloatArray) -> FloatArray:
    """Σ_{l<k} weight_l sin(early_l - late_k) for all k, by the addition theorem."""
    sine = np.cumsum(weight * np.sin(early)) - weight * np.sin(early)
    cosine = np.cumsum(weight * np.cos(early)) - weight * np.cos(early)
    result: FloatArray = sine * np.cos(late) - cosine * np.sin(late)
    return result
