"""Problems, and what our backends do with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import diabat
from benchmarks.case import Call, Work
from diabat.ising import Ising, pack_couplings, pair_indices


def problem(
    n: int,
    queries: int | None = 1,
    *,
    h: float = 0.3,
    g: float = 1.0,
    own: bool = False,
    dtype: Any = torch.float32,
) -> Ising:
    """Fields [queries, n], or [n] for None, ~ g N(0, h²), and J ~ g N(0, 1/n) of all pairs, shared or of each query."""
    generator, batch = torch.Generator().manual_seed(0), () if queries is None else (queries,)
    J = pack_couplings(torch.randn(*batch * own, n * (n - 1) // 2, generator=generator) / n**0.5, n)
    return Ising((g * h * torch.randn(*batch, n, generator=generator)).to(dtype), (g * J).to(dtype))


def in_a_band(queries: int, n: int, width: int) -> Ising:
    """Fields N(0, 1), one J ~ N(0, 1/(2w)) within the band."""
    g = torch.Generator().manual_seed(0)
    pairs = torch.randn(len(pair_indices(n, width)[0]), generator=g) / (2 * width) ** 0.5
    return Ising(torch.randn(queries, n, generator=g), pack_couplings(pairs, n, width))


def regular(n: int, degree: int = 3, seed: int = 0) -> np.ndarray:
    """Edges of a random regular graph."""
    import networkx as nx

    return np.array(nx.random_regular_graph(degree, n, seed=seed).edges())


def zephyr(m: int) -> tuple[int, np.ndarray]:
    """Number of spins and edges of the Zephyr graph Z(m, 4) of D-Wave."""
    from dwave.graphs import zephyr_graph

    graph = zephyr_graph(m)
    return len(graph), np.array(sorted(graph.edges()))


def on_graph(n: int, edges: np.ndarray) -> Ising:
    """One problem, h ~ N(0, 0.3²), J ~ N(0, 1/degree) on edges."""
    generator = torch.Generator().manual_seed(0)
    J = torch.randn(len(edges), generator=generator) / (2 * len(edges) / n) ** 0.5
    return Ising(0.3 * torch.randn(n, generator=generator), diabat.Edges(edges, J))


def couplings(ising: Ising) -> Tensor:
    """J, of a problem that has one."""
    assert ising.couplings is not None
    return ising.couplings


def moments(backend: str, ising: Ising, *, correlations: bool = False, **options: Any) -> Work:
    """Marginals by a backend; a unit is a problem."""
    sampler = diabat.sampler(backend, **options)
    return Work(partial(sampler.moments, ising, correlations=correlations, seed=1), ising.num_problems)


def gradients(backend: str, ising: Ising, **options: Any) -> Work:
    """Marginals, and the gradient of a linear form of them in h and J; a unit is a problem."""
    sampler = diabat.sampler(backend, **options)

    def solve(h: Tensor, J: Tensor) -> Tensor:
        return sampler.moments(Ising(h, J, ising.visible, check=False), seed=1).probability

    return differentiated(solve, ising)


Solve = Callable[[Tensor, Tensor], Tensor]
"""From h and J to P(s = +1)."""


def answered(probabilities: Solve, ising: Ising) -> Work:
    """Probabilities (h, J); a unit is a problem."""
    return Work(partial(probabilities, ising.fields, couplings(ising)), ising.num_problems)


def differentiated(probabilities: Solve, ising: Ising) -> Work:
    """The gradient of a linear form of probabilities (h, J) in h and J; a unit is a problem."""
    h, J = ising.fields.clone().requires_grad_(), couplings(ising).clone().requires_grad_()
    v = torch.randn(h.shape, generator=torch.Generator().manual_seed(1)).to(h)
    return Work(lambda: torch.autograd.grad((v * probabilities(h, J)).sum(), (h, J)), ising.num_problems)


def trained(
    model: nn.Module, loss: Callable[[], Tensor], rate: float = 1e-3, clip: float = torch.inf
) -> Call:
    """A step of AdamW on a loss; ``clip`` is the largest norm of the gradient."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)

    def run() -> None:
        optimizer.zero_grad()
        loss().backward()
        if clip < torch.inf:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()

    return run


def reads(ising: Ising, number: int = 16, sweeps: int = 32, **options: Any) -> Work:
    """Reads by tempering on one thread, one chain for each and no replicas unless given; a unit is a problem."""
    options = {"num_replicas": 1, "burn_in": sweeps, "threads": 1, **options}
    sampler = diabat.sampler("tempering", **options)
    return Work(partial(sampler.sample, ising, number, seed=1), ising.num_problems)
