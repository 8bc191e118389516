"""Checks of the tensors of an Ising model; each raises an error of one sentence that names the argument."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diabat.checks import ArgumentError

DTYPES = (torch.float32, torch.float64)
"""Dtypes of fields and couplings."""
_HINTS = {
    2: ("matrix", "(J + J.mT) / 2, or U + U.mT of an upper triangle U"),
    3: ("tensor", "diabat.ising.pack_three_body"),
}
# Numbers that numpy takes at once: they stay in the cache, and the rounding of a sum of their squares is less than 1 %.
_FEW = 1 << 16
_BLOCK = 256
_PLAIN = (Tensor, torch.nn.Parameter)


def plain_numbers(value: Any) -> np.ndarray | None:
    """The numbers of a tensor on the CPU, without a copy, if they are few or contiguous; None if torch must read them.

    numpy checks them in a tenth to a half of the time that the calls of torch take.
    """
    # Transforms of torch.func hide numbers, torch.compile has none, and complex views may be negated lazily.
    if (
        type(value) in _PLAIN
        and value.is_cpu
        and value.dtype in DTYPES
        and value.layout == torch.strided
        and not value.is_nested
        and (value.numel() <= _FEW or value.is_contiguous())
        and not value.is_neg()
        and not torch._C._are_functorch_transforms_active()
        and not torch.compiler.is_compiling()
    ):
        return value.detach().numpy() if value.requires_grad else value.numpy()
    return None


def is_mapped(value: Tensor) -> bool:
    """Whether ``torch.func.vmap`` maps over a tensor, itself or below other transforms, and so hides its values."""
    while torch._C._functorch.is_functorch_wrapped_tensor(value):
        if torch._C._functorch.is_batchedtensor(value):
            return True
        value = torch._C._functorch.get_unwrapped(value)
    return False


class IsingError(ArgumentError):
    """A problem that is not a valid Ising model; the message names argument, expected and got."""


def check_tensor(name: str, value: Any, expected: str = "a tensor, an array or a list") -> None:
    """Raise IsingError unless a value is a dense tensor with data."""
    if not isinstance(value, Tensor):
        fix = "; diabat.ising.from_bqm reads it" if hasattr(value, "vartype") else ""  # a model of dimod
        fix = "; diabat.ising.from_qubo and Ising.from_dict read names" if isinstance(value, dict) else fix
        raise IsingError(name, expected, f"{type(value).__name__}{fix}")
    if value.is_meta:
        raise IsingError(name, "a tensor with data", "one on the device meta")
    if value.is_nested:
        raise IsingError(name, "a dense tensor", "a nested one; pad it, and hide the padding with visible")
    if value.is_quantized:
        raise IsingError(name, "a tensor of numbers", f"{value.dtype}; use .dequantize()")
    if value.layout != torch.strided:
        raise IsingError(name, "a dense tensor", f"the layout {value.layout}; use .to_dense()")


def check_finite(name: str, value: Tensor) -> None:
    """Raise IsingError, with the first index, unless all values are finite, or if ``vmap`` hides them."""
    if is_mapped(value):
        raise IsingError(name, "values that can be read", "those that torch.func.vmap maps; use check=False")
    if value.dtype in DTYPES and is_within(value, sys.float_info.max):
        return
    if (index := first_true(~torch.isfinite(value))) is not None:
        raise IsingError(name, "finite values", f"{value[index].item()} at index {index}")


def first_true(mask: Tensor) -> tuple[int, ...] | None:
    """Index of the first True of a mask; None if there is none."""
    return tuple(mask.nonzero()[0].tolist()) if bool(mask.any()) else None


def check_symmetric(name: str, value: Tensor, order: int) -> None:
    """Raise IsingError unless a tensor is symmetric in its last axes, and 0 where two of their indices coincide."""
    value = value.detach()
    for axis in range(1, order):
        flipped = value.transpose(-order, -order + axis)
        if not _is_mirrored(value, -order, axis - order):
            at = [int(i) for i in np.unravel_index(int((value - flipped).abs().argmax()), value.shape)]
            other = at.copy()
            other[-order], other[axis - order] = at[axis - order], at[-order]
            kind, hint = _HINTS[order]
            got = " and ".join(f"{value[tuple(i)]:.6g} at {i}" for i in (at, other))
            raise IsingError(name, f"a symmetric {kind}", f"{got}; use {hint}")
        if worst := float(value.diagonal(0, -order, axis - order).abs().max()):
            raise IsingError(name, "zero where two indices coincide", f"{worst:.3g} on the diagonal")


def _is_mirrored(value: Tensor, i: int, j: int) -> bool:
    """Whether a tensor is symmetric in two of its axes, up to rounding; block by block, which stays in the cache."""
    blocks = [rows.split(_BLOCK, j) for rows in value.split(_BLOCK, i)]
    for a, row in enumerate(blocks):
        for b in range(a, len(row)):
            one, other = row[b], blocks[b][a].transpose(i, j)
            # J = (U + Uᵀ)/2 is symmetric to the last bit; larger differences are mistakes.
            if not torch.equal(one, other) and not torch.allclose(one, other, rtol=1e-6, atol=1e-12):
                return False
    return True


def is_symmetric(numbers: np.ndarray, order: int) -> bool:
    """Whether few numbers are symmetric to the last bit in their last axes, and zero where two indices coincide."""
    if numbers.size > _FEW:
        return False
    whole, axes = numbers.tobytes(), range(1 - order, 0)
    return all(whole == numbers.swapaxes(-order, axis).tobytes() for axis in axes) and not any(
        np.count_nonzero(numbers.diagonal(0, -order, axis)) for axis in axes
    )


def sum_of_squares(numbers: np.ndarray) -> float:
    """The sum of squares; not finite unless all numbers are, and then only if it overflows."""
    if numbers.size <= _FEW:
        return float(np.vdot(numbers, numbers))
    row = numbers.reshape(-1)
    parts = (row[start : start + _FEW] for start in range(0, len(row), _FEW))
    return sum(float(np.vdot(part, part)) for part in parts)


def check_spins(spins: Any, fields: Tensor) -> torch.Size:
    """Return the broadcast shape of spins and fields."""
    check_tensor("spins", spins)
    if spins.dtype == torch.bool or spins.is_complex():
        raise IsingError("spins", "integers or floats (-1, 0, +1)", f"dtype {spins.dtype}")
    shape = broadcast_shape(spins.shape, fields.shape) or torch.Size()
    if shape[-1:] != fields.shape[-1:]:
        expected, got = list(fields.shape), list(spins.shape)
        raise IsingError("spins", f"a shape that broadcasts against {expected}", got)
    return shape


def check_clamped(spins: Any, fields: Tensor, clamped: Tensor | None = None) -> torch.Size:
    """Return the shape of the clamped batch; ``clamped`` are the values of spins that are already."""
    shape = check_spins(spins, fields)
    if (at := first_true((spins != 0) & (spins.abs() != 1))) is not None:
        raise IsingError("spins", "-1, 0 (free) or +1", f"{spins[at].item()} at index {list(at)}")
    if clamped is not None and (at := first_true(spins.to(clamped) * clamped < 0)) is not None:
        raise IsingError("spins", "a free spin or its clamped value", f"the opposite at {list(at)}")
    return shape


def check_within(name: str, value: Tensor, limit: float) -> None:
    """Raise IsingError, with the first index, unless a tensor has data, and all are finite and at most ``limit``."""
    check_tensor(name, value)
    check_finite(name, value)
    if (index := first_true(value.abs() > limit)) is not None:
        fix = "hide spins with visible, and keys with a bool mask, rather than by large fields"
        expected = f"numbers up to {limit:g}, so that float64 still resolves smaller ones"
        raise IsingError(name, expected, f"{value[index].item():.3g} at index {index}; {fix}")


def is_within(value: Tensor, limit: float) -> bool:
    """Whether all numbers are at most ``limit`` in magnitude; False if one is NaN."""
    if value.numel() == 0:
        return True
    numbers = plain_numbers(value)
    # No number is larger than the root of the sum of squares.
    if numbers is not None and 1.01 * math.sqrt(sum_of_squares(numbers)) <= limit:
        return True
    least, most = torch.aminmax(value.detach())  # a tenth of the time of vector_norm, NaN included
    return float(torch.maximum(-least, most)) <= limit


def broadcast_shape(*shapes: torch.Size) -> torch.Size | None:
    """Return the shape that all shapes broadcast to; None if there is none."""
    try:  # the first use of torch's function loads sympy, a quarter of a second
        return torch.Size(np.broadcast_shapes(*shapes))
    except ValueError:
        return None
