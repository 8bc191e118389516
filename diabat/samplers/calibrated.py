"""Inverse temperatures for programming: predicted, fitted once, or fitted to every batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from diabat.checks import ArgumentError, is_number
from diabat.circuits import Betas
from diabat.ising import Ising, pack_couplings
from diabat.samplers.answers import Samples
from diabat.samplers.pseudolikelihood import BetaFit, fit_betas

Calibration = Literal["predicted", "fitted", "per_batch", "none"]
MODES: tuple[Calibration, ...] = ("predicted", "fitted", "per_batch", "none")

REFERENCE_STRENGTH = 0.5
"""g of the reference problems of mode ``fitted``: h ~ N(0, g), J ~ N(0, g/√n), n = 6."""

# Prior of a fitted scale: theory predicts 1 ± this; fit and prior are combined by inverse variances.
_PRIOR = 0.3


def reference_problems(strength: float = REFERENCE_STRENGTH, spins: int = 6) -> Ising:
    """16 Sherrington-Kirkpatrick problems of n = 6 spins from a fixed seed, each with its J, float64 [16, n]."""
    generator = torch.Generator().manual_seed(0)
    n, instances = spins, 16
    h = strength * torch.randn(instances, n, generator=generator, dtype=torch.float64)
    J = strength / n**0.5 * torch.randn(instances, n * (n - 1) // 2, generator=generator, dtype=torch.float64)
    return Ising(h, pack_couplings(J, n))


def corrected(betas: Betas, fit: BetaFit) -> Betas:
    """Multiply inverse temperatures by the fitted scales; an uncertain or missing fit changes little."""
    return Betas(
        betas.beta_h * _shrunk(fit.field, fit.field_error),
        betas.beta_J * _shrunk(fit.coupling, fit.coupling_error),
    )


def fit_reads(ising: Ising, draw: Callable[[Ising], Samples]) -> BetaFit:
    """Fit to reads of the given problems."""
    samples = draw(ising)
    return fit_betas(ising, samples.spins, samples.weights)


def _shrunk(value: float | None, error: float | None) -> float:
    if value is None or error is None:
        return 1.0
    weight = _PRIOR**2 / (_PRIOR**2 + error**2)
    # Scales outside this range are failed fits; programming divides by them, so they must not be near 0.
    return min(max(1.0 + weight * (value - 1.0), 0.2), 5.0)


def check_strength(strength: float | None, calibration: str) -> float:
    """Return ``calibration_strength``, or refuse it if no reference problems are fitted."""
    if strength is None:
        return REFERENCE_STRENGTH
    if not (is_number(strength) and 0 < strength <= 10):
        raise ArgumentError(
            "calibration_strength", f"expected a coupling strength in (0, 10], got {strength!r}."
        )
    if calibration != "fitted":
        raise ArgumentError(
            "calibration_strength",
            f"cannot be combined with calibration={calibration!r}, got {strength!r}; "
            "only calibration='fitted' has reference problems.",
        )
    return float(strength)


def check_betas(betas: tuple[float, float] | None, calibration: str | None) -> Betas | None:
    """Check ``betas`` of the backend: two positive numbers, which replace a calibration."""
    if betas is None:
        return None
    if calibration is not None:
        raise ArgumentError("calibration", f"cannot be combined with betas, got {calibration!r}.")
    values = tuple(betas) if isinstance(betas, (tuple, list)) else ()
    if len(values) != 2 or not all(is_number(b) and 0 < b < float("inf") for b in values):
        raise ArgumentError("betas", f"expected two positive numbers (beta_h, beta_J), got {betas!r}.")
    return Betas(float(values[0]), float(values[1]))
