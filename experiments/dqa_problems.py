"""Problems with their exact law, and the laws of anneals, for the studies of the backend ``dqa``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

import diabat
from diabat.circuits import available_plans
from diabat.ising import Ising
from diabat.studies.ensembles import sk
from diabat.studies.states import all_states, boltzmann, states_of, states_of_marginals, total_variation

SOLVER = "Advantage2_system1"
LEARNED = tuple(name for name in available_plans() if name.startswith("boltzmann-"))


@dataclass(frozen=True, eq=False)
class Problems:
    """Problems of one size and strength, Boltzmann's law and those of simple answers, float64 [64, 4, 2^n]."""

    ising: Ising
    law: Tensor
    simple: dict[str, Tensor]

    def error(self, law: Tensor) -> float:
        """Mean |P(s_j = +1) - exact| over spins and problems."""
        return float((marginals(law) - marginals(self.law)).abs().mean())

    def distance(self, law: Tensor) -> float:
        """Total variation to Boltzmann's law, mean over problems."""
        return float(total_variation(law, self.law).mean())


@cache
def sk_problems(n: int, g: float, instances: int = 64, field_strength: float | None = None) -> Problems:
    """SK problems with their exact law."""
    (ensemble,) = sk([g], num_spins=n, instances=instances, queries=4, seed=0)
    ising = ensemble.ising
    if field_strength is not None:
        ising = Ising(field_strength / g * ising.fields, ising.couplings)
    mean_field = diabat.sampler("mean_field").moments(ising).probability
    simple = {"J = 0": torch.sigmoid(2 * ising.fields), "mean field": mean_field}
    return Problems(ising, boltzmann(ising), {name: states_of_marginals(p) for name, p in simple.items()})


@cache
def anneal(**options: Any) -> Any:
    """The backend ``dqa`` on the native engine; 5 ns on one solver by default."""
    return diabat.sampler("dqa", engine="native", **options)


def law_of(ising: Ising, **options: Any) -> Tensor:
    """Exact law of an anneal, float64 [*batch, 2^n]."""
    return states_of(anneal(**options), ising)


def marginals(law: Tensor) -> Tensor:
    """P(s_j = +1), float64 [*batch, n]."""
    return law @ (all_states(law.shape[-1].bit_length() - 1) > 0).double()


def swept(law: Tensor, ising: Ising, sweeps: int) -> Tensor:
    """The law of a read after sweeps of heat bath, the spins in order: ``refine`` with infinitely many reads."""
    states = all_states(ising.num_spins).double()
    index = torch.arange(len(states))
    # f_j(s) = h_j + Σ_k J_jk s_k, float64 [*batch, n, 2^n]; it does not depend on s_j.
    local = ising.fields[..., None] + (0.0 if ising.couplings is None else ising.couplings @ states.T)
    up = torch.sigmoid(2 * local * states.T)  # P(s_j as in the state | rest)
    for _ in range(sweeps):
        for j in range(ising.num_spins):
            law = up[..., j, :] * (law + law[..., index ^ (1 << j)])
    return law
