"""The estimators are pure functions: numbers by hand, the laws that they are derivatives of, and couplings on edges."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from fakes import FIFOSampler, scaled
from layers import F64
from problems import sparse_problem
from scipy import stats
from torch import Tensor

import diabat
from diabat.attention import spin_probabilities, susceptibility
from diabat.attention.estimators import (
    covariance,
    effective_couplings,
    linear_response,
    mean_field_probability,
    straight_through,
)
from diabat.attention.susceptibility import consistent_correlations
from diabat.ising import Ising, pack_couplings, pack_three_body
from diabat.samplers.exact import ExactSampler
from diabat.testing.problems import make_problem

SEEN = torch.ones(3, dtype=torch.bool)


@pytest.mark.parametrize("response_at", [None, torch.tensor([0.6, 0.3, 0.995, 0.5], dtype=F64)])
def test_straight_through_is_the_derivative_of_its_formula(response_at: Tensor | None) -> None:
    """dP_j = (1 - t_j²)/2 · d(h_j + Σ_k J_jk m_k + Σ_{k<l} K_jkl m_k m_l) at fixed m and t, by autograd."""
    ising = make_problem((2,), 4, seed=1, three_body=0.3)
    h, J, K = (t.clone().requires_grad_() for t in (ising.fields, ising.couplings, ising.three_body))
    p = torch.sigmoid(torch.randn(2, 4, dtype=F64))
    v, m = torch.randn(2, 4, dtype=F64), 2 * p - 1
    t = m if response_at is None else 2 * response_at - 1
    local = h + m @ J + torch.einsum("jkl,qk,ql->qj", K, m, m) / 2
    want = torch.autograd.grad((v * (1 - t**2) / 2 * local).sum(), (h, J, K))
    seen = torch.ones(2, 4, dtype=torch.bool)
    got = straight_through(v, p, seen, couplings=True, three_body=True, response_at=response_at)
    symmetric = (want[1] + want[1].T) / 2
    symmetric.diagonal().zero_()
    assert torch.allclose(got.fields, want[0])
    assert torch.allclose(got.couplings.sum(0), symmetric)
    triples = torch.stack([want[2].permute(places) for places in itertools.permutations(range(3))]).mean(0)
    for places in itertools.permutations(range(4), 3):
        assert float(got.three_body.sum(0)[places]) == pytest.approx(float(triples[places]))
    assert torch.count_nonzero(got.three_body) == 2 * 24


def test_straight_through_keeps_small_probabilities() -> None:
    p = torch.tensor([1e-30], dtype=torch.float32)
    seen = torch.tensor([True])
    got = straight_through(torch.ones(1), p, seen, couplings=False, three_body=False)
    assert got.fields.item() == pytest.approx(2e-30)
    assert got.couplings is None
    assert got.three_body is None


READS = torch.tensor([[1, 1, 1], [1, -1, 1], [-1, -1, 1]], dtype=torch.int8)


def by_hand(v: Tensor, statistic: Tensor) -> float:
    """Covariance of f = ½ Σ v s with a statistic over three reads."""
    f = (READS.double() * v).sum(-1) / 2
    return float(((f - f.mean()) * (statistic - statistic.mean())).sum() / 2)


def test_covariance_of_three_reads_by_hand() -> None:
    v, s = torch.tensor([2.0, -0.4, 0.5], dtype=F64), READS.double()
    got = covariance(v, READS, SEEN, couplings=True, three_body=True)
    for j in range(3):
        assert float(got.fields[j]) == pytest.approx(by_hand(v, s[:, j]))
    for j, k in itertools.permutations(range(3), 2):
        assert float(got.couplings[j, k]) == pytest.approx(by_hand(v, s[:, j] * s[:, k]) / 2)
    for places in itertools.permutations(range(3)):
        assert float(got.three_body[places]) == pytest.approx(by_hand(v, s.prod(-1)) / 6)
    assert not got.couplings.diagonal().any()
    assert abs(float(got.fields[2])) < 1e-15  # a spin that never moves has no covariance
    assert (got.fields[:2].abs() > 0.1).all()


def test_invisible_spins_have_zero_gradient_and_no_influence() -> None:
    v, seen = torch.tensor([2.0, -1.0, 0.5], dtype=F64), torch.tensor([True, False, True])
    flipped = READS.clone()
    flipped[0, 1] *= -1
    p = torch.tensor([0.9, 0.3, 0.6], dtype=F64)
    results = [covariance(v, reads, seen, couplings=True, three_body=True) for reads in (READS, flipped)]
    results.append(straight_through(v, p, seen, couplings=True, three_body=True))
    for got in results:
        assert not got.fields[1]
        assert not got.couplings[1].any()
        assert not got.couplings[:, 1].any()
        assert not got.three_body.any()
        assert got.fields[0]
    assert torch.equal(results[0].fields, results[1].fields)


def exact_gradient(ising: Ising, v: Tensor) -> tuple[Tensor, ...]:
    parts = tuple(t.clone().requires_grad_() for t in (ising.fields, ising.couplings, ising.three_body))
    p = ExactSampler().moments(Ising(parts[0], parts[1], None, parts[2])).probability
    return torch.autograd.grad((v * p).sum(), parts)


def test_covariance_is_unbiased_for_boltzmann_reads() -> None:
    """64 blocks of 500 reads: z-test of every component, alpha = 1e-6 divided by the number of components."""
    ising = make_problem((), 4, seed=2, three_body=0.2)
    v = torch.tensor([1.0, -2.0, 0.5, 1.5], dtype=F64)
    spins = ExactSampler().sample(ising, 64 * 500, seed=3).spins.reshape(500, 64, 4)
    seen = torch.ones(64, 4, dtype=torch.bool)
    got = covariance(v.expand(64, 4), spins, seen, couplings=True, three_body=True)
    for blocks, want in zip(got[:3], exact_gradient(ising, v), strict=True):
        moving = want != 0
        error = blocks.mean(0)[moving] - want[moving]
        z = (error / (blocks.std(0)[moving] / 8)).abs().max()
        # Student's t with 63 degrees of freedom.
        assert 2 * stats.t.sf(float(z), 63) * int(moving.sum()) > 1e-6
        # Power: the mean is known to better than a tenth of its largest component.
        assert float((blocks.std(0) / 8).max()) < 0.1 * float(want.abs().max())
    assert math.isfinite(float(got.fields.sum()))


def test_mean_field_probability_is_one_step_of_mean_field() -> None:
    """σ(2 f), f_j = h_j + Σ_k J_jk m_k + Σ_{k<l} K_jkl m_k m_l over visible spins, term by term."""
    ising = make_problem((2,), 4, seed=1, three_body=0.3)
    assert ising.three_body is not None
    p = torch.sigmoid(torch.randn(2, 4, dtype=F64, generator=torch.Generator().manual_seed(0)))
    visible = torch.tensor([True, True, False, True])
    m = torch.where(visible, 2 * p - 1, 0)
    got = mean_field_probability(Ising(ising.fields, ising.couplings, visible, ising.three_body), p)
    for q, j in itertools.product(range(2), range(4)):
        f = float(ising.fields[q, j] + ising.couplings[j] @ m[q])
        f += sum(
            float(ising.three_body[j, k, i] * m[q, k] * m[q, i]) for k in range(4) for i in range(k + 1, 4)
        )
        assert float(got[q, j]) == pytest.approx(1 / (1 + math.exp(-2 * f)))


WITHOUT_K: Any = {"couplings": True, "three_body": False}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def gradients(h: Tensor, J: Tensor, backend: Any, gradient: str, **options: Any) -> tuple[Tensor, Tensor]:
    """∂L/∂h and ∂L/∂J of L = Σ v·P with a fixed random v."""
    h, J = h.detach().requires_grad_(), J.detach().requires_grad_()
    alpha = spin_probabilities(h, J, backend, gradient=gradient, **options)
    of_h, of_J = torch.autograd.grad((drawn(*h.shape, seed=9).to(alpha) * alpha).sum(), (h, J))
    return of_h, of_J


def test_without_couplings_linear_response_is_straight_through() -> None:
    p, v, seen = torch.sigmoid(drawn(2, 4)), drawn(2, 4, seed=1), torch.ones(2, 4, dtype=torch.bool)
    options: Any = {"couplings": True, "three_body": True}
    want = straight_through(v, p, seen, **options)
    for effective in (None, torch.zeros(4, 4, dtype=F64)):
        torch.testing.assert_close(
            linear_response(v, p, seen, effective, **options), want, rtol=1e-5, atol=1e-14
        )


def test_errors_are_of_second_order_where_those_of_straight_through_are_of_first() -> None:
    """Halving J at fixed h quarters the error of ∂L/∂h and ∂L/∂J; straight-through's is halved."""
    ising = make_problem((32,), 6, seed=4, couplings=0.1, fields=0.8)
    errors: dict[str, list[list[float]]] = {"linear_response": [], "straight_through": []}
    for strength in (1.0, 0.5):
        J = scaled(ising, 1, strength).couplings
        exact = gradients(ising.fields, J, "exact", "exact")
        for name, found in errors.items():
            got = gradients(ising.fields, J, "exact", name)
            found.append([float((a - b).norm()) for a, b in zip(got, exact, strict=True)])
    for name, order in (("linear_response", 4), ("straight_through", 2)):
        for whole, half in zip(*errors[name], strict=True):
            assert whole / half == pytest.approx(order, rel=0.2), name
    for ours, plain in zip(errors["linear_response"][0], errors["straight_through"][0], strict=True):
        assert ours < 0.2 * plain


