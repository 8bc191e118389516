"""Trotter plans: the steps of an anneal, as angles in radians. The plan is the only input of every engine.

**Signs and spins.** With S_j the operator whose value is +1 where bit j of the state index is 1 and -1 where it
is 0 (S_j = -Z_j in Qiskit's convention), a plan prepares |+>^n and applies, for k = 0, 1, ...

    U_k = exp( i a_k/2 Σ_j X_j ) · exp( i/2 ( b_k Σ_j h_j S_j + c_k Σ_{i<j} J_ij S_i S_j ) )

with a = `mixer_angles`, b = `field_angles`, c = `coupling_angles`; the problem layer acts first. In Qiskit's
gates that is RZ(b_k h_j), RZZ(-c_k J_ij), RX(-a_k). The programmed fields h and couplings J carry diabat's
sign: positive h_j makes s_j = +1 likelier, positive J_ij makes spins i and j agree. D-Wave minimises
Σ h z + Σ J z z, so it is programmed with -h and -J and read as z; here the map S = -Z turns the sign of h,
and the minus in RZZ that of J. Nothing else in `diabat.circuits` flips a sign. State index and spins follow
diabat: bit j is spin j, and bit 1 means +1.

For an anneal of A(s), B(s) [GHz] over t_a [ns], a = 2π ∫A dt and b = c = 2π ∫B dt over the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from diabat.checks import ArgumentError
from diabat.circuits.schedules import FloatArray

MAX_ANGLE = 1e8
"""Largest angle of a plan in radians; at this size engines agree to about 1e-8."""


@dataclass(frozen=True, eq=False)
class TrotterPlan:
    """Angles of each Trotter step, in radians, for the unitary in the module docstring.

    The three arrays need not come from an anneal: non-uniform grids, higher-order splittings (negative angles) and
    learned angles are plans as well.

    Attributes:
        field_angles: b, float64 [steps]; the rotation angle of a spin with unit field.
        coupling_angles: c, float64 [steps]; the rotation angle of a pair with unit coupling.
        mixer_angles: a, float64 [steps].
        label: Description of the plan, for reports.

    Raises:
        ValueError: The arrays are empty, differ in length, are not finite or hold an angle above 10^8 in magnitude.
    """

    field_angles: FloatArray
    coupling_angles: FloatArray
    mixer_angles: FloatArray
    label: str = ""

    def __post_init__(self) -> None:
        """Copy the angles into read-only arrays and check them."""
        for key in ("field_angles", "coupling_angles", "mixer_angles"):
            angles = np.array(getattr(self, key), dtype=np.float64)
            if angles.ndim != 1 or not len(angles) or len(angles) != np.size(self.field_angles):
                steps = max(np.size(self.field_angles), 1)
                raise ArgumentError(key, f"shape ({steps},)", angles.shape)
            if not np.isfinite(angles).all():
                at = int(np.flatnonzero(~np.isfinite(angles))[0])
                raise ArgumentError(key, "finite angles", f"{angles[at]} at step {at}")
            if (np.abs(angles) > MAX_ANGLE).any():
                at = int(np.abs(angles).argmax())
                why = "because double precision does not resolve larger angles"
                got = f"{angles[at]:g} at step {at}"
                raise ArgumentError(key, f"at most {MAX_ANGLE:g} rad, {why}", got)
            angles.flags.writeable = False
            object.__setattr__(self, key, angles)

    @property
    def steps(self) -> int:
        """Number of Trotter steps."""
        return len(self.field_angles)

    @cached_property
    def largest_angles(self) -> tuple[float, float]:
        """Largest |b| and |c|."""
        return float(np.abs(self.field_angles).max()), float(np.abs(self.coupling_angles).max())
