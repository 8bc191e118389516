"""Effective inverse temperatures of a diabatic anneal, predicted from its schedule."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diabat.circuits.schedules import AnnealingSchedule, check_annealing_time

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