class _CorrectedMeanField:
    """m = tanh(h + J m - V m) at fixed variances D, V such that (D⁻¹ + V - J)⁻¹ has the diagonal D; one problem."""

    def __init__(self, m: Tensor, J: Tensor) -> None:
        self.m, self.D = m, 1 - m**2
        self.h = torch.atanh(m) - J @ m + self.reaction(J) * m

    def reaction(self, J: Tensor) -> Tensor:
        root = self.D.sqrt()
        C = consistent_correlations(root[:, None] * J * root[None, :])
        return (torch.linalg.inv(C).diagonal() - 1) / self.D

    def solve(self, dh: Tensor, J: Tensor) -> Tensor:
        """Newton's method from the known solution at dh = 0."""
        m, V = self.m.clone(), self.reaction(J)
        for _ in range(20):
            wrong = torch.atanh(m) - J @ m + V * m - self.h - dh
            m = m - torch.linalg.solve(torch.diag(1 / (1 - m**2) + V) - J, wrong)
        return m


def test_linear_response_is_the_derivative_of_mean_field_with_its_reaction_term() -> None:
    """Central differences in every field and every coupling, V following J, at couplings of order one."""
    n, eps = 4, 1e-4
    m, v = torch.tanh(drawn(n, seed=2)), drawn(n, seed=3)
    J = pack_couplings(0.5 * drawn(6, seed=4), n)
    law = _CorrectedMeanField(m, J)
    got = linear_response(v, (1 + m) / 2, torch.ones(n, dtype=torch.bool), J, **WITHOUT_K)
    nothing = torch.zeros(n, dtype=F64)
    for j in range(n):
        dh = eps * torch.eye(n, dtype=F64)[j]
        want = v @ (law.solve(dh, J) - law.solve(-dh, J)) / (4 * eps)
        assert float(got.fields[j]) == pytest.approx(float(want), abs=1e-6)
        for k in range(j):
            dJ = torch.zeros(n, n, dtype=F64)
            dJ[j, k] = dJ[k, j] = eps
            want = v @ (law.solve(nothing, J + dJ) - law.solve(nothing, J - dJ)) / (4 * eps)
            assert float(got.couplings[j, k]) == pytest.approx(float(want / 2), abs=1e-6)
            assert got.couplings[j, k] == got.couplings[k, j]
    assert not got.couplings.diagonal().any()


