from __future__ import annotations

import pytest
import torch

from diabat.ising import Ising, pack_three_body
from diabat.samplers import UnsupportedError
from diabat.samplers.exact import ExactSampler, half_split, sampler
from diabat.testing import brute_force, brute_force_states, state_table
from diabat.testing.problems import make_problem

from .enumeration import relative_error
from .goodness import g_test


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small problems, too, are done by products of halves."""
    monkeypatch.setattr(sampler, "is_few", lambda ising: False)
    monkeypatch.setattr(sampler, "suits_kernel", lambda *shape: False)


@pytest.fixture(params=["kernel", "halves"])
def either(request: pytest.FixtureRequest) -> None:
    """Small problems by the kernel, as usual, and by products of halves."""
    if request.param == "halves":
        request.getfixturevalue("halves")


def in_float64(ising: Ising) -> Ising:
    J = None if ising.couplings is None else ising.couplings.double()
    return Ising(ising.fields.double(), J)


@pytest.mark.parametrize(("fields", "couplings"), [(0.5, 0.1), (1.0, 0.5), (2.0, 1.0), (4.0, 3.0)])
def test_float32_keeps_the_relative_precision_of_every_probability(fields: float, couplings: float) -> None:
    """At n = 16, within 1e-5 of float64, also where a probability is far below the rounding of 1."""
    ising = make_problem((8,), 16, seed=1, fields=fields, couplings=couplings, dtype=torch.float32)
    single, double = (ExactSampler().moments(p) for p in (ising, in_float64(ising)))
    assert single.probability.dtype == torch.float32
    # Compared where float32 can hold the number with its full precision.
    held = torch.where(double.probability > 1e-37, double.probability, 0)
    assert relative_error(single.probability, held) < 1e-5
    assert relative_error(single.log_partition, double.log_partition) < 1e-6


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_very_negative_fields(dtype: torch.dtype) -> None:
    """h = -60: P = e^-120 is not representable in float32, and exact to rounding in float64; never NaN."""
    ising = make_problem((4,), 6, seed=2, fields=0.1, couplings=0.1, dtype=dtype)
    fields = (ising.fields - 60).requires_grad_()
    moments = ExactSampler().moments(Ising(fields, ising.couplings), correlations=True)
    moments.probability.sum().backward()
    assert torch.isfinite(fields.grad).all()
    assert (moments.probability >= 0).all()
    assert (moments.correlation - 1).abs().max() < 1e-6
    if dtype == torch.float64:
        want = brute_force(Ising(fields.detach(), ising.couplings)).probability
        assert float(want.max()) < 1e-45
        assert relative_error(moments.probability.detach(), want) < 1e-11


def below_its_bound(cross: float, dtype: torch.dtype) -> Ising:
    """14 spins: the right half is a stiff ferromagnet, while every left spin pulls it into a staggered state.

    The largest entry of a row of W is then about exp(-7 |cross · Σ s_left|) below the bound Σ|c| + max e_R.
    """
    J = torch.zeros(14, 14, dtype=dtype)
    J[7:, 7:] = 12.0
    J[:7, 7:] = cross * (1 - 2.0 * (torch.arange(7) % 2))
    J[7:, :7] = J[:7, 7:].T.clone()
    J.diagonal().zero_()
    h = torch.randn(3, 14, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Ising((0.3 * h).to(dtype), J)


@pytest.mark.usefixtures("halves")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cross", [0.01, 2.0, 4.0])
def test_rows_far_below_their_bound(cross: float, dtype: torch.dtype) -> None:
    """The largest weights of a row are far below the product of the largest of its factors."""
    ising = below_its_bound(cross, dtype)
    moments, want = ExactSampler().moments(ising, correlations=True), brute_force(ising)
    assert (
        relative_error(moments.probability, want.probability)
        < {torch.float32: 1e-5, torch.float64: 1e-11}[dtype]
    )
    assert (moments.correlation - want.correlation).abs().max() < 1e-5


def opposed(field: float, coupling: float, dtype: torch.dtype) -> Ising:
    """Two spins whose fields oppose each other and whose coupling loses: Z is far below its bound."""
    J = torch.tensor([[0.0, coupling], [coupling, 0.0]], dtype=dtype)
    return Ising(torch.tensor([[field, -field]], dtype=dtype), J)


@pytest.mark.usefixtures("halves")
def test_escalation_to_float64_is_reported_and_right() -> None:
    sampler = ExactSampler()
    weak, strong = opposed(1.0, 0.5, torch.float32), opposed(50.0, 45.0, torch.float32)
    assert sampler.moments(weak).info["float64_escalation"] is False
    moments = sampler.moments(strong, correlations=True)
    assert moments.info["float64_escalation"] is True
    want = brute_force(strong)
    assert moments.probability.dtype == torch.float32
    assert relative_error(moments.probability, want.probability) < 1e-5
    assert (moments.correlation - want.correlation).abs().max() < 1e-6


@pytest.mark.usefixtures("either")
def test_escalated_gradients_are_right() -> None:
    ising = opposed(50.0, 49.5, torch.float32)
    fields = ising.fields.clone().requires_grad_()
    p = ExactSampler().moments(Ising(fields, ising.couplings)).probability
    p[0, 0].backward()
    # Three states share the weight; Cov(s_j, s_0) of (+,-), (+,+), (-,-) by hand.
    weights = torch.softmax(torch.tensor([50.5, 49.5, 49.5], dtype=torch.float64), 0)
    s = torch.tensor([[1, -1], [1, 1], [-1, -1]], dtype=torch.float64)
    mean = weights @ s
    assert fields.grad[0].double().tolist() == pytest.approx(
        ((weights @ (s * s[:, :1]) - mean * mean[0]) / 2).tolist(), rel=1e-5
    )


def strong_batch(n: int, dtype: torch.dtype, *, three_body: bool = False) -> Ising:
    """Fields and couplings of hundreds that oppose each other, 5 queries of each of 2 J, between two weak ones."""
    plain = make_problem((2, 7), n, seed=n, fields=400.0, couplings=150.0, three_body=0.0, dtype=dtype)
    scale = torch.ones(2, 7, 1, dtype=dtype)
    scale[0, 3] = 1e-3
    scale[1] = 1e-3
    scale[1, 5] = 1
    J = torch.randn(2, 1, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    J = (150 * (J + J.mT)).tril(-1)
    J[1] /= 1000
    K = None
    if three_body:
        triples = torch.randn(
            n * (n - 1) * (n - 2) // 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64
        )
        K = pack_three_body(80 * triples, n).to(dtype)
    return Ising(plain.fields * scale, (J + J.mT).to(dtype), three_body=K)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "three_body"), [(2, False), (7, False), (14, False), (8, True)])
def test_what_exceeds_float64_is_right(n: int, three_body: bool, dtype: torch.dtype) -> None:
    ising, sampler = strong_batch(n, dtype, three_body=three_body), ExactSampler()
    moments, want = sampler.moments(ising, correlations=True), brute_force(ising)
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-9}[dtype]
    assert (moments.probability - want.probability).abs().max() < tolerance
    assert (moments.correlation - want.correlation).abs().max() < 2 * tolerance
    assert relative_error(moments.log_partition, want.log_partition) < 1e-6
    assert (sampler.state_probabilities(ising) - brute_force_states(ising)).abs().max() < tolerance


@pytest.mark.usefixtures("halves")
def test_strong_queries_are_lost_without_weights_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard of the tests around this one."""
    monkeypatch.setattr(half_split, "_LEAST_TOTAL", {torch.float32: -1.0, torch.float64: -1.0})
    with pytest.raises(UnsupportedError, match="float64 can hold"):
        ExactSampler().moments(opposed(500.0, 450.0, torch.float64))


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("budget_mb", [256.0, 1e-4])
def test_gradients_of_strong_problems_are_those_of_enumeration(budget_mb: float) -> None:
    """Near-ties: Cov is of order 1 although exponents are of order 1000; also of the weak queries beside them."""
    strong = opposed(500.0, 499.5, torch.float64)
    h = torch.cat((strong.fields, torch.tensor([[0.3, -0.2], [501.0, -500.4]], dtype=torch.float64)))
    s = torch.tensor([[-1.0, -1], [1, -1], [-1, 1], [1, 1]], dtype=torch.float64)
    found = []
    for enumerate_states in (False, True):
        fields, J = h.clone().requires_grad_(), strong.couplings.clone().requires_grad_()
        if enumerate_states:
            exponent = fields @ s.T + (s @ J * s).sum(-1) / 2
            p = torch.softmax(exponent, -1) @ (s > 0).double()
            log_z = exponent.logsumexp(-1)
        else:
            moments = ExactSampler(memory_budget_mb=budget_mb).moments(Ising(fields, J))
            assert moments.log_partition is not None
            p, log_z = moments.probability, moments.log_partition
        (p[:, 0].sum() + 0.3 * log_z.sum()).backward()
        found.append((fields.grad, (J.grad + J.grad.T).triu(1)))
    for got, want in zip(*found, strict=True):
        assert (got - want).abs().max() < 1e-9


