"""Problems, enumerations and comparisons that tests of several rooms share.

    from problems import PATTERNS, banded_problem, g_test, gradients, naive, pvalue

    ising = banded_problem((2, 6), 6, width=2, lead="heads", visible=PATTERNS["causal"])
    assert pvalue(backend, ising, reads=READS) > ALPHA # reads against the Boltzmann law, by enumeration
    p, log_z = naive(ising)                            # what autograd can differentiate as often as it likes

Random problems without structure are those of ``diabat.testing.problems`` (``make_problem`` and the like).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from diabat.ising import Ising
from diabat.ising.edges import Edges
from diabat.samplers import Moments, Sampler
from diabat.samplers.answers import AdjointGradient, AdjointSolution
from diabat.testing import brute_force_states, state_table
from diabat.testing.problems import Lead, make_problem, with_visible

F64 = torch.float64
ALPHA = 1e-6
"""Type I error of one test, unless it says otherwise."""


def causal(n: int) -> Tensor:
    """Position i sees the spins up to i, bool [n, n]."""
    return torch.ones(n, n, dtype=torch.bool).tril()


def band(n: int, width: int) -> Tensor:
    """1 where 0 < |j - k| <= width, [n, n]."""
    places = torch.arange(n)
    apart = (places[:, None] - places).abs()
    return ((apart > 0) & (apart <= width)).double()


def banded_problem(
    batch: tuple[int, ...], n: int, width: int, *, visible: Tensor | None = None, **options: Any
) -> Ising:
    """``make_problem(batch, n, **options)`` with the couplings up to a distance, and a mask."""
    ising = make_problem(batch, n, **options)
    J = ising.couplings
    return Ising(ising.fields, None if J is None else J * band(n, width).to(J), visible)


def padded_windows(lead: Lead, *, three_body: float = 0.0) -> Ising:
    """Causal windows of 4 spins in 3 sequences of 2 heads, two of them with padding; one query sees nothing."""
    padding = torch.tensor([[False] * 4, [False, False, True, True], [True, True, False, False]])
    base = make_problem((3, 2, 4), 4, lead=lead, seed=1, three_body=three_body)
    return with_visible(base, causal(4) & ~padding[:, None, None])


def _ragged() -> Tensor:
    mask = torch.rand(6, 6, generator=torch.Generator().manual_seed(3)) < 0.6
    mask[0], mask[1] = False, True
    return mask


PATTERNS = {
    "all": None,
    "causal": causal(6),
    "reversed": causal(6).T.contiguous(),
    "padding": (torch.arange(6) < 4).expand(6, 6).clone(),
    "shared_row": torch.tensor([True, False, True, True, False, True]),
    "ragged": _ragged(),
    "one_each": torch.eye(6, dtype=torch.bool),
    "nothing": torch.zeros(6, 6, dtype=torch.bool),
    "one_for_all": torch.tensor([True]),
}
"""Masks of visible spins for six problems of six spins."""


# Enumerations


def naive(ising: Ising) -> tuple[Tensor, Tensor]:
    """P(s = +1) [*batch, n] and log Z [*batch]; a [*batch, 2^n] array, one einsum per order."""
    states = state_table(ising.num_spins).to(ising.fields)
    seen = ising.visible_mask
    s = states * seen[..., None, :]  # [*batch, 2^n, n]
    exponent = (s * ising.fields[..., None, :]).sum(-1)
    n = ising.num_spins
    # Coincident indices are no terms of the model, and must not show in the gradient either.
    apart = 1 - torch.eye(n, dtype=s.dtype)
    if ising.couplings is not None:
        exponent = exponent + torch.einsum("...jk,...xj,...xk->...x", ising.couplings * apart, s, s) / 2
    if ising.three_body is not None:
        K = ising.three_body * apart[:, :, None] * apart[:, None, :] * apart[None, :, :]
        exponent = exponent + torch.einsum("...jkl,...xj,...xk,...xl->...x", K, s, s, s) / 6
    probability = torch.softmax(exponent, -1) @ (states > 0).to(s)
    # Every state was counted once for each value of the invisible spins.
    log_z = exponent.logsumexp(-1) - (~seen).sum(-1).to(s) * math.log(2)
    return torch.where(seen, probability, 0), log_z


def naive_log_odds(ising: Ising) -> Tensor:
    """log P(s = +1)/P(s = -1) by log-sums over all states, [*batch, n]; 0 at invisible spins."""
    s = state_table(ising.num_spins).to(ising.fields)
    seen = s * ising.visible_mask[..., None, :]
    exponent = (seen * ising.fields[..., None, :]).sum(-1)
    if ising.couplings is not None:
        off = ising.couplings * (1 - torch.eye(ising.num_spins, dtype=s.dtype))
        exponent = exponent + torch.einsum("...jk,...xj,...xk->...x", off, seen, seen) / 2
    up, down = (
        torch.stack([exponent[..., s[:, j] == side].logsumexp(-1) for j in range(ising.num_spins)], -1)
        for side in (1, -1)
    )
    return torch.where(ising.visible_mask, up - down, 0)


def solved(sampler: Sampler) -> Callable[[Ising], tuple[Tensor, Tensor]]:
    """The probabilities and log Z of a sampler, as ``naive`` gives them."""

    def solve(ising: Ising) -> tuple[Tensor, Tensor]:
        moments = sampler.moments(ising)
        assert moments.log_partition is not None
        return moments.probability, moments.log_partition

    return solve


def gradients(
    ising: Ising, solve: Callable[[Ising], tuple[Tensor, Tensor]], terms: str = "PZ"
) -> tuple[Tensor, ...]:
    """Gradient of a fixed linear form in P and/or log Z with respect to h and what there is of J and K."""
    return gradients_of_each(ising, solve, terms)[0]


def gradients_of_each(
    ising: Ising, solve: Callable[[Ising], tuple[Tensor, Tensor]], *forms: str
) -> list[tuple[Tensor, ...]]:
    """`gradients` of several forms, from one solution."""
    given = (ising.fields, ising.couplings, ising.three_body)
    h, J, K = (None if t is None else t.clone().requires_grad_() for t in given)
    assert h is not None
    p, log_z = solve(Ising(h, J, ising.visible, K))
    generator = torch.Generator().manual_seed(99)
    v, u = (torch.randn(t.shape, generator=generator, dtype=F64).to(p) for t in (p, log_z))
    leaves = [t for t in (h, J, K) if t is not None]
    losses = [("P" in form) * (v * p).sum() + ("Z" in form) * (u * log_z).sum() for form in forms]
    # Where nothing is visible, nothing depends on the couplings.
    return [torch.autograd.grad(loss, leaves, retain_graph=True, materialize_grads=True) for loss in losses]


# Comparisons


def adjoint(sampler: Sampler, ising: Ising, v: Tensor, seed: int = 0) -> AdjointGradient:
    """The derivative of Σ v P by the sampler's adjoint solution."""
    solution = sampler.solution(ising, seed=seed)
    assert isinstance(solution, AdjointSolution)
    return solution.derivative(v)


