"""The arguments of a problem: arrays, nested lists and other dtypes are converted, and all values are checked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diabat.checks import as_float, did_you_mean, is_number
from diabat.ising.checks import (
    DTYPES,
    IsingError,
    broadcast_shape,
    check_finite,
    check_spins,
    check_symmetric,
    check_tensor,
    first_true,
    is_symmetric,
    plain_numbers,
    sum_of_squares,
)


def _is_array(value: Any) -> bool:
    """Whether a value is an array, a list, or a Series or DataFrame of pandas."""
    return isinstance(value, np.ndarray | list | tuple) or callable(getattr(value, "to_numpy", None))


def read_fields(value: Any) -> Tensor:
    """Fields [*batch, n]: float64 stays, a list gets torch's default dtype or float32, all else becomes float32."""
    numbers = plain_numbers(value)
    if numbers is not None and numbers.ndim and numbers.size and math.isfinite(sum_of_squares(numbers)):
        return value  # most fields, by a tenth of the calls
    if not isinstance(value, Tensor) or value.dtype not in DTYPES:
        dtype = torch.float32
        if isinstance(value, list | tuple):
            dtype = torch.promote_types(torch.get_default_dtype(), dtype)
        elif _is_array(value) and (kind := _array("fields", value).dtype).kind == "f" and kind.itemsize >= 8:
            dtype = torch.float64
        value = _numbers("fields", value, torch.empty(0, dtype=dtype))
    check_tensor("fields", value)
    if value.dtype not in DTYPES:
        raise IsingError("fields", "dtype float32 or float64", value.dtype)
    shape = list(value.shape)
    if not shape or shape[-1] < 1:
        raise IsingError("fields", "shape [*batch, n] with n >= 1 spins", f"shape {shape}")
    if value.numel() == 0:
        raise IsingError("fields", "at least one problem", f"an empty batch {shape}")
    check_finite("fields", value)
    return value


def read_interaction(
    name: str, value: Any, fields: Tensor, *, order: int, labelled: Any = None
) -> Tensor | None:
    """J or K (order 2 or 3), symmetric without a diagonal; sparse couplings are left as they are.

    ``labelled`` are the fields as the user gave them, whose labels those of a DataFrame must be.
    """
    if value is None:
        return None
    _require_one_order(name, value, labelled)
    value = _numbers(name, value, fields)
    if order == 2 and isinstance(value, Tensor) and value.layout != torch.strided:
        return value
    check_tensor(name, value)
    n, shape = fields.shape[-1], list(value.shape)
    _check_like(name, value, fields)
    if shape[-order:] != [n] * order:
        raise IsingError(name, f"shape [*lead, {', '.join('n' * order)}] with n = {n}", shape)
    _check_lead(name, value.shape[:-order], fields)
    numbers = plain_numbers(value)
    if numbers is None or not (math.isfinite(sum_of_squares(numbers)) and is_symmetric(numbers, order)):
        check_finite(name, value)
        check_symmetric(name, value, order)
    return value


def read_visible(value: Any, fields: Tensor) -> Tensor | None:
    """Visibility, a boolean tensor on the device of the fields that broadcasts to them."""
    if value is None:
        return None
    if _is_array(value):
        array = _array("visible", value)
        if array.dtype != np.bool_:
            raise IsingError("visible", "dtype bool", array.dtype)
        value = torch.from_numpy(array.copy()).to(fields.device)
    check_tensor("visible", value)
    if value.dtype != torch.bool:
        raise IsingError("visible", "dtype bool", value.dtype)
    if broadcast_shape(value.shape, fields.shape) != fields.shape:
        expected, got = list(fields.shape), list(value.shape)
        raise IsingError("visible", f"a shape that broadcasts to {expected}", got)
    return value