def test_three_body_terms_act_as_effective_couplings() -> None:
    """Spins held at m_l turn K into J_jk + Σ_l K_jkl m_l: to first order in K, ∂L/∂h is exact."""
    h, triples = 0.7 * drawn(8, 4, seed=1), 0.05 * drawn(4, seed=2)
    errors = []
    for strength in (1.0, 0.5):
        K = pack_three_body(strength * triples, 4)
        J = torch.zeros(4, 4, dtype=F64)
        exact, got, plain = (
            gradients(h, J, "exact", name, three_body=K)[0]
            for name in ("exact", "linear_response", "straight_through")
        )
        errors.append(float((got - exact).norm()))
        assert errors[-1] < 0.2 * float((plain - exact).norm())
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.2)
    m = drawn(4, seed=3).tanh()
    p, K = (1 + m) / 2, pack_three_body(triples, 4)
    seen = torch.tensor([True, True, False, True])
    h = h[0]
    effective = effective_couplings(Ising(h, None, seen, K), p)
    assert float(effective[0, 1]) == pytest.approx(float(K[0, 1, 3] * m[3]))
    assert effective_couplings(Ising(h), p) is None


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("coupling", [5.0, -5.0, 1e4])
def test_strong_problems_have_finite_gradients_of_bounded_norm(coupling: float, dtype: torch.dtype) -> None:
    """Fields up to 50 freeze spins, couplings of 5 make D⁻¹ - J indefinite; |χ_jk| <= 1 bounds ∂L/∂h."""
    n = 8
    J = coupling * (torch.ones(n, n, dtype=dtype) - torch.eye(n, dtype=dtype))
    J[0, 1], J[1, 0] = 3 * J[0, 1], 3 * J[1, 0]
    h = torch.stack([scale * drawn(n, seed=5) for scale in (0.0, 0.3, 5.0, 50.0)]).to(dtype)
    for p in (torch.sigmoid(2 * h), torch.full_like(h, 0.5), torch.zeros_like(h), torch.ones_like(h)):
        v = torch.ones_like(h)
        got = linear_response(v, p, torch.ones_like(h, dtype=torch.bool), J, **WITHOUT_K)
        assert got.fields.dtype == got.couplings.dtype == dtype
        assert torch.isfinite(got.couplings).all()
        assert float(got.fields.abs().max()) <= n / 2 + 1e-6
        assert float(got.couplings.abs().max()) <= n**2
    assert not got.fields.any()  # every spin is frozen
    for part in gradients(h, J, "exact", "linear_response"):
        assert torch.isfinite(part).all()


