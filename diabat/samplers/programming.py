"""Problems in hardware units: divided by the inverse temperatures, with control noise, in batches for an engine."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
from torch import Tensor

from diabat.checks import ArgumentError, is_finite, is_positive
from diabat.circuits import Batch, Betas
from diabat.circuits.engines.engine import Strength
from diabat.circuits.problem import check_finite, check_stack
from diabat.circuits.schedules import FloatArray
from diabat.ising import Ising
from diabat.samplers.flat import Flat, flat

Calibration = Literal["predicted", "none"]


def check_betas(betas: tuple[float, float] | None, calibration: str | None) -> Betas | None:
    """Check ``betas`` of the backend: two positive numbers, which replace a calibration."""
    if betas is None:
        return None
    if calibration is not None:
        raise ArgumentError("calibration", f"cannot be combined with betas, got {calibration!r}.")
    values = tuple(betas) if isinstance(betas, (tuple, list)) else ()
    if len(values) != 2 or not all(map(is_positive, values)):
        raise ArgumentError("betas", "two positive numbers (beta_h, beta_J)", f"{betas!r}")
    return Betas(float(values[0]), float(values[1]))


class Programmed(NamedTuple):
    """A batch of problems as an engine runs it.

    Attributes:
        flat: The batch.
        batches: Programmed problems of each of its groups.
        bounds: Upper bounds of the strengths; that of the fields is exact without noise.
    """

    flat: Flat
    batches: list[Batch]
    bounds: Strength


class ControlNoise(NamedTuple):
    """Errors of the programmed values: normal and independent for every problem, in hardware units.

    Attributes:
        fields: Standard deviation σ of each programmed field.
        couplings: σ of each programmed coupling.
    """

    fields: float = 0.0
    couplings: float = 0.0


def check_noise(noise: float | tuple[float, float]) -> ControlNoise:
    """Check ``noise`` of the backend: σ of fields and couplings, or one number for both."""
    values = tuple(noise) if isinstance(noise, (tuple, list)) else (noise, noise)
    if len(values) != 2 or not all(is_finite(value) and value >= 0 for value in values):
        expected = "a standard deviation >= 0 in hardware units, or two of them (fields, couplings)"
        raise ArgumentError("noise", expected, f"{noise!r}")
    return ControlNoise(float(values[0]), float(values[1]))


def to_hardware_units(ising: Ising, betas: Betas, noise: ControlNoise, seed: int) -> Programmed:
    """Program h / beta_h and J / beta_J, with noise drawn from the seed, and group problems that share couplings.

    ValueError if a programmed value overflows, or J of an unchecked problem is not symmetric with zero diagonal.
    """
    batch, n, matrix = flat(ising), ising.fields.shape[-1], ising.couplings
    h = batch.visible_values(_double(ising.fields) / betas.beta_h)
    J = np.zeros((1, n, n)) if matrix is None else _double(matrix).reshape(-1, n, n) / betas.beta_J
    norm = math.sqrt(np.vdot(J, J))
    bounds = Strength(abs(h).max(initial=0.0).item(), math.sqrt(n) * norm, norm)
    if not (bounds.field < math.inf and bounds.row_norm < math.inf):
        check_finite("fields", h)
        check_finite("couplings", J)
    if not np.array_equal(J, J.swapaxes(1, 2)) or np.einsum("...jj->...j", J).any():
        J = (J + J.swapaxes(1, 2)) / 2 if ising.check else check_stack(J)  # the last bits may be asymmetric
    couplings = []
    for group in batch.unpadded:
        groups, m = group.spins.shape
        spins, own = group.spins, J if group.in_order else J[group.couplings]
        if m < n:
            own = own[np.arange(groups)[:, None, None], spins[:, :, None], spins[:, None]]
        # A single problem needs no phase table per lane, which would more than double its memory.
        couplings.append(own[0] if groups == 1 else own)
    batches = Batch.several(batch.unpadded_values(h), couplings, bounds)
    if any(noise):
        random = np.random.default_rng([seed, 1])
        batches = [_noisy(one, noise, random) for one in batches]
        strengths = zip(bounds, *(one.strength for one in batches), strict=True)
        bounds = Strength(*[max(sizes) for sizes in strengths])
    return Programmed(batch, batches, bounds)


def _double(values: Tensor) -> FloatArray:
    array: FloatArray = values.detach().cpu().resolve_neg().numpy().astype(np.float64, copy=False)
    return array


def _noisy(batch: Batch, noise: ControlNoise, random: np.random.Generator) -> Batch:
    fields = batch.fields + noise.fields * random.standard_normal(batch.fields.shape)
    if not noise.couplings:
        return Batch(fields, batch.couplings)
    n = batch.num_spins
    upper = np.triu(random.standard_normal((batch.num_problems, n, n)), 1)
    couplings = batch.couplings + noise.couplings * (upper + upper.swapaxes(1, 2))
    return Batch(fields, couplings[0] if len(couplings) == 1 else couplings)