def read_offset(value: Any, fields: Tensor, name: str = "offset") -> Tensor | None:
    """An offset, which broadcasts to the batch."""
    if value is None:
        return None
    value = fields.new_tensor(as_float(value)) if is_number(value) else _numbers(name, value, fields)
    check_tensor(name, value, "a number or a tensor")
    _check_like(name, value, fields)
    _check_lead(name, value.shape, fields)
    check_finite(name, value)
    return value


def read_spins(value: Any, fields: Tensor) -> Tensor:
    """States ±1, or 0 where a spin is free, as a tensor whose shape broadcasts against the fields."""
    if _is_array(value):
        array = _array("spins", value)
        if array.dtype.kind not in "iuf":
            raise IsingError("spins", "integers or floats (-1, 0, +1)", f"dtype {array.dtype}")
        value = torch.from_numpy(np.array(array, dtype=np.float64, order="C")).to(fields)
    check_spins(value, fields)
    spins: Tensor = value
    return spins


def check_states(spins: Tensor, visible: Tensor) -> None:
    """Raise IsingError, with the first index, unless every visible spin is ±1; transforms hide values."""
    if torch._C._are_functorch_transforms_active():
        return
    wrong = (spins.abs() != 1) & visible
    if (at := first_true(wrong)) is not None:
        value = spins.expand(wrong.shape)[at].item()
        got = f"{value} at {list(at)}{'; 2 * x - 1 makes spins of 0 and 1' * (value == 0)}"
        raise IsingError("spins", "-1 or +1 at visible spins", got)


def read_states(data: Any, hidden: int = 0) -> tuple[Tensor, list[Any]]:
    """The data as int8 ±1 [N, n], and the names of its variables and of hidden spins behind them."""
    array = data.detach().cpu().numpy() if isinstance(data, Tensor) else np.asarray(data)
    labels = list(getattr(data, "columns", range(array.shape[-1] if array.ndim else 0)))
    if array.dtype == object and array.ndim == 2:  # columns of several dtypes, or of pandas' own
        for value, label in zip(array.flat, labels * len(array), strict=True):
            if not isinstance(value, int | float | np.bool_ | np.number):
                raise IsingError("data", "binary values, all there", f"{value!r} in column {label!r}")
        array = array.astype(float)
    if array.ndim != 2 or not array.size or array.dtype.kind not in "biuf":
        got = f"{array.dtype} of shape {list(array.shape)}"
        raise IsingError("data", "a table of binary values [N, n]", got)
    values = np.unique(array).tolist()
    if not any(set(values) <= pair for pair in ({0, 1}, {-1, 1})):
        raise IsingError("data", "-1 and 1, or 0 and 1, or booleans", values[:3])
    names = [*labels, *(f"hidden {j}" for j in range(hidden))]
    return torch.from_numpy(np.where(array > 0, 1, -1).astype(np.int8)), names


def require_all_values(spins: Tensor, pairs: Tensor, labels: list[Any]) -> None:
    """Refuse data whose maximum is at infinity, as far as variables and pairs of them, not of hidden spins, show it."""
    s, pairs = spins.long(), pairs[(pairs < spins.shape[1]).all(1)]
    alone = (s.sum(0).abs() == len(s)).nonzero().flatten().tolist()
    if alone:
        raise IsingError("data", "both values of every variable", f"one of {labels[alone[0]]!r}; set l2")
    values = 2 * (s[:, pairs[:, 0]] > 0) + (s[:, pairs[:, 1]] > 0).long()
    for pair, of_pair in zip(pairs.tolist(), values.T, strict=True):
        if len(of_pair.unique()) < 4:
            expected, got = "all four values of every coupled pair", [labels[spin] for spin in pair]
            raise IsingError("data", expected, f"fewer of {got}; set l2")


