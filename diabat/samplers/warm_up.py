"""Compile all kernels in advance: each group calls every compiled function of a backend."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from diabat.ising import Ising, pack_three_body
from diabat.ising.edges import Edges
from diabat.samplers.registry import sampler


class Warmed(NamedTuple):
    """The result of one group: its name, the number of compiled functions (0 if all were on disk) and the wall time."""

    group: str
    functions: int
    seconds: float


def warm_up(groups: Mapping[str, Callable[[], None]] | None = None) -> Iterator[Warmed]:
    """Compile kernels that are not yet on disk, group by group; yields the result of each group.

    ``groups`` are functions by name, which call what is to be compiled; None for those of all backends.
    """
    from diabat.compute.jit import compiled_functions, unannounced

    for group, ask in (GROUPS if groups is None else groups).items():
        before, start = compiled_functions(), time.perf_counter()
        with unannounced():
            ask()
        yield Warmed(group, compiled_functions() - before, time.perf_counter() - start)


def _problem(
    n: int, problems: int, dtype: torch.dtype, *, own: bool = False, three_body: bool = False, reach: int = 26
) -> Ising:
    """Create a problem with couplings up to distance ``reach``, shared by the batch or per problem."""
    distance = (torch.arange(n)[:, None] - torch.arange(n)).abs()
    J = 0.1 * ((distance > 0) & (distance <= reach)).to(dtype)
    if own:
        J = J * torch.linspace(0.5, 1.0, problems, dtype=dtype)[:, None, None]
    K = pack_three_body(torch.full((math.comb(n, 3),), 0.1, dtype=dtype), n) if three_body else None
    return Ising(torch.linspace(-1, 1, problems * n, dtype=dtype).reshape(problems, n), J, three_body=K)


def _differentiate(backend: str, ising: Ising) -> None:
    h = ising.fields.clone().requires_grad_()
    J = ising.couplings
    leaf: Tensor | None = None if J is None else J.clone().requires_grad_()
    sampler(backend).moments(Ising(h, leaf)).probability.sum().backward()


def _exact() -> None:
    for dtype in (torch.float32, torch.float64):
        ising = _problem(8, 64, dtype)
        _differentiate("exact", ising)
        _differentiate("exact", Ising(ising.fields))
        sampler("exact").moments(ising, correlations=True)
    # Strong couplings have a kernel of their own.
    strong = Ising(ising.fields, torch.full((8, 8), 1e3, dtype=torch.float64).fill_diagonal_(0))
    _differentiate("exact", strong)
    sampler("exact").moments(strong, correlations=True)


def _banded() -> None:
    for dtype, own in product((torch.float32, torch.float64), (False, True)):
        ising = _problem(8, 4, dtype, own=own, reach=2)
        _differentiate("banded", ising)
        sampler("banded").moments(ising, correlations=True)
        sampler("banded").sample(ising, 2, seed=0)


def _mean_field() -> None:
    for n, dtype in product((4, 25), (torch.float32, torch.float64)):  # one problem per lane, or its spins
        _differentiate("mean_field", _problem(n, 32, dtype))


def _dqa(precision: str, *, gradient: bool) -> None:
    backend = sampler("dqa", schedule="boltzmann-4", precision=precision)
    ising = _problem(4, 4, torch.float32)
    if gradient and (solved := backend.solution(ising)):
        solved.gradient(torch.ones_like(ising.fields), pairs=True)
    else:
        backend.sample(ising, 2, seed=0)
        backend.moments(_problem(4, 2, torch.float32))  # few problems have a kernel in single precision


def _tempering() -> None:
    edges = Ising(torch.zeros(4), Edges([(0, 1), (1, 2)], [0.1, 0.1]))
    for ising in (*(_problem(4, 2, torch.float32, three_body=K) for K in (False, True)), edges):
        backend = sampler("tempering", burn_in=2, sweeps=2, num_chains=2)
        backend.moments(ising, correlations=True, seed=0)
        backend.sample(ising, 2, seed=0)
    # Strong couplings of many spins have a kernel of their own.
    strong = Ising(torch.zeros(1, 128), torch.ones(128, 128) - torch.eye(128))
    sampler("tempering", num_replicas=1, burn_in=2).sample(strong, 2, seed=0)


GROUPS: dict[str, Callable[[], None]] = {
    "exact": _exact,
    "mean_field": _mean_field,
    "dqa, single precision": partial(_dqa, "single", gradient=False),
    "dqa, double precision": partial(_dqa, "double", gradient=False),
    "tempering, refine": _tempering,
    "dqa, adjoint, single precision": partial(_dqa, "single", gradient=True),
    "dqa, adjoint, double precision": partial(_dqa, "double", gradient=True),
    "banded": _banded,
}
"""Groups of compiled code by name; those of `make demo` come first."""