def test_a_spin_that_freezes_is_the_limit_of_one_that_nearly_does() -> None:
    J, v, seen = pack_couplings(drawn(6, seed=1), 4), drawn(4, seed=2), torch.ones(4, dtype=torch.bool)
    found = []
    for last in (1e-12, 1e-300, 0.0):
        p = torch.tensor([0.3, 0.6, 0.8, last], dtype=F64)
        found.append(linear_response(v, p, seen, J, **WITHOUT_K))
    for got in found[1:]:
        assert torch.allclose(got.fields, found[0].fields, atol=1e-5)
        assert torch.allclose(got.couplings, found[0].couplings, atol=1e-5)


def test_rounding_above_one_is_a_frozen_spin() -> None:
    p = torch.tensor([0.3, 1 + 1e-7], dtype=torch.float32)
    J = torch.tensor([[0.0, 0.4], [0.4, 0.0]])
    got = linear_response(torch.ones(2), p, torch.ones(2, dtype=torch.bool), J, **WITHOUT_K)
    assert torch.isfinite(got.couplings).all()
    assert float(got.fields[0]) == pytest.approx(2 * 0.3 * 0.7)
    assert not got.fields[1]


def test_invisible_spins_have_no_linear_response_and_no_influence() -> None:
    seen = torch.tensor([True, False, True, True])
    v, p, J = drawn(4), torch.sigmoid(drawn(4, seed=1)), pack_couplings(drawn(6, seed=2), 4)
    K = pack_three_body(0.3 * drawn(4, seed=3), 4)
    options: Any = {"couplings": True, "three_body": True}
    got = linear_response(v, p, seen, effective_couplings(Ising(p, J, seen, K), p), **options)
    kept = [0, 2, 3]
    alone = Ising(p[kept], J[kept][:, kept], None, K[kept][:, kept][:, :, kept])
    effective = effective_couplings(alone, p[kept])
    small = linear_response(v[kept], p[kept], seen[kept], effective, **options)
    for whole, part in zip(got[:3], small[:3], strict=True):
        inside = whole
        for axis in range(whole.ndim):
            assert not whole.select(axis, 1).any()
            inside = inside.index_select(axis, torch.tensor(kept))
        assert torch.allclose(inside, part, atol=1e-10)
        assert part.any()