def read_pairs(pairs: Any, names: list[Any], n: int) -> Tensor:
    """Coupled pairs, int64 [E, 2], of n columns and hidden spins behind them, by name or number.

    A number counts from 0, but is a name where columns have integers as names.  None is all pairs of columns or, with
    hidden spins, of a column and a hidden spin.
    """
    if pairs is None:
        spins, others = torch.arange(n), torch.arange(n, len(names))
        return torch.cartesian_prod(spins, others) if len(others) else torch.combinations(spins)
    counted = names[:n] == list(range(n)) or not any(isinstance(name, Integral) for name in names)
    place, times = {name: j for j, name in enumerate(names)}, Counter(names)
    rows = getattr(pairs, "to_numpy", lambda: pairs)()

    def number(variable: Any) -> int:
        if counted and isinstance(variable, Integral):
            return int(variable)
        if (count := times[variable] if isinstance(variable, Hashable) else 0) != 1:
            several = "the name of several columns, " * (count > 1)
            hint = did_you_mean(variable, map(str, place)) * (count == 0)
            got = f"got {several}{variable!r}.{hint}"
            raise IsingError("pairs", f"expected names of columns or numbers, {got}")
        return place[variable]

    numbers = []
    for pair in rows.tolist() if isinstance(rows, Tensor | np.ndarray) else rows:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise IsingError("pairs", "pairs of two variables, [E, 2]", f"{pair!r:.60}")
        numbers.append([number(variable) for variable in pair])
    index = torch.tensor(numbers, dtype=torch.int64).reshape(-1, 2)
    check_edges(index, torch.zeros(len(index)), torch.zeros(len(names)))
    return index


def read_matrix(name: str, value: Any) -> np.ndarray:
    """A square matrix of finite numbers, float64 [n, n]."""
    _require_one_order(name, value)
    value = _numbers(name, value, torch.empty(0, dtype=torch.float64))
    check_tensor(name, value, "a mapping or a matrix")
    if value.ndim != 2 or value.shape[0] != value.shape[1] or not value.is_floating_point():
        raise IsingError(name, "a square matrix [n, n] of numbers", f"{value.dtype} {list(value.shape)}")
    check_finite(name, value)
    return value.detach().double().cpu().numpy()


def read_index(value: Any) -> Tensor:
    """Convert the pairs of edges to int64 [E, 2]."""
    if _is_array(value):
        value = _array("index", value)
        if value.dtype.kind in "iu" or not value.size:
            value = torch.from_numpy(np.array(value, dtype=np.int64, order="C"))
    elif not isinstance(value, Tensor):
        raise IsingError("index", "a tensor, an array or a list", type(value).__name__)
    kind = value.dtype
    if not isinstance(kind, torch.dtype) or kind == torch.bool or kind.is_floating_point or kind.is_complex:
        raise IsingError("index", "integers", f"dtype {kind}")
    value = value.detach() if value.numel() else value.reshape(-1, 2)
    if value.ndim != 2 or value.shape[1] != 2:
        hint = "; transpose it" if value.ndim == 2 and value.shape[0] == 2 else ""
        raise IsingError("index", "pairs of spins [E, 2]", f"shape {list(value.shape)}{hint}")
    return value.to(torch.int64)


def read_values(value: Any, index: Tensor) -> Tensor:
    """Convert the values of edges, arrays and lists to float64, and require one for each pair."""
    wide = torch.float32 if isinstance(value, Tensor) else torch.float64
    values: Tensor = _numbers("values", value, torch.empty(0, dtype=wide, device=index.device))
    check_tensor("values", values)
    if not values.is_floating_point():
        raise IsingError("values", "a dense tensor of numbers", f"{values.dtype}, {values.layout}")
    if values.ndim < 1 or values.shape[-1] != len(index):
        expected = f"one value for each of {len(index)} pairs, [*lead, E]"
        raise IsingError("values", expected, list(values.shape))
    if index.device != values.device:
        raise IsingError("index", f"the device of the values, {values.device}", index.device)
    return values


