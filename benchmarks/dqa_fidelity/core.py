"""Helpers of the sections: problems with their exact law, the law of a sampler, and the form of a section."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor

import diabat
from diabat.circuits import (
    Response,
    available_plans,
    default_steps,
    schedule,
    second_order_response,
    trotter_plan,
)
from diabat.ising import Ising
from diabat.samplers.dqa import DQASampler
from diabat.studies.fidelity import find_truth, sk
from diabat.studies.fidelity.states import all_states, states_of, total_variation

SOLVER = "Advantage2_system1"
LEARNED = tuple(name for name in available_plans() if name.startswith("boltzmann-"))

Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One entry of the progress bar: ``run`` gives rows, each with the title of its table."""

    label: str
    run: Callable[[], Iterator[tuple[str, Row]]]


@dataclass(frozen=True)
class Section:
    """A question of the study.

    Attributes:
        ensemble: Problems, instances and seed, in words.
        jobs: What is computed.
    """

    ensemble: str
    jobs: list[Job]


@dataclass(frozen=True, eq=False)
class Problems:
    """Problems of one size and strength.

    Attributes:
        ising: Fields [instances, queries, n], couplings [instances, 1, n, n].
        law: Boltzmann's law at beta = 1, float64 [instances, queries, 2^n].
        independent_error: Mean |ΔP| of the answer that ignores J.
        mean_field_error: Mean |ΔP| of naive mean field.
    """

    ising: Ising
    law: Tensor
    independent_error: float
    mean_field_error: float

    def error(self, law: Tensor) -> float:
        """Mean |P(s_j = +1) - exact| over spins and problems."""
        return float((marginals(law) - marginals(self.law)).abs().mean())

    def distance(self, law: Tensor) -> float:
        """Total variation to Boltzmann's law, mean over problems."""
        return float(total_variation(law, self.law).mean())


@cache
def sk_problems(
    n: int, g: float, instances: int = 64, queries: int = 4, field_strength: float | None = None
) -> Problems:
    """SK problems J ~ N(0, g/√n), h ~ N(0, g) or N(0, field_strength), seed 0, with their exact law."""
    [ensemble] = sk(
        [g], num_spins=n, instances=instances, queries=queries, field_strength=field_strength, seed=0
    )
    truth = find_truth(ensemble)
    assert truth.states is not None
    return Problems(ensemble.ising, truth.states, truth.independent_error, truth.mean_field_error)


def sk_in_words(sizes: str, instances: int = 64, queries: int = 4) -> str:
    return f"SK, {sizes}, h ~ N(0, g), J ~ N(0, g/√n), {instances} J x {queries} h, seed 0"


@cache
def anneal(**options: Any) -> DQASampler:
    """The backend ``dqa`` on the native engine, one for each choice of options; 5 ns on one solver by default."""
    sampler = diabat.sampler("dqa", engine="native", **options)
    assert isinstance(sampler, DQASampler)
    return sampler


def response_of(name: str, protocol: str, time_ns: float) -> Response:
    """Second-order response of an anneal with enough steps that their error is below 1e-4."""
    table = schedule(name, protocol)
    return second_order_response(trotter_plan(table, time_ns, 10 * default_steps(table, time_ns)))


def law_of(sampler: DQASampler, ising: Ising) -> Tensor:
    """Exact law of an anneal, float64 [*batch, 2^n]."""
    return states_of(sampler, ising)


def marginals(law: Tensor) -> Tensor:
    """P(s_j = +1) of distributions over states [*batch, 2^n], float64 [*batch, n]."""
    n = law.shape[-1].bit_length() - 1
    return law @ (all_states(n) > 0).double()


def label_of(g: float) -> str:
    return f"g={g:g}"
