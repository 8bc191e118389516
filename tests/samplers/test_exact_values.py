from __future__ import annotations

import pytest
import torch
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers import Moments
from diabat.samplers.exact import ExactSampler
from diabat.testing import brute_force, brute_force_states
from diabat.testing.problems import Lead, causal_problem, make_problem, with_visible

LEADS: tuple[Lead, ...] = ("none", "shared", "heads", "per_problem")
# Sums of up to 2^10 terms in the working precision.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def assert_equal(got: Moments, want: Moments, dtype: torch.dtype) -> None:
    for name in ("probability", "correlation", "log_partition"):
        value, expected = getattr(got, name), getattr(want, name)
        assert value.dtype == dtype
        assert value.shape == expected.shape
        scale = max(1.0, float(expected.abs().max()))
        assert float((value.double() - expected).abs().max()) < TOLERANCE[dtype] * scale, name


def check(ising: Ising) -> None:
    assert_equal(ExactSampler().moments(ising, correlations=True), brute_force(ising), ising.fields.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", range(1, 11))
def test_every_size(n: int, dtype: torch.dtype) -> None:
    check(make_problem((3,), n, seed=n, three_body=0.3, dtype=dtype))


@pytest.mark.parametrize("three_body", [0.0, 0.4])
@pytest.mark.parametrize("batch", [(), (1,), (2, 3), (2, 2, 3)])
@pytest.mark.parametrize("lead", LEADS)
def test_every_lead(lead: Lead, batch: tuple[int, ...], three_body: float) -> None:
    check(make_problem(batch, 5, lead=lead, seed=1, three_body=three_body))


def test_leads_of_couplings_and_three_body_terms_may_differ() -> None:
    J = make_problem((2, 3), 4, lead="heads", seed=3).couplings
    K = make_problem((2, 3), 4, seed=4, three_body=0.5).three_body
    check(Ising(make_problem((2, 3), 4).fields, J, three_body=K))


def ragged(problems: int, n: int) -> Tensor:
    mask = torch.rand(problems, n, generator=torch.Generator().manual_seed(3)) < 0.6
    mask[0] = False
    mask[1] = True
    return mask


PATTERNS = {
    "causal": torch.ones(6, 6, dtype=torch.bool).tril(),
    "padding": (torch.arange(6) < 4).expand(6, 6).clone(),
    "shared_row": torch.tensor([True, False, True, True, False, True]),
    "ragged": ragged(6, 6),
    "one_each": torch.eye(6, dtype=torch.bool),
    "nothing": torch.zeros(6, 6, dtype=torch.bool),
}


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_visibility(pattern: str, lead: Lead) -> None:
    check(with_visible(make_problem((2, 6), 6, lead=lead, seed=5, three_body=0.3), PATTERNS[pattern]))


@pytest.mark.parametrize("n", [1, 2, 7])
def test_a_query_that_sees_nothing(n: int) -> None:
    ising = with_visible(make_problem((2,), n, lead="none"), torch.zeros(n, dtype=torch.bool))
    moments = ExactSampler().moments(ising, correlations=True)
    for value in (moments.probability, moments.correlation, moments.log_partition):
        assert not value.any()


def test_a_larger_causal_window_of_several_heads() -> None:
    """Position i of the batch is position i alone, solved with its first i + 1 spins."""
    n, sampler = 12, ExactSampler()
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    ising = with_visible(make_problem((2, 2, n), n, lead="heads", seed=6), mask)
    moments = sampler.moments(ising)
    for i in range(n):
        first = slice(None, i + 1)
        alone = sampler.moments(
            Ising(ising.fields[:, :, i, first], ising.couplings[:, 0, first, first].contiguous())
        )
        assert (moments.probability[:, :, i, first] - alone.probability).abs().max() < 1e-12
        assert (moments.log_partition[:, :, i] - alone.log_partition).abs().max() < 1e-11
        assert not moments.probability[:, :, i, i + 1 :].any()


def test_magnetization_and_probability_agree() -> None:
    moments = ExactSampler().moments(causal_problem(5, seed=1))
    assert torch.equal(moments.magnetization == 0, ~moments.visible)
    assert torch.allclose(
        moments.magnetization[moments.visible], 2 * moments.probability[moments.visible] - 1
    )


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_state_probabilities(n: int, lead: Lead) -> None:
    ising = make_problem((2, 3), n, lead=lead, seed=n, three_body=0.4)
    p = ExactSampler().state_probabilities(ising)
    assert p.shape == (2, 3, 2**n)
    assert (p - brute_force_states(ising)).abs().max() < 1e-13


def test_bit_j_of_the_state_index_is_spin_j() -> None:
    p = ExactSampler().state_probabilities(Ising(torch.tensor([9.0, -9.0, -9.0])))
    assert float(p[1]) > 0.999


def test_fields_are_not_written_to() -> None:
    ising = make_problem((3,), 6, seed=1)
    kept = ising.fields.clone(), ising.couplings.clone()
    ExactSampler().moments(ising, correlations=True)
    assert torch.equal(ising.fields, kept[0])
    assert torch.equal(ising.couplings, kept[1])
