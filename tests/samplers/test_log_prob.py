"""Log-probabilities: enumeration, conditioning, gradients of the likelihood, refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import diabat
from diabat.ising import Ising, IsingError, pack_couplings, pack_three_body
from diabat.testing import brute_force_states, state_table
from diabat.testing.problems import causal_problem, make_problem, sparse_problem, with_visible

HELD = torch.tensor([0, 1, 0, -1, 0])
MASK = torch.tensor([True, True, False, True, True])
LABELLED, LABELS = Ising.from_dict({"a": 0.3, ("b", 1): -0.2}, {("a", 7): 0.5, (7, ("b", 1)): -0.4})
PROBLEMS: dict[str, Ising] = {
    "one spin": Ising(torch.tensor([0.4])),
    "heads": make_problem((2, 2, 3), 4, lead="heads", seed=1),
    "K, hidden": with_visible(make_problem((3,), 5, lead="per_problem", seed=2, three_body=0.4), MASK),
    "causal": causal_problem(6, seed=3),
    "edges": sparse_problem((2,), 8, 9, lead=(2,), seed=4),
    "edges, hidden, clamped": with_visible(sparse_problem((2,), 5, 6, seed=5), MASK).clamp(HELD),
    "K, clamped": make_problem((), 5, seed=6, three_body=0.5).clamp(HELD),
    "clamped in two ways": make_problem((), 5, seed=7).clamp(torch.stack((HELD, -HELD))),
    "offset": Ising(torch.randn(3, 4), offset=torch.tensor([1.0, -2.0, 0.5])),
    "labels": LABELLED,
    "float32": make_problem((2,), 6, seed=8, dtype=torch.float32),
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
    states = state_table(problem.num_spins)
    for_each = states.reshape(-1, *(1,) * len(problem.batch_shape), problem.num_spins)  # [2^n, 1, .., n]
    got = problem.log_prob(for_each, log_partition(problem, backend))
    assert got.shape == (len(states), *problem.batch_shape)
    assert got.dtype == problem.fields.dtype
    want = brute_force_states(problem).log().movedim(-1, 0)
    # The oracle gives a state with a hidden spin at +1 no probability of its own.
    known = want.isfinite()
    tolerance = 1e-5 if got.dtype == torch.float32 else 1e-12
    torch.testing.assert_close(got.double()[known], want[known], atol=tolerance, rtol=0)
    if problem.clamped is not None:
        against = ((problem.clamped != 0) & (for_each != problem.clamped)).any(-1)
        assert torch.equal(got == -math.inf, against)
    hidden = (~problem.visible_mask & (problem.clamped is None or problem.clamped == 0)).sum(-1)
    total = hidden.double() * math.log(2)  # of each value of the hidden spins
    torch.testing.assert_close(got.double().logsumexp(0), total, atol=tolerance, rtol=0)


def test_labels_name_the_spins_of_a_state() -> None:
    state = {"a": 1, ("b", 1): -1, 7: 1}
    spins = torch.tensor([state[label] for label in LABELS])
    got = LABELLED.log_prob(spins, log_partition(LABELLED))
    by_hand = 0.3 + 0.2 + 0.5 + 0.4
    assert float(got) == pytest.approx(by_hand - float(log_partition(LABELLED)), abs=1e-14)


def test_a_conditional_is_a_joint_over_a_marginal() -> None:
    """log P(s_free | s_c) = log P(s) - log P(s_c), and log P(s_c) = log Z of the clamped problem - log Z."""
    problem = make_problem((2,), 5, seed=9, three_body=0.4)
    states, log_z = state_table(5)[:, None], log_partition(problem)
    clamped = problem.clamp(HELD)
    marginal = log_partition(clamped) - log_z
    joint = problem.log_prob(states, log_z)
    agrees = (states[:, 0, 1] == 1) & (states[:, 0, 3] == -1)
    torch.testing.assert_close(joint[agrees].logsumexp(0), marginal, atol=1e-12, rtol=0)
    conditional = clamped.log_prob(states, log_partition(clamped))
    torch.testing.assert_close(conditional[agrees], joint[agrees] - marginal, atol=1e-12, rtol=0)


@pytest.mark.parametrize("given", ["dense", "hidden", "clamped", "edges"])
def test_gradients_agree_with_finite_differences(given: str) -> None:
    g = torch.Generator().manual_seed(10)
    n, spins = 5, 1 - 2 * torch.randint(2, (3, 2, 5), generator=g)
    spins[..., [1, 3]] = torch.tensor([1, -1])
    h, pairs, triples, c = (
        (0.5 * torch.randn(*shape, generator=g, dtype=torch.float64)).requires_grad_()
        for shape in ((2, n), (10,), (10,), (2,))
    )

    def likelihood(h: Tensor, pairs: Tensor, triples: Tensor, c: Tensor) -> Tensor:
        J: Any = pack_couplings(pairs, n)
        K = pack_three_body(triples, n)
        if given == "edges":
            J, K = diabat.Edges(torch.triu_indices(n, n, 1).T, pairs), None
        problem = Ising(h, J, MASK if given == "hidden" else None, K, c)
        problem = problem.clamp(HELD) if given == "clamped" else problem
        return problem.log_prob(spins, log_partition(problem)).mean(0)

    inputs = (h, pairs, triples, c)
    assert torch.autograd.gradcheck(likelihood, inputs)
    value = likelihood(*inputs).sum()
    of_c = torch.autograd.grad(value, c, allow_unused=True)[0]
    torch.testing.assert_close(of_c, torch.zeros(2).double(), atol=1e-13, rtol=0)  # log Z has it as well


def test_the_gradient_is_data_less_model() -> None:
    """∂/∂h = <s>_data - <s>, ∂/∂J likewise of pairs, both entries of a pair sharing it; also under torch.func."""
    base = make_problem((), 6, seed=11)
    assert base.couplings is not None
    h, J = base.fields.requires_grad_(), base.couplings.requires_grad_()
    data = diabat.sampler("exact").sample(make_problem((), 6, seed=12), 50, seed=1).spins.double()
    found = diabat.sampler("exact").moments(Ising(h, J), correlations=True)

    def likelihood(h: Tensor, J: Tensor) -> Tensor:
        problem = Ising(h, J, check=False)
        return problem.log_prob(data, log_partition(problem)).mean()

    dh, dJ = torch.autograd.grad(likelihood(h, J), (h, J))
    assert found.correlation is not None
    pairs = (data.T @ data / 50 - found.correlation).fill_diagonal_(0) / 2
    torch.testing.assert_close(dh, data.mean(0) - found.magnetization, atol=1e-12, rtol=0)
    torch.testing.assert_close(dJ.detach().fill_diagonal_(0), pairs, atol=1e-12, rtol=0)
    transformed = torch.func.grad(likelihood, argnums=(0, 1))(h.detach(), J.detach())
    torch.testing.assert_close(transformed[0], dh, atol=1e-12, rtol=0)
    torch.testing.assert_close(transformed[1].fill_diagonal_(0), dJ.fill_diagonal_(0), atol=1e-12, rtol=0)


ONES = torch.ones(2, 3)
REFUSED: list[tuple[Any, Any, str]] = [
    (ONES, None, r"log_partition: expected log Z, got None; moments of 'exact', 'banded' and 'tempering'"),
    (ONES, torch.zeros(3), r"log_partition: expected leading dimensions that broadcast to the batch \[2\]"),
    (ONES, torch.zeros(2).double(), "log_partition: expected dtype torch.float32 on cpu as in fields"),
    (ONES, math.nan, "log_partition: expected finite values, got nan"),
    (0 * ONES, 0.0, r"spins: expected -1 or \+1 at visible spins, got 0.0 at \[0, 0\]; 2 \* x - 1 makes"),
    (torch.tensor([1.0, 0.5, -1]), 0.0, r"spins: expected -1 or \+1 .* got 0.5 at \[0, 1\]\."),
    ([[1, 1, 1]], 0.0, "spins: expected a torch.Tensor, got list"),
    (torch.ones(4), 0.0, "spins: expected a shape that broadcasts"),
]


@pytest.mark.parametrize(("spins", "log_z", "message"), REFUSED)
def test_what_does_not_fit_is_refused(spins: Any, log_z: Any, message: str) -> None:
    with pytest.raises(IsingError, match=message):
        Ising(torch.zeros(2, 3)).log_prob(spins, log_z)


def test_a_log_z_without_a_gradient_is_refused_where_one_is_needed() -> None:
    problem = Ising(torch.zeros(2, 3, requires_grad=True))
    estimate = diabat.sampler("tempering").moments(problem, seed=1).log_partition
    with pytest.raises(IsingError, match="log_partition: expected a gradient as in fields, got none"):
        problem.log_prob(ONES, estimate)
    values = problem.detach().log_prob(ONES, estimate)
    torch.testing.assert_close(values, torch.full((2,), -3 * math.log(2)), atol=0.01, rtol=0)
    with torch.no_grad():
        assert torch.equal(problem.log_prob(ONES, estimate), values)