def test_float32_is_as_accurate_as_float32() -> None:
    ising = make_problem((5,), 6, seed=8)
    double = gradients(ising.fields, ising.couplings, "exact", "linear_response")
    single = gradients(ising.fields.float(), ising.couplings.float(), "exact", "linear_response")
    for a, b in zip(single, double, strict=True):
        assert a.dtype == torch.float32
        assert torch.allclose(a.double(), b, atol=1e-4)


def test_the_bridge_hands_over_reads_and_differentiates_at_their_magnetization() -> None:
    reads = (drawn(9, 2, 4) > 0).to(torch.int8) * 2 - 1
    J = pack_couplings(0.4 * drawn(6, seed=1), 4)
    of_h, of_J = gradients(drawn(2, 4, seed=3), J, FIFOSampler([reads]), "linear_response", num_reads=9)
    p = (reads > 0).double().mean(0)
    want = linear_response(drawn(2, 4, seed=9), p, torch.ones(2, 4, dtype=torch.bool), J, **WITHOUT_K)
    assert torch.allclose(of_h, want.fields, atol=1e-12)
    assert torch.allclose(of_J, want.couplings.sum(0), atol=1e-12)


def random_scaled(n: int, strength: float, *, batch: tuple[int, ...] = (6,), seed: int = 0) -> Tensor:
    """S ~ N(0, strength/sqrt(n)) with zero diagonal."""
    pairs = n * (n - 1) // 2
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(*batch, pairs, generator=generator, dtype=F64)
    return pack_couplings(strength / n**0.5 * normal, n)


@pytest.mark.parametrize(("n", "strength"), [(1, 0.0), (2, 0.4), (5, 0.3), (8, 1.0), (8, 10.0), (30, 3.0)])
def test_inverse_is_minus_s_off_the_diagonal(n: int, strength: float) -> None:
    """The definition: C_jj = 1, C positive definite, and C⁻¹ + S diagonal."""
    S = random_scaled(n, strength)
    C = consistent_correlations(S)
    assert C.dtype == F64
    assert torch.allclose(C.diagonal(dim1=-2, dim2=-1), torch.ones(6, n, dtype=F64), rtol=0, atol=1e-14)
    assert (torch.linalg.eigvalsh(C) > 0).all()
    rest = torch.linalg.inv(C) + S
    rest.diagonal(dim1=-2, dim2=-1).zero_()
    assert float(rest.abs().max()) < 1e-6 * max(1, strength)


