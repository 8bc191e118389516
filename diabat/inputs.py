"""Conversion of the arguments of a problem: arrays, nested lists, other dtypes, dictionaries, sparse tensors."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diabat.checks import is_number
from diabat.edges import Edges, best_form
from diabat.ising import Ising
from diabat.ising_checks import IsingError, check_finite, check_tensor, first_true

_REAL_KINDS = "iuf"  # dtype kinds of numpy: integers, unsigned integers, floats


def as_fields(value: Any) -> Any:
    """Convert fields to a float32 or float64 tensor: float64 stays, every other number becomes float32.

    A list is read in torch's default dtype.  A value that is not a tensor, array or list is returned unchanged, and
    is refused later.
    """
    if isinstance(value, Tensor):
        check_tensor("fields", value)
        return _widened(value, torch.float32)
    if isinstance(value, np.ndarray):
        double = value.dtype.kind == "f" and value.dtype.itemsize >= 8
        dtype = torch.float64 if double else torch.float32
        return _numbers("fields", value, dtype, torch.device("cpu"))
    if isinstance(value, list | tuple):
        dtype = torch.get_default_dtype()
        wide = torch.promote_types(dtype, torch.float32)
        return _numbers("fields", _array("fields", value), wide, torch.device("cpu"))
    return value


def as_interaction(name: str, value: Any, fields: Tensor) -> Any:
    """Convert J, K or an offset to the dtype of the fields; a float32 or float64 tensor is unchanged, checked later."""
    if isinstance(value, Tensor):
        check_tensor(name, value)
        return _widened(value, fields.dtype)
    if name == "offset" and is_number(value):
        return torch.tensor(float(value), dtype=fields.dtype, device=fields.device)
    if isinstance(value, np.ndarray | list | tuple):
        return _numbers(name, _array(name, value), fields.dtype, fields.device)
    return value


def as_visible(value: Any, fields: Tensor) -> Any:
    """Convert an array or a list to a boolean tensor on the device of the fields."""
    if not isinstance(value, np.ndarray | list | tuple):
        return value
    array = _array("visible", value)
    if array.dtype != np.bool_:
        raise IsingError("visible", f"expected dtype bool, got {array.dtype}.")
    return torch.from_numpy(array.copy()).to(fields.device)


def from_dict(
    fields: Mapping[Hashable, float],
    couplings: Mapping[tuple[Hashable, Hashable], float] | None,
    dtype: torch.dtype,
) -> tuple[Ising, list[Hashable]]:
    """See :meth:`diabat.Ising.from_dict`."""
    couplings = {} if couplings is None else couplings
    for name, given in (("fields", fields), ("couplings", couplings)):
        if not isinstance(given, Mapping):
            raise IsingError(name, f"expected a mapping, got {type(given).__name__}.")
    pairs = [_pair(pair) for pair in couplings]
    labels = list(dict.fromkeys([*fields, *(label for pair in pairs for label in pair)]))
    if not labels:
        raise IsingError("fields", "expected at least one spin, got none.")
    place = {label: j for j, label in enumerate(labels)}
    h = torch.zeros(len(labels), dtype=torch.float64)
    for label, value in fields.items():
        h[place[label]] = _number(f"fields[{label!r}]", value)
    J = torch.zeros(len(pairs), dtype=torch.float64)
    seen: set[frozenset[Hashable]] = set()
    for e, (a, b) in enumerate(pairs):
        if frozenset((a, b)) in seen:
            raise IsingError("couplings", f"expected every pair once, got {(a, b)} and {(b, a)}.")
        seen.add(frozenset((a, b)))
        J[e] = _number(f"couplings[{(a, b)}]", couplings[a, b])
    index = torch.tensor([(place[a], place[b]) for a, b in pairs], dtype=torch.int64).reshape(-1, 2)
    return Ising(h.to(dtype), best_form(Edges(index, J.to(dtype)), len(labels))), labels


def as_index(value: Any) -> Tensor:
    """Convert the pairs of edges to int64 [E, 2]."""
    given = value if isinstance(value, Tensor) else torch.from_numpy(_integers(value))
    if given.dtype == torch.bool or given.is_floating_point() or given.is_complex():
        raise IsingError("index", f"expected integers, got dtype {given.dtype}.")
    if given.numel() == 0:
        given = given.reshape(-1, 2)
    if given.ndim != 2 or given.shape[1] != 2:
        hint = "; transpose it" if given.ndim == 2 and given.shape[0] == 2 else ""
        raise IsingError("index", f"expected pairs of spins [E, 2], got shape {list(given.shape)}{hint}.")
    return given.detach().to(torch.int64)


def _integers(value: Any) -> np.ndarray:
    array = _array("index", value) if isinstance(value, np.ndarray | list | tuple) else None
    if array is None:
        raise IsingError("index", f"expected a tensor, an array or a list, got {type(value).__name__}.")
    if array.size == 0:
        return np.zeros((0, 2), np.int64)
    if array.dtype.kind not in "iu":
        raise IsingError("index", f"expected integers, got dtype {array.dtype}.")
    return np.array(array, dtype=np.int64, order="C")


def as_values(value: Any, index: Tensor) -> Tensor:
    """Convert the values of edges, arrays and lists to float64, and require one for each pair."""
    values = value
    if isinstance(value, np.ndarray | list | tuple):
        values = _numbers("values", _array("values", value), torch.float64, index.device)
    elif isinstance(value, Tensor):
        values = _widened(value, torch.float32)
    if not isinstance(values, Tensor):
        raise IsingError("values", f"expected a tensor, an array or a list, got {type(value).__name__}.")
    if values.layout != torch.strided or not values.is_floating_point():
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


def edges_of(J: Tensor, n: int) -> Edges:
    """Edges of a symmetric sparse tensor [n, n]; entries given twice are added, as torch defines it.

    Values are the mean of J_jk and J_kj, so that the gradient of J is symmetric, as that of a matrix is.
    """
    if J.is_nested:
        check_tensor("couplings", J)
    if J.layout not in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        raise IsingError("couplings", f"expected a dense, COO, CSR or CSC tensor, got the layout {J.layout}.")
    if tuple(J.shape) != (n, n):
        raise IsingError(
            "couplings",
            f"expected a sparse tensor [n, n] with n = {n}, got {list(J.shape)}; use diabat.Edges for several J.",
        )
    J = (J if J.layout == torch.sparse_coo else J.to_sparse_coo()).coalesce()
    if J.dense_dim():
        raise IsingError("couplings", "expected two sparse dimensions, got a dense one; use diabat.Edges.")
    (rows, columns), values = J.indices(), J.values()
    check_finite("couplings", values.detach())
    names, mirrored = rows * n + columns, columns * n + rows
    order = mirrored.argsort()
    upper = rows < columns
    partner = values[order]
    wrong = names != mirrored[order]
    if not bool(wrong.any()):
        wrong = ~torch.isclose(values.detach(), partner.detach(), rtol=1e-6, atol=1e-12)
    if at := first_true(wrong):
        (e,) = at
        raise IsingError(
            "couplings",
            f"expected a symmetric matrix, got {float(values[e]):.6g} at [{int(rows[e])}, {int(columns[e])}] and "
            "another number, or none, at its mirror image; use U + U.T of an upper triangle U, or diabat.Edges.",
        )
    if at := first_true((rows == columns) & (values.detach() != 0)):
        (e,) = at
        raise IsingError(
            "couplings",
            f"expected no diagonal, got {float(values[e]):.3g} at [{int(rows[e])}, {int(rows[e])}].",
        )
    index = torch.stack((rows[upper], columns[upper]), dim=1)
    return Edges(index, (values[upper] + partner[upper]) / 2)


def _widened(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert integers and floats narrower than float32 to ``dtype``; return other tensors unchanged."""
    if value.dtype in (torch.float32, torch.float64, torch.bool) or value.is_complex():
        return value
    return value.to(dtype)


def _array(name: str, value: np.ndarray | Sequence[Any]) -> np.ndarray:
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


def _numbers(name: str, array: np.ndarray, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A copy of an array of real numbers as a tensor."""
    if array.dtype.kind not in _REAL_KINDS and array.size:
        raise IsingError(name, f"expected real numbers, got an array of dtype {array.dtype}.")
    # Through float64, because torch accepts the native byte order only.
    with np.errstate(over="ignore"):  # infinite values are refused later, with their index
        wide = torch.from_numpy(np.array(array, dtype=np.float64, order="C"))
    return wide.to(device=device, dtype=dtype)


def _pair(pair: Any) -> tuple[Hashable, Hashable]:
    if not isinstance(pair, tuple) or len(pair) != 2 or pair[0] == pair[1]:
        raise IsingError("couplings", f"expected pairs (a, b) of two different spins as keys, got {pair!r}.")
    return pair[0], pair[1]


def _number(name: str, value: Any) -> float:
    if not is_number(value):
        raise IsingError(name, f"expected a real number, got {type(value).__name__}.")
    return float(value)
