"""The ``info`` of a result as plain data: what JSON holds, and one summary for many results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch


def plain(value: Any) -> Any:
    """Turn tensors, arrays, numpy numbers, tuples and mappings into what JSON holds.

    Not-a-number and infinity become None, which JSON has no number for; whatever else JSON does not know
    becomes its ``repr``.
    """
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return repr(value)


def condensed(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarise the plain infos of many jobs.

    A fact on which all agree is kept as it is; numbers that differ become ``{"min", "mean", "max"}``, mappings
    are summarised key by key, and anything else becomes the list of its distinct values.
    """
    keys = dict.fromkeys(key for info in infos for key in info)
    return {key: _one([info[key] for info in infos if key in info]) for key in keys}


def _one(values: list[Any]) -> Any:
    if all(value == values[0] for value in values):
        return values[0]
    if all(isinstance(value, Mapping) for value in values):
        return condensed(values)
    if all(isinstance(value, bool | int | float) for value in values):
        return {"min": min(values), "mean": sum(values) / len(values), "max": max(values)}
    return _distinct(values)


def _distinct(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found
