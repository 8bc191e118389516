"""The ``info`` of a result: entries computed on access, plain data, summaries of many results, checks of quality.

Each backend declares which entries to watch, with limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

LAWS = {
    "boltzmann": "the Boltzmann law",
    "mean-field": "the mean-field fixed point, not the Boltzmann law",
    "diabatic": "the law of the anneal, not the Boltzmann law",
    "annealed": "states of low energy, not the Boltzmann law",
}
"""``Capabilities.law`` in words."""


class Later(NamedTuple):
    """An entry of :class:`Info` that is computed when it is read."""

    compute: Callable[[], Any]


class Info(Mapping[str, Any]):
    """Facts of a result, of which those that are a :class:`Later` are computed once, when they are first read.

    A tensor that was computed is a copy of its own, also where several facts follow from one.
    ``info | other`` and ``other | info`` compute nothing.  Copies and pickles are dictionaries of all values.
    """

    def __init__(self, *parts: Mapping[str, Any]) -> None:
        self._facts: dict[str, Any] = {}
        for part in parts:
            self._facts.update(part._facts if isinstance(part, Info) else part)

    def __getitem__(self, key: str) -> Any:
        fact = self._facts[key]
        if isinstance(fact, Later):
            value = fact.compute()
            fact = self._facts[key] = value.clone() if isinstance(value, torch.Tensor) else value
        return fact

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)

    def __contains__(self, key: object) -> bool:
        return key in self._facts

    def __or__(self, other: Mapping[str, Any]) -> Info:
        return Info(self, other)

    def __ror__(self, other: Mapping[str, Any]) -> Info:
        return Info(other, self)

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return dict, (dict(self),)

    def __repr__(self) -> str:
        return repr(dict(self))


@dataclass(frozen=True)
class Watched:
    """One entry of ``info`` and the limits of its good values; without limits it is only shown.

    Attributes:
        key: Key in ``info``, with dots for nested mappings.
        label: Name for reports.
        least: Smallest good value.
        most: Largest good value.
        advice: What to do, or what it means, if the value is outside the limits.
        pick: Which of several values is shown if there is no limit.
    """

    key: str
    label: str
    least: float | None = None
    most: float | None = None
    advice: str = ""
    pick: Literal["min", "max"] = "max"

    def below(self, key: str, label: str) -> Watched:
        """The same entry if the ``info`` of the backend is nested at ``key`` in another one."""
        return replace(self, key=f"{key}.{self.key}", label=f"{label}: {self.label}")


class Heard(NamedTuple):
    """What an answer says of itself: number of reads, None for computed ones, and ``info``."""

    num_reads: int | None
    info: Mapping[str, Any]


_HEARD: ContextVar[list[Heard] | None] = ContextVar("heard", default=None)


@contextmanager
def last_answer() -> Iterator[list[Heard]]:
    """A list that holds what the last answer of any sampler in the block says of itself; empty if there is none."""
    heard: list[Heard] = []
    token = _HEARD.set(heard)
    try:
        yield heard
    finally:
        _HEARD.reset(token)


def note_answer(num_reads: int | None, info: Mapping[str, Any]) -> None:
    """Note an answer for :func:`last_answer`; that of a composite comes after those of its base."""
    if (heard := _HEARD.get()) is not None:
        heard[:] = [Heard(num_reads, info)]


class Diagnostic(NamedTuple):
    """The check of one entry of a result; ``key``, ``label`` and ``advice`` are those of `Watched`.

    Attributes:
        value: The worst of its values.
        ok: Whether all are within the limits; None without limits.
        expected: The limits in words, or "".
    """

    key: str
    label: str
    value: float | bool
    ok: bool | None
    expected: str
    advice: str


def diagnostics(watched: Iterable[Watched], info: Mapping[str, Any]) -> list[Diagnostic]:
    """Check a result by its ``info``; missing entries are skipped."""
    checks = []
    for fact in watched:
        entry: Any = info
        for part in fact.key.split("."):
            entry = entry.get(part) if isinstance(entry, Mapping) else None
        if values := list(_numbers(entry)):
            checks.append(_judged(fact, values))
    return checks


def _judged(fact: Watched, values: list[float | bool]) -> Diagnostic:
    both = (("at least", -1, fact.least), ("at most", 1, fact.most))
    limits = [(word, side, limit) for word, side, limit in both if limit is not None]
    if not limits:
        value = min(values) if fact.pick == "min" else max(values)
        return Diagnostic(fact.key, fact.label, value, None, "", "")
    # How far each is outside the limits: at most 0 within them, infinite for NaN.
    excess = [math.inf if math.isnan(v) else max(s * (v - limit) for _, s, limit in limits) for v in values]
    value = values[excess.index(max(excess))]
    expected = " and ".join(f"{word} {limit:g}" for word, _, limit in limits)
    if isinstance(value, bool):
        expected = "yes" if fact.least else "no"
    return Diagnostic(fact.key, fact.label, value, max(excess) <= 0, expected, fact.advice)


def _numbers(value: Any) -> Iterable[float | bool]:
    """All numbers of an entry: a number, tensor, array or list, or the minimum, mean and maximum of many jobs."""
    if isinstance(value, torch.Tensor | np.ndarray | np.number):
        value = value.tolist()
    if isinstance(value, int | float):
        yield value if isinstance(value, bool) else float(value)
    elif isinstance(value, Mapping | Sequence) and not isinstance(value, str):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _numbers(item)


def chains_of(info: Mapping[str, Any]) -> int | None:
    """Number of chains behind reads: read r is of chain r mod chains; of a composite, those of its base."""
    level: Any = info
    while isinstance(level, Mapping):
        if "num_chains" in level:
            return int(level["num_chains"])
        level = level.get("base")
    return None


def condensed(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarise the plain infos of many jobs.

    A value that is equal in all infos is kept.  Numbers that differ become ``{"min", "mean", "max"}``, mappings are
    summarised key by key, and other values become the list of distinct values.
    """
    summary: dict[str, Any] = {}
    for key in dict.fromkeys(key for info in infos for key in info):
        values = [info[key] for info in infos if key in info]
        if all(value == values[0] for value in values):
            summary[key] = values[0]
        elif all(isinstance(value, Mapping) for value in values):
            summary[key] = condensed(values)
        elif all(isinstance(value, int | float) for value in values):
            summary[key] = {"min": min(values), "mean": sum(values) / len(values), "max": max(values)}
        else:
            summary[key] = [value for i, value in enumerate(values) if value not in values[:i]]
    return summary