def relative_error(got: Tensor, want: Tensor) -> float:
    """Largest relative error over the entries that are not zero."""
    want = want.double()
    return float(((got.double() - want).abs() / want)[want > 0].max())


def assert_moments(got: Moments, want: Moments, dtype: torch.dtype, tolerance: float) -> None:
    """Probabilities, pairs and log Z within a tolerance of the largest, in the dtype and shape asked for."""
    for name in ("probability", "correlation", "log_partition"):
        value, expected = getattr(got, name), getattr(want, name)
        assert value.dtype == dtype
        assert value.shape == expected.shape
        scale = max(1.0, float(expected.abs().max()))
        assert float((value.double() - expected).abs().max()) < tolerance * scale, name


def g_test(spins: Any, probabilities: Any) -> float:
    """p-value of the G statistic of the states of reads [N, problems, n] against [problems, 2^n], pooled.

    Bit j of the index of a state is spin j.  A state that has no probability and was read gives 0.
    """
    reads, table = np.asarray(spins), np.asarray(probabilities)
    index = (reads > 0) @ (1 << np.arange(reads.shape[-1]))
    statistic, freedom = 0.0, 0
    for problem, p in enumerate(table):
        count, expected = np.bincount(index[:, problem], minlength=len(p)), len(reads) * p
        if count[expected <= 0].any():
            return 0.0
        # Rare states share a cell: the limit law of G needs expectations of several reads.
        rare = expected < 10
        cells = np.append(expected[~rare], expected[rare].sum())
        seen = np.append(count[~rare], count[rare].sum())
        cells, seen = cells[cells > 0], seen[cells > 0]
        statistic += 2 * float((seen * np.log(np.maximum(seen, 1) / cells)).sum())
        freedom += len(cells) - 1
    return float(stats.chi2.sf(statistic, freedom))


def pvalue(sampler: Sampler, ising: Ising, law: Tensor | None = None, *, reads: int, seed: int = 1) -> float:
    """G-test of all states of all problems, so many reads each, against a law or that of Boltzmann."""
    n = ising.num_spins
    spins = sampler.sample(ising, reads, seed=seed).spins.reshape(reads, -1, n)
    return g_test(spins, (brute_force_states(ising) if law is None else law).reshape(-1, 2**n))


def total_variation(law: Tensor, other: Tensor) -> float:
    """Mean over the problems of the distance of two tables of state probabilities."""
    return float((law - other).abs().sum(-1).mean() / 2)


def sparse_problem(
    batch: tuple[int, ...],
    n: int,
    count: int,
    *,
    lead: tuple[int, ...] = (),
    seed: int = 0,
    fields: float = 0.5,
    couplings: float = 0.6,
    dtype: torch.dtype = torch.float64,
) -> Ising:
    """Random problem whose couplings are ``count`` random edges; h and J are multiples of 1/64, exact in float32."""
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.triu_indices(n, n, offset=1).T
    index = pairs[torch.randperm(len(pairs), generator=generator)[:count]]
    h, J = (
        (64 * scale * torch.randn(*shape, generator=generator, dtype=torch.float64)).round() / 64
        for scale, shape in ((fields, (*batch, n)), (couplings, (*lead, count)))
    )
    flipped = torch.rand(count, generator=generator) < 0.5  # either order of a pair is an edge
    index = torch.where(flipped[:, None], index.flip(1), index)
    return Ising(h.to(dtype), Edges(index, J.to(dtype)))