def check_edges(pairs: Tensor, values: Tensor, fields: Tensor) -> None:
    """Raise IsingError unless edges [E, 2] and their J [*lead, E] fit the fields, are finite and name a pair once."""
    n, name = fields.shape[-1], "couplings"
    if values.device != fields.device:
        raise IsingError(name, f"edges on {fields.device} as the fields", f"them on {values.device}")
    _check_lead(name, values.shape[:-1], fields)
    check_finite(name, values)
    if edge := first_true(((pairs < 0) | (pairs >= n)).any(1)):
        raise IsingError(name, f"spins 0 to {n - 1}", f"the edge {pairs[edge].tolist()}")
    if edge := first_true(pairs[:, 0] == pairs[:, 1]):
        got = f"{pairs[edge].tolist()} at edge {edge[0]}"
        raise IsingError(name, "edges between two different spins", got)
    names, order = (pairs.amin(1) * n + pairs.amax(1)).sort(stable=True)
    if at := first_true(names[1:] == names[:-1]):
        got = " and ".join(f"{pairs[e].tolist()} at edge {int(e)}" for e in order[at[0] : at[0] + 2])
        got = f"{got}; add their values, or give one direction only"
        raise IsingError(name, "every pair of spins once", got)


def _check_like(name: str, value: Tensor, fields: Tensor) -> None:
    if value.dtype != fields.dtype or value.device != fields.device:
        expected, got = (f"{t.dtype} on {t.device}" for t in (fields, value))
        raise IsingError(name, f"dtype {expected} as in fields", got)


def _check_lead(name: str, lead: torch.Size, fields: Tensor) -> None:
    batch = fields.shape[:-1]
    if lead and broadcast_shape(lead, batch) != batch:
        raise IsingError(name, f"leading dimensions that broadcast to the batch {list(batch)}", list(lead))


def _numbers(name: str, value: Any, like: Tensor) -> Any:
    """Convert integers, narrow floats, arrays and lists; all other values are unchanged, to be checked later."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        if value.dtype in DTYPES or value.dtype == torch.bool or value.is_complex():
            return value
        check_tensor(name, value)
        return value.to(like.dtype)
    if not _is_array(value):
        return value
    array = _array(name, value)
    if array.dtype.kind not in "iuf" and array.size:
        raise IsingError(name, "real numbers", f"an array of dtype {array.dtype}")
    # Through float64, because torch accepts the native byte order only.
    with np.errstate(over="ignore"):  # infinite values are refused later, with their index
        wide = torch.from_numpy(np.array(array, dtype=np.float64, order="C"))
    return wide.to(like)


def _require_one_order(name: str, matrix: Any, fields: Any = None) -> None:
    """Refuse a DataFrame whose rows, columns and fields have labels that differ, since it is read by position."""
    if not hasattr(matrix, "columns"):
        return
    axes = [matrix.columns, getattr(matrix, "index", ())]
    if hasattr(fields, "to_numpy"):
        axes.append(getattr(fields, "columns", getattr(fields, "index", ())))
    named = [labels for axis in axes if (labels := list(axis)) != list(range(len(labels)))]
    for labels in named[1:]:
        if labels != named[0]:
            got = f"{named[0]!s:.60} and {labels!s:.60}; use .reindex"
            raise IsingError(name, "the same labels in rows, columns and fields, in one order", got)


def _array(name: str, value: Any) -> np.ndarray:
    if callable(to_numpy := getattr(value, "to_numpy", None)):
        value = to_numpy()
    if isinstance(value, np.ndarray):
        return value
    if _holds_tensor(value):
        raise IsingError(name, "numbers", "a list of tensors; use torch.stack")
    try:
        return np.array(value)
    except ValueError as error:
        raise IsingError(name, "nested lists of equal lengths", "unequal ones") from error


def _holds_tensor(value: Any) -> bool:
    """Whether an item is a tensor: numpy would convert it, and lose its autograd graph."""
    if isinstance(value, list | tuple):
        return any(_holds_tensor(item) for item in value)
    return isinstance(value, Tensor)
