"""A published table in a YAML file of an experiment, turned into rows.

    table:                                   # mean and standard deviation over the seeds of the paper
      t8: {softmax: [5.894, 0.027], h+J: [5.846, 0.036]}
      t12: {softmax: [5.628, 0.019], h+J: [5.567, 0.026]}

Every window T and arm is a row ``t8-softmax`` with the overrides ``task.window=8`` and ``model.mode=softmax``, or those
of the arm under the key ``arms``.  The gaps are those of every arm to the first one, or to the ``baseline``, at each T.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diabat.checks import ArgumentError

_MADE_HERE = ("published", "published_std", "variants", "gaps", "series")


def rows_of_table(document: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the keys ``table``, ``arms`` and ``baseline`` by the rows they describe.

    Args:
        document: An experiment; it is returned as it is if it has no table.

    Raises:
        ArgumentError: If the table is not of this form, or rows are described twice.
    """
    rest = dict(document)
    if "table" not in rest:
        for key in ("arms", "baseline"):
            if key in rest:
                raise ArgumentError(key, "expected the key 'table' beside it, got none.")
        return rest
    for key in _MADE_HERE:
        if key in rest:
            raise ArgumentError(key, "cannot be combined with 'table', which describes the rows.")
    table, arms, baseline = rest.pop("table"), rest.pop("arms", {}), rest.pop("baseline", None)
    made: dict[str, Any] = {key: {} for key in _MADE_HERE} | {"gaps": []}
    if not isinstance(table, Mapping) or not table or not isinstance(arms, Mapping):
        raise ArgumentError("table", "expected a mapping of windows T to arms, got none.")
    for name, values in table.items():
        window = str(name).removeprefix("t")
        if not isinstance(values, Mapping) or not values or window == name or not window.isdigit():
            raise ArgumentError("table", f"expected arms for every window, as 't8', got {name!r}.")
        first = next(iter(values)) if baseline is None else baseline
        if first not in values:
            raise ArgumentError("baseline", f"expected an arm of every window, got {first!r} at '{name}'.")
        for arm, value in values.items():
            row = f"{name}-{arm}"
            made["published"][row], made["published_std"][row] = _mean_and_deviation(row, value)
            made["variants"][row] = [f"task.window={window}", *arms.get(arm, [f"model.mode={arm}"])]
            made["series"].setdefault(arm, {})[window] = row
            if arm != first:
                made["gaps"].append([row, f"{name}-{first}"])
    unknown = [arm for arm in arms if arm not in made["series"]]
    if unknown:
        raise ArgumentError("arms", f"expected arms of the table, got '{unknown[0]}'.")
    return {"vary": "T, attention", **rest, **made}


def _mean_and_deviation(row: str, value: Any) -> tuple[float | None, float | None]:
    numbers = [] if value is None else value
    if not isinstance(numbers, list) or len(numbers) > 2:
        raise ArgumentError("table", f"expected [mean], [mean, σ] or null for '{row}', got {value!r}.")
    mean, deviation = (*numbers, None, None)[:2]
    return mean, deviation