@pytest.mark.parametrize("coupling", [0.05, 0.2, 1.0, -0.2])
def test_equal_couplings_have_a_closed_form(coupling: float) -> None:
    """C has one value c off the diagonal, 1/(1 - c) = λ + S and (1 + 29 c)⁻¹ = λ - 29 S: S = c/((1 - c)(1 + 29 c)).

    For couplings of about 0.2, λ to second order is far below the largest eigenvalue of S.
    """
    S = coupling * (torch.ones(30, 30, dtype=F64) - torch.eye(30, dtype=F64))
    C = consistent_correlations(S)
    c = C[0, 1]
    assert torch.allclose(C, c + (1 - c) * torch.eye(30, dtype=F64), atol=1e-7)
    assert -1 / 29 < float(c) < 1
    assert float(c / ((1 - c) * (1 + 29 * c))) == pytest.approx(coupling, rel=1e-5)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("strength", [1e2, 1e6, 1e30])
def test_any_strength_gives_a_correlation_matrix(strength: float, sign: int) -> None:
    ferromagnet = sign * strength * (torch.ones(1, 6, 6, dtype=F64) - torch.eye(6, dtype=F64))
    C = consistent_correlations(torch.cat((random_scaled(6, strength), ferromagnet)))
    assert torch.isfinite(C).all()
    assert float(C.abs().max()) <= 1 + 1e-12
    assert (torch.linalg.eigvalsh(C) > -1e-9).all()
    if sign == 1:
        assert float(C[-1].min()) > 0.99


def test_correlations_depend_neither_on_batch_shape_nor_on_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    S = torch.stack((random_scaled(4, 0.1, batch=(3,)), random_scaled(4, 30.0, batch=(3,))))
    together = consistent_correlations(S)
    assert together.shape == (2, 3, 4, 4)
    monkeypatch.setattr(susceptibility, "_CHUNK_CELLS", 20)  # one problem at a time
    assert torch.allclose(together, consistent_correlations(S), rtol=0, atol=1e-14)
    assert consistent_correlations(torch.zeros(0, 3, 3)).shape == (0, 3, 3)


BRIDGES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "exact": ("exact", "exact", {}),
    "banded": ("banded", "exact", {}),
    "mean field": ("mean_field", "exact", {"tolerance": 1e-13}),
    "mean field, straight through": ("mean_field", "straight_through", {}),
    "straight through": ("tempering", "straight_through", {}),
    "covariance": ("tempering", "covariance", {"num_reads": 50}),
    "linear response": ("tempering", "linear_response", {}),
    "refine": ("refine", "straight_through", {"sampler": "exact", "num_reads": 50}),
    "adjoint": ("dqa", "adjoint", {"schedule": "boltzmann-4"}),
}


def parts(lead: tuple[int, ...] = ()) -> tuple[Tensor, Any]:
    ising = sparse_problem((2, 3), 6, 8, lead=lead, couplings=0.3)
    return ising.fields, ising.edges


@pytest.mark.parametrize("lead", [(), (2, 1)])
@pytest.mark.parametrize(("backend", "gradient", "options"), BRIDGES.values(), ids=list(BRIDGES))
def test_gradients_of_edges_are_those_through_the_matrix(
    backend: str, gradient: str, options: dict[str, Any], lead: tuple[int, ...]
) -> None:
    fields, edges = parts(lead)
    v = torch.randn(2, 3, 6, dtype=torch.float64)
    found = []
    for as_edges in (True, False):
        h, J = fields.clone().requires_grad_(), edges.values.clone().requires_grad_()
        held = edges.with_values(J) if as_edges else edges.with_values(J).matrix(6)
        sampler = diabat.sampler(backend, **options)
        p = diabat.spin_probabilities(h, held, sampler, gradient=gradient, seed=3)
        found.append((p.detach(), *torch.autograd.grad((p * v).sum(), (h, J))))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_mean_field_on_edges_by_finite_differences() -> None:
    """First and second derivatives, float64; invisible spins respond to nothing."""
    fields, edges = parts()
    backend = diabat.sampler("mean_field", tolerance=1e-14)
    visible = torch.tensor([True, True, False, True, True, True])

    def probability(h: Tensor, J: Tensor) -> Tensor:
        return backend.moments(Ising(h, edges.with_values(J), visible)).probability

    leaves = (fields[0, :1].clone().requires_grad_(), edges.values.clone().requires_grad_())
    assert torch.autograd.gradcheck(probability, leaves)
    assert torch.autograd.gradgradcheck(probability, leaves)


