"""What a plan does to weak problems at second order, where a fast anneal departs from Boltzmann's law."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diabat.checks import ArgumentError
from diabat.circuits.betas import mixer_angle_ahead, plan_betas
from diabat.circuits.schedules import FloatArray
from diabat.circuits.trotter import TrotterPlan


class Response(NamedTuple):
    """Second-order coefficients relative to the Boltzmann law at beta = 1, which has 1 for both."""

    c_hJ: float  # noqa: N815 - field through coupling
    c_JJ: float  # noqa: N815 - coupling through coupling


def second_order_response(plan: TrotterPlan) -> Response:
    """How much of the Boltzmann response at second order a plan delivers, exactly in the limit of weak problems.

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
        ValueError: beta_h or beta_J of the plan is 0, so that nothing can be programmed.
    """
    beta_h, beta_j = plan_betas(plan)
    if not (beta_h and beta_j):
        raise ArgumentError(
            "plan", f"expected beta_h and beta_J other than 0, got {beta_h:g} and {beta_j:g}."
        )
    ahead, b, c = mixer_angle_ahead(plan), plan.field_angles, plan.coupling_angles
    inner = c * np.sin(ahead)
    field = inner @ _sine_before(b, ahead, ahead)
    pair = inner @ inner + 2 * (inner @ _sine_before(c, 2 * ahead, ahead))
    return Response(float(field) / (beta_h * beta_j), float(pair) / beta_j**2)


def _sine_before(weight: FloatArray, early: FloatArray, late: FloatArray) -> FloatArray:
    """Σ_{l<k} weight_l sin(early_l - late_k) for all k, by the addition theorem."""
    sine = np.cumsum(weight * np.sin(early)) - weight * np.sin(early)
    cosine = np.cumsum(weight * np.cos(early)) - weight * np.cos(early)
    result: FloatArray = sine * np.cos(late) - cosine * np.sin(late)
    return result
