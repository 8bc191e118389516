"""Checks of programmed fields and couplings, tables over all spin states, and a reference simulation."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from diabat.checks import ArgumentError
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.schedules import FloatArray


def check_fields(fields: ArrayLike, ndim: int) -> FloatArray:
    """Fields as float64, [n] (ndim 1) or [Q, n] (ndim 2).

    Raises:
        ValueError: Wrong number of dimensions, no spin, or a value that is not finite.
    """
    array = np.asarray(fields, dtype=np.float64)
    if array.ndim != ndim or array.shape[-1] < 1:
        shape = "[n]" if ndim == 1 else "[Q, n]"
        raise ArgumentError("fields", f"expected shape {shape} with n >= 1, got {array.shape}")
    check_finite("fields", array)
    return array


def check_couplings(couplings: ArrayLike, n: int | None = None) -> FloatArray:
    """Couplings as float64 [n, n], symmetric with zero diagonal.

    Raises:
        ValueError: Wrong shape, a value that is not finite, an asymmetric matrix or a non-zero diagonal.
    """
    array = np.asarray(couplings, dtype=np.float64)
    size = n or (len(array) if array.ndim else 0)
    if not size or array.shape != (size, size):
        expected = "[n, n]" if n is None else (n, n)
        raise ArgumentError("couplings", f"expected shape {expected}, got {array.shape}")
    check_finite("couplings", array)
    if np.diagonal(array).any():
        at = int(np.flatnonzero(np.diagonal(array))[0])
        raise ArgumentError("couplings", f"expected a zero diagonal, got {array[at, at]:g} at spin {at}")
    gap = np.abs(array - array.T)
    # Symmetrised float32 matrices may differ in their last bits.
    if gap.max() > 1e-6 * np.abs(array).max():
        i, j = (int(k) for k in np.unravel_index(int(gap.argmax()), gap.shape))
        got = f"{array[i, j]:g} at ({i}, {j}) and {array[j, i]:g} at ({j}, {i})"
        fix = "use (J + J.T) / 2, or U + U.T of an upper triangle U"
        raise ArgumentError("couplings", f"expected a symmetric matrix, got {got}; {fix}")
    return (array + array.T) / 2


def check_finite(name: str, array: FloatArray) -> None:
    """Raise ValueError with the first value that is not finite, and its place."""
    if not np.isfinite(array).all():
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ArgumentError(name, f"expected finite values, got {array[at]} at {at}")


def check_batch(fields: ArrayLike, couplings: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Fields [Q, n] and couplings, [n, n] shared or [Q, n, n], as float64.

    Raises:
        ValueError: As `check_fields` and `check_couplings`; the message gives the index of the problem.
    """
    h = check_fields(fields, ndim=2)
    array = np.asarray(couplings, dtype=np.float64)
    if array.ndim < 3:
        return h, check_couplings(array, h.shape[1])
    if array.shape != (*h.shape, h.shape[1]):
        raise ArgumentError(
            "couplings", f"expected shape {(h.shape[1],) * 2} or {(*h.shape, h.shape[1])}, got {array.shape}"
        )
    return h, check_stack(array)


def check_stack(couplings: FloatArray) -> FloatArray:
    """Couplings of several problems [Q, n, n], symmetric with zero diagonal; errors as of `check_batch`."""
    if not len(couplings):
        return couplings
    flipped = couplings.swapaxes(1, 2)
    with np.errstate(invalid="ignore"):  # inf - inf; such a matrix is refused below
        gap, size = np.abs(couplings - flipped).max(axis=(1, 2)), np.abs(couplings).max(axis=(1, 2))
    suspects = ~(gap <= 1e-6 * size) | np.diagonal(couplings, axis1=1, axis2=2).any(axis=1)
    if suspects.any():
        at = int(suspects.argmax())
        try:
            check_couplings(couplings[at], couplings.shape[1])
        except ArgumentError as error:
            raise ArgumentError(error.argument, f"{error.reason}, in problem {at}") from None
    return (couplings + flipped) / 2


def spin_table(n: int) -> NDArray[np.int8]:
    """Spins of all states, int8 [2^n, n]: bit j of the row index is spin j, and bit 1 means +1."""
    bits = (np.arange(1 << n)[:, None] >> np.arange(n)) & 1
    return (2 * bits - 1).astype(np.int8)


def coupling_exponents(couplings: FloatArray) -> FloatArray:
    """Σ_{i<j} J_ij s_i s_j of all states, float64 [2^n], for J [n, n] symmetric with zero diagonal."""
    spins = spin_table(len(couplings)).astype(np.float64)
    exponents: FloatArray = ((spins @ couplings) * spins).sum(axis=1) / 2
    return exponents


def reference_probabilities(plan: TrotterPlan, fields: ArrayLike, couplings: ArrayLike) -> FloatArray:
    """Probabilities of all spin states after the plan, in complex128.

        |ψ> = U_{steps-1} … U_0 |+>^n,   P(s) = |<s|ψ>|²,   U_k as in `diabat.circuits.plan`.

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
