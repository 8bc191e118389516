"""Log-probabilities: enumeration, conditioning, gradients of the likelihood."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from problems import sparse_problem
from torch import Tensor

import diabat
from diabat.ising import Ising, pack_couplings, pack_three_body
from diabat.testing import brute_force_states, state_table
from diabat.testing.problems import causal_problem, make_problem, with_visible

HELD = torch.tensor([0, 1, 0, -1, 0])
MASK = torch.tensor([True, True, False, True, True])
PROBLEMS: dict[str, Ising] = {
    "heads": make_problem((2, 2, 3), 4, lead="heads", seed=1),
    "K, hidden": with_visible(make_problem((3,), 5, lead="per_problem", seed=2, three_body=0.4), MASK),
    "causal": causal_problem(6, seed=3),
    "edges": sparse_problem((2,), 8, 9, lead=(2,), seed=4),
    "edges, hidden, clamped": with_visible(sparse_problem((2,), 5, 6, seed=5), MASK).clamp(HELD),
    "K, clamped": make_problem((), 5, seed=6, three_body=0.5).clamp(HELD),
    "clamped in two ways": make_problem((), 5, seed=7).clamp(torch.stack((HELD, -HELD))),
    "offset": Ising(torch.randn(3, 1), offset=torch.tensor([1.0, -2.0, 0.5])),
    "labels": Ising.from_dict({"a": 0.3, ("b", 1): -0.2}, {("a", 7): 0.5, (7, ("b", 1)): -0.4})[0],
}


def log_partition(problem: Ising, backend: str = "exact") -> Tensor:
    found = diabat.sampler(backend).moments(problem).log_partition
    assert found is not None
    return found


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("backend", ["exact", "banded"])
def test_it_is_the_logarithm_of_the_enumerated_law(name: str, backend: str) -> None:
    problem = PROBLEMS[name]
    if problem.three_body is not None and backend == "banded":
        pytest.skip("banded takes no three-body terms")
    table = state_table(problem.num_spins)
    states = table.reshape(-1, *(1,) * len(problem.batch_shape), problem.num_spins)  # [2^n, 1, .., n]
    got = problem.log_prob(states, log_partition(problem, backend))
    assert got.shape == (len(table), *problem.batch_shape)
    assert got.dtype == problem.fields.dtype
    want = brute_force_states(problem).log().movedim(-1, 0)
    known = want.isfinite()  # the oracle gives a state with a hidden spin at +1 no probability of its own
    tolerance = 1e-6 if got.dtype == torch.float32 else 1e-12
    torch.testing.assert_close(got.double()[known], want[known], atol=tolerance, rtol=0)
    held = torch.zeros(()) if problem.clamped is None else problem.clamped
    assert torch.equal(got == -math.inf, ((held != 0) & (states != held)).any(-1).expand(got.shape))
    hidden = (~problem.visible_mask & (held == 0)).sum(-1).double()
    torch.testing.assert_close(got.double().logsumexp(0), hidden * math.log(2), atol=tolerance, rtol=0)


@pytest.mark.parametrize("given", ["dense", "hidden", "clamped", "edges"])
def test_gradients_agree_with_finite_differences(given: str) -> None:
    g, n = torch.Generator().manual_seed(10), 5
    spins = torch.where(HELD == 0, 1 - 2 * torch.randint(2, (3, 2, n), generator=g), HELD)
    shapes = ((2, n), (10,), (10,), (2,))
    inputs = [torch.randn(*shape, generator=g).double().mul(0.5).requires_grad_() for shape in shapes]

    def likelihood(h: Tensor, pairs: Tensor, triples: Tensor, c: Tensor) -> Tensor:
        J: Any = pack_couplings(pairs, n)
        K: Any = pack_three_body(triples, n)
        if given == "edges":
            J, K = diabat.Edges(torch.triu_indices(n, n, 1).T, pairs), None
        problem = Ising(h, J, MASK if given == "hidden" else None, K, c)
        problem = problem.clamp(HELD) if given == "clamped" else problem
        return problem.log_prob(spins, log_partition(problem)).mean(0)

    assert torch.autograd.gradcheck(likelihood, inputs)


def test_the_gradient_is_data_less_model_also_under_torch_func() -> None:
    """∂/∂h = <s>_data - <s>; ∂/∂J likewise of pairs, each entry having one half."""
    base, sampler = make_problem((), 6, seed=11), diabat.sampler("exact")
    data = sampler.sample(make_problem((), 6, seed=12), 50, seed=1).spins.double()

    def likelihood(h: Tensor, J: Tensor) -> Tensor:
        problem = Ising(h, J, check=False)
        return problem.log_prob(data, log_partition(problem)).mean()

    model = sampler.moments(base, correlations=True)
    want = data.mean(0) - model.magnetization, (data.T @ data / 50 - model.correlation) / 2
    h, J = base.fields.requires_grad_(), base.couplings.requires_grad_()
    plain = torch.autograd.grad(likelihood(h, J), (h, J))
    for found in (plain, torch.func.grad(likelihood, argnums=(0, 1))(h.detach(), J.detach())):
        torch.testing.assert_close(found[0], want[0], atol=1e-12, rtol=0)
        off = ~torch.eye(6, dtype=torch.bool)
        torch.testing.assert_close(found[1][off], want[1][off], atol=1e-12, rtol=0)
