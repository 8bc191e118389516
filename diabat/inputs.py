"""Conversion of the arguments of a problem: arrays, nested lists and other dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from diabat.ising_checks import DTYPES, IsingError, check_tensor

_LISTS = (np.ndarray, list, tuple)


def as_fields(value: Any) -> Any:
    """Convert fields: float64 stays, a list gets torch's default dtype or float32, all else becomes float32."""
    if isinstance(value, Tensor) and value.dtype in DTYPES:
        return value
    dtype = torch.float32
    if isinstance(value, list | tuple):
        dtype = torch.promote_types(torch.get_default_dtype(), dtype)
    elif isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.dtype.itemsize >= 8:
        dtype = torch.float64
    return as_numbers("fields", value, torch.empty(0, dtype=dtype))


def as_numbers(name: str, value: Any, like: Tensor) -> Any:
    """Convert integers, narrow floats, arrays and lists; all other values are unchanged, to be checked later."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        if value.dtype in DTYPES or value.dtype == torch.bool or value.is_complex():
            return value
        check_tensor(name, value)
        return value.to(like.dtype)
    if not isinstance(value, _LISTS):
        return value
    array = _array(name, value)
    if array.dtype.kind not in "iuf" and array.size:
        raise IsingError(name, f"expected real numbers, got an array of dtype {array.dtype}.")
    # Through float64, because torch accepts the native byte order only.
    with np.errstate(over="ignore"):  # infinite values are refused later, with their index
        wide = torch.from_numpy(np.array(array, dtype=np.float64, order="C"))
    return wide.to(like)


def as_visible(value: Any, fields: Tensor) -> Any:
    """Convert an array or a list to a boolean tensor on the device of the fields."""
    if value is None or not isinstance(value, _LISTS):
        return value
    array = _array("visible", value)
    if array.dtype != np.bool_:
        raise IsingError("visible", f"expected dtype bool, got {array.dtype}.")
    return torch.from_numpy(array.copy()).to(fields.device)


def as_index(value: Any) -> Tensor:
    """Convert the pairs of edges to int64 [E, 2]."""
    if isinstance(value, _LISTS):
        value = _array("index", value)
        if value.dtype.kind in "iu" or not value.size:
            value = torch.from_numpy(np.array(value, dtype=np.int64, order="C"))
    elif not isinstance(value, Tensor):
        raise IsingError("index", f"expected a tensor, an array or a list, got {type(value).__name__}.")
    if not isinstance(value, Tensor) or not _is_integer(value):
        raise IsingError("index", f"expected integers, got dtype {value.dtype}.")
    value = value.detach() if value.numel() else value.reshape(-1, 2)
    if value.ndim != 2 or value.shape[1] != 2:
        hint = "; transpose it" if value.ndim == 2 and value.shape[0] == 2 else ""
        raise IsingError("index", f"expected pairs of spins [E, 2], got shape {list(value.shape)}{hint}.")
    return value.to(torch.int64)


def _is_integer(value: Tensor) -> bool:
    return not (value.dtype == torch.bool or value.is_floating_point() or value.is_complex())


def as_values(value: Any, index: Tensor) -> Tensor:
    """Convert the values of edges, arrays and lists to float64, and require one for each pair."""
    wide = torch.float32 if isinstance(value, Tensor) else torch.float64
    values: Tensor = as_numbers("values", value, torch.empty(0, dtype=wide, device=index.device))
    check_tensor("values", values)
    if not values.is_floating_point():
        raise IsingError(
            "values", f"expected a dense tensor of numbers, got {values.dtype}, {values.layout}."
        )
    if values.ndim < 1 or values.shape[-1] != len(index):
        raise IsingError(
            "values",
            f"expected one value for each of {len(index)} pairs, [*lead, E], got {list(values.shape)}.",
        )
    if index.device != values.device:
        raise IsingError("index", f"expected the device of the values, {values.device}, got {index.device}.")
    return values


def _array(name: str, value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    if _holds_tensor(value):
        raise IsingError(name, "expected numbers, got a list of tensors; use torch.stack.")
    try:
        return np.array(value)
    except ValueError as error:
        raise IsingError(name, "expected nested lists of equal lengths, got unequal ones.") from error


def _holds_tensor(value: Any) -> bool:
    """Whether an item is a tensor: numpy would convert it, and lose its autograd graph."""
    if isinstance(value, list | tuple):
        return any(_holds_tensor(item) for item in value)
    return isinstance(value, Tensor)