def test_reads_of_strong_problems_follow_their_law() -> None:
    """N = 4000 reads, alpha = 1e-6: states (+,-), (+,+), (-,-) at weights e, 1, 1."""
    ising = opposed(500.0, 499.5, torch.float32)
    assert g_test(ExactSampler().sample(ising, 4000, seed=1).spins, brute_force_states(ising)) > 1e-6


@pytest.mark.parametrize("call", ["moments", "sample", "state_probabilities"])
def test_what_no_number_holds_is_refused(call: str) -> None:
    ising, sampler = opposed(1.5e308, 1.5e308, torch.float64), ExactSampler()
    refusal = (
        "float64 can hold" if call == "state_probabilities" else "so that float64 still resolves smaller"
    )
    with pytest.raises(ValueError, match=f"fields: expected .*{refusal}.*, got"):
        _ = sampler.sample(ising, 4, seed=0) if call == "sample" else getattr(sampler, call)(ising)


def test_strong_queries_that_take_too_long_are_refused() -> None:
    sampler = ExactSampler(max_seconds=1e-5)
    ising = Ising(
        opposed(500.0, 450.0, torch.float64).fields.expand(3000, 2),
        opposed(1.0, 450.0, torch.float64).couplings,
    )
    with pytest.raises(
        UnsupportedError, match="3000 of 2 visible spins whose fields and couplings are so strong"
    ):
        sampler.moments(ising)