def test_the_implicit_system_is_solved_without_a_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring of 20,000 spins in one field: every derivative is that of one number m = tanh(h + 2 J m)."""
    n, h0, J0 = 20_000, 0.3, 0.2
    monkeypatch.setattr("diabat.ising.edges.Edges.matrix", None)
    ring = torch.stack((torch.arange(n), (torch.arange(n) + 1) % n), dim=1)
    h = torch.full((n,), h0, dtype=torch.float64, requires_grad=True)
    J = torch.full((n,), J0, dtype=torch.float64, requires_grad=True)
    backend = diabat.sampler("mean_field", tolerance=1e-14)
    p = diabat.spin_probabilities(h, diabat.Edges(ring, J), backend)
    p.sum().backward()
    m = 2 * float(p[0].detach()) - 1
    response = (1 - m**2) / (1 - 2 * J0 * (1 - m**2))
    torch.testing.assert_close(h.grad, torch.full_like(h, response / 2))
    torch.testing.assert_close(J.grad, torch.full_like(J, response * m))  # two ends hear it, dP = dm/2


@pytest.mark.parametrize(("iterations", "most"), [(500, 1e-4), (1, 0.5)])
def test_the_gradient_is_finite_at_a_minimum_and_where_there_is_none(iterations: int, most: float) -> None:
    """A strong ferromagnet without fields leaves m = 0, where 1 - D J is not positive; not a small problem."""
    n = 600
    ring = torch.stack((torch.arange(n), (torch.arange(n) + 1) % n), dim=1)
    J = torch.full((n,), 3.0, dtype=torch.float64, requires_grad=True)
    h = torch.zeros(n, dtype=torch.float64, requires_grad=True)
    backend = diabat.sampler("mean_field", max_iterations=iterations)
    p = backend.moments(Ising(h, diabat.Edges(ring, J))).probability
    gradient = torch.autograd.grad(p.sum(), (h, J))
    assert max(float(g.abs().max()) for g in gradient) <= most


def test_covariances_on_edges_are_entries_of_those_of_all_pairs() -> None:
    fields, edges = parts()
    v, visible = torch.randn_like(fields), torch.rand(2, 3, 6) < 0.8
    spins = (2 * torch.randint(0, 2, (9, 2, 3, 6)) - 1).to(torch.int8)
    one = covariance(v, spins, visible, couplings=edges, three_body=False).couplings
    other = covariance(v, spins, visible, couplings=True, three_body=False).couplings
    j, k = edges.index.T
    torch.testing.assert_close(one, 2 * other[..., j, k])


@pytest.mark.parametrize("backend", ["exact", "mean_field", "tempering"])
def test_transforms_of_torch_func_on_edges(backend: str) -> None:
    fields, edges = parts()
    sampler = diabat.sampler(backend)
    several = torch.stack([edges.values, 0.5 * edges.values])

    def total(J: Tensor) -> Tensor:
        held = edges.with_values(J)
        return diabat.spin_probabilities(fields, held, sampler, seed=1, check=False).sum()

    found = torch.func.vmap(torch.func.grad(total), randomness="same")(several)
    for row, values in zip(found, several, strict=True):
        leaf = values.clone().requires_grad_()
        total(leaf).backward()
        if backend == "tempering":  # the draw of a problem depends on its place in the batch
            assert row.shape == leaf.grad.shape
        else:
            torch.testing.assert_close(row, leaf.grad, rtol=1e-4, atol=1e-5)
