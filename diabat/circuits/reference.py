"""A plain state-vector simulation of a Trotter plan: the oracle the engines are held against."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from diabat.circuits.problem import check_couplings, check_fields, coupling_exponents, spin_table
from diabat.circuits.schedules import FloatArray
from diabat.circuits.trotter import TrotterPlan


def reference_probabilities(plan: TrotterPlan, fields: ArrayLike, couplings: ArrayLike) -> FloatArray:
    """Probabilities of all spin states after the plan, in complex128.

        |ψ> = U_{steps-1} … U_0 |+>^n,   P(s) = |<s|ψ>|²,   U_k as in `diabat.circuits.trotter`.

    Args:
        plan: Angles of the Trotter steps.
        fields: Programmed fields in diabat's sign, [Q, n].
        couplings: Programmed couplings in diabat's sign, [n, n], shared by the Q problems.

    Returns:
        float64 [Q, 2^n]; bit j of the state index is spin j, bit 1 means +1.

    Raises:
        ValueError: Arrays of wrong shape, not finite, or couplings not symmetric with zero diagonal.
    """
    h = check_fields(fields, ndim=2)
    problems, n = h.shape
    field_exponents = h @ spin_table(n).T.astype(np.float64)  # [Q, 2^n]
    pair_exponents = coupling_exponents(check_couplings(couplings, n))  # [2^n]
    psi = np.full((problems, 1 << n), 2.0 ** (-n / 2), dtype=np.complex128)
    for a, b, c in zip(plan.mixer_angles, plan.field_angles, plan.coupling_angles, strict=True):
        psi *= np.exp(0.5j * (b * field_exponents + c * pair_exponents))
        for j in range(n):
            pairs = psi.reshape(problems, -1, 2, 1 << j)  # the axis of length 2 is bit j
            flipped = pairs[:, :, ::-1, :]
            psi = (np.cos(a / 2) * pairs + 1j * np.sin(a / 2) * flipped).reshape(problems, -1)
    probabilities: FloatArray = np.abs(psi) ** 2
    return probabilities