@pytest.mark.parametrize(("scale", "field"), [(300.0, 1.0), (200.0, 60.0)])
def test_gradients_of_strong_couplings_are_those_of_enumeration(scale: float, field: float) -> None:
    """Where no query of a group can share its weights, and the sums of a query without fields are 0."""
    base = make_problem((3, 2), 14, lead="heads", seed=1, couplings=scale, fields=field)
    h, J = (t.double().requires_grad_() for t in (base.fields, base.couplings))
    s = state_table(14)
    exponent = h @ s.T + torch.einsum("...jk,xj,xk->...x", J, s, s) / 2
    p, log_z = exponent.softmax(-1) @ (s > 0).double(), exponent.logsumexp(-1)
    found = ExactSampler().moments(Ising(h, J))
    assert (found.probability - p).abs().max() < 1e-9
    assert ((found.log_partition - log_z) / log_z).abs().max() < 1e-12
    want = torch.autograd.grad((p * p).sum() + log_z.sum(), (h, J))
    got = torch.autograd.grad((found.probability**2).sum() + found.log_partition.sum(), (h, J))
    assert (got[0] - want[0]).abs().max() < 1e-8
    assert (got[1] - want[1] * (1 - torch.eye(14))).abs().max() < 1e-8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [4, 13])
@pytest.mark.parametrize("scale", [10.0, 100.0, 1000.0])
def test_log_odds_of_any_size_and_their_gradients(scale: float, n: int, dtype: torch.dtype) -> None:
    """Up to tens of thousands, where no probability is a number; by log-sums over all states."""
    base = make_problem((5,), n, seed=3, couplings=scale, fields=scale, dtype=dtype)
    h, J = base.fields.requires_grad_(), base.couplings.requires_grad_()
    s = state_table(n)
    exponent = h.double() @ s.T + torch.einsum("jk,xj,xk->x", J.double(), s, s) / 2
    sides = [[exponent[:, s[:, j] == sign].logsumexp(-1) for j in range(n)] for sign in (1, -1)]
    want = torch.stack(sides[0], -1) - torch.stack(sides[1], -1)
    got = ExactSampler().differentiable_log_odds(Ising(h, J))
    digits = 1e-5 if dtype == torch.float32 else 1e-12
    assert ((got - want) / want.abs().clamp(min=1)).abs().max() < digits
    slopes, expected = (torch.autograd.grad(odds.sum(), (h, J)) for odds in (got, want))
    assert (slopes[0] - expected[0]).abs().max() < 1e3 * digits
    assert (slopes[1] - expected[1] * (1 - torch.eye(n))).abs().max() < 1e3 * digits
