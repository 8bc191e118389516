"""What tells a good answer from a bad one: each backend declares the facts of its ``info`` to watch, with limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

LAWS = {
    "boltzmann": "the Boltzmann law at beta = 1",
    "mean-field": "the mean-field fixed point, not the Boltzmann law",
    "diabatic": "the anneal's own, not the Boltzmann law",
}
"""``Capabilities.law`` in words."""


@dataclass(frozen=True)
class Watched:
    """One fact of ``info``, and between which limits it is good; without limits it is shown only.

    Attributes:
        key: Where it stands in ``info``, dotted where mappings are nested.
        label: What it is called.
        least: Smallest good value.
        most: Largest good value.
        advice: What to do, or what it means, if it is bad.
        pick: Which of several values is shown where there is no limit.
    """

    key: str
    label: str
    least: float | None = None
    most: float | None = None
    advice: str = ""
    pick: Literal["min", "max"] = "max"

    def below(self, key: str, label: str) -> Watched:
        """The same fact of a backend whose ``info`` stands at ``key`` of another's."""
        return Watched(
            f"{key}.{self.key}", f"{label}: {self.label}", self.least, self.most, self.advice, self.pick
        )


class Diagnostic(NamedTuple):
    """A fact of one answer.

    Attributes:
        key: As of `Watched`.
        label: Likewise.
        value: The worst of its values.
        ok: Whether all are within the limits; None without limits.
        expected: The limits in words, or "".
        advice: As of `Watched`.
    """

    key: str
    label: str
    value: float | bool
    ok: bool | None
    expected: str
    advice: str


def diagnostics(watched: Iterable[Watched], info: Mapping[str, Any]) -> list[Diagnostic]:
    """Judge an answer by its ``info``; what is not there is left out."""
    found = []
    for fact in watched:
        values = list(_numbers(_entry(info, fact.key.split("."))))
        if values:
            found.append(_judged(fact, values))
    return found


def _judged(fact: Watched, values: list[float | bool]) -> Diagnostic:
    limits = [
        f"{word} {limit:g}"
        for word, limit in (("at least", fact.least), ("at most", fact.most))
        if limit is not None
    ]
    if not limits:
        value = min(values) if fact.pick == "min" else max(values)
        return Diagnostic(fact.key, fact.label, value, None, "", "")
    value = max(values, key=lambda v: _excess(fact, v))
    expected = " and ".join(limits)
    if isinstance(value, bool):
        expected = "yes" if fact.least else "no"
    return Diagnostic(fact.key, fact.label, value, _excess(fact, value) <= 0, expected, fact.advice)


def _excess(fact: Watched, value: float) -> float:
    """How far a value is outside the limits; not above 0 within, infinite for what is no number."""
    if math.isnan(value):
        return math.inf
    over = -math.inf if fact.most is None else value - fact.most
    return max(over, -math.inf if fact.least is None else fact.least - value)


def _entry(info: Any, path: Sequence[str]) -> Any:
    for part in path:
        info = info.get(part) if isinstance(info, Mapping) else None
    return info


def _numbers(value: Any) -> Iterable[float | bool]:
    """All numbers of an entry: of a tensor, an array, a list, or the smallest, mean and largest of many jobs."""
    if isinstance(value, bool):
        yield value
    elif isinstance(value, int | float | np.number):
        yield float(value)
    elif isinstance(value, torch.Tensor | np.ndarray):
        yield from _numbers(value.tolist())
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _numbers(item)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _numbers(item)
