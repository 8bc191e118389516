"""dimod samplers with one property each, for tests of the backend that calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dimod
import numpy as np
from dwave.samplers import SimulatedAnnealingSampler

HELD = {"beta_schedule_type": "custom", "beta_schedule": [1.0] * 50}
"""Keywords that hold dwave's simulated annealer at beta = 1."""


class Scripted(dimod.Sampler):  # type: ignore[misc]  # dimod has no stubs
    """Calls a function for every answer and keeps what it was asked."""

    def __init__(self, answer: Callable[[Any, dict[str, Any]], Any], *names: str, **properties: Any) -> None:
        self.answer = answer
        self._parameters: dict[str, Any] = {name: [] for name in ("num_reads", *names)}
        self._properties = properties
        self.calls: list[tuple[Any, dict[str, Any]]] = []

    @property
    def parameters(self) -> dict[str, Any]:
        return self._parameters

    @property
    def properties(self) -> dict[str, Any]:
        return self._properties

    def sample(self, bqm: Any, **keywords: Any) -> Any:
        self.calls.append((bqm, keywords))
        return self.answer(bqm, keywords)


class Optioned(Scripted):
    """Answers as an option of its constructor says, which nothing else of it shows."""

    def __init__(self, up: bool = True) -> None:
        super().__init__(lambda bqm, keywords: rows(bqm, [[1 if up else -1]] * keywords["num_reads"]))


def all_up(bqm: Any, keywords: dict[str, Any]) -> Any:
    """As many reads as asked for, every spin up."""
    return rows(bqm, np.ones((keywords["num_reads"], len(bqm)), dtype=np.int8))


def rows(bqm: Any, spins: Any, counts: Any = None) -> Any:
    """A sample set with the variables of the model in its own order."""
    return dimod.SampleSet.from_samples_bqm((spins, list(bqm.variables)), bqm, num_occurrences=counts)


def annealed(bqm: Any, keywords: dict[str, Any]) -> Any:
    """Answer of dwave's annealer at beta = 1, with whatever seed is given."""
    wanted = {k: v for k, v in keywords.items() if k in ("num_reads", "seed")}
    return SimulatedAnnealingSampler().sample(bqm, **wanted, **HELD)


class Failing:
    """Raises given exceptions one after the other (None for an answer), then answers."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)

    def __call__(self, bqm: Any, keywords: dict[str, Any]) -> Any:
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return annealed(bqm, keywords)
