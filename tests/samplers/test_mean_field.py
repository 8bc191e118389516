"""Backend ``mean_field``: the minimum, the rule that finds it, and gradients there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from problems import F64, causal
from torch import Tensor

from diabat.ising import Ising, pack_couplings, pack_three_body
from diabat.samplers.mean_field import MeanFieldSampler, compiled, iteration, rules
from diabat.samplers.mean_field.iteration import fixed_points
from diabat.samplers.mean_field.rules import Rules
from diabat.samplers.mean_field.solution import FixedPoint
from diabat.testing.problems import causal_problem, make_problem, with_visible

FORMS = {"lanes": (1024, 1024), "spread": (1024, 0), "torch": (0, 0)}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Every size by one form of the rule: one problem per lane, its spins over the lanes, and torch."""
    use(request.param, monkeypatch)
    return request.param


def use(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    most, in_lanes = FORMS[form]
    monkeypatch.setattr(compiled, "MOST_SPINS", most)
    monkeypatch.setattr(compiled, "MOST_IN_LANES", in_lanes)


def precise() -> MeanFieldSampler:
    return MeanFieldSampler(max_iterations=5000, tolerance=1e-14)


def equal_pairs(n: int, J: float, dtype: torch.dtype = F64) -> Tensor:
    return J * (1 - torch.eye(n, dtype=dtype))


def ensemble(n: int, g: float, weight: float, dtype: torch.dtype, problems: int = 100) -> Ising:
    """h ~ N(0, weight·g), J ~ N(0, g/√n), an own J for each problem; every third spin of some problems is hidden.

    The numbers are those of float32 in both precisions.
    """
    generator = torch.Generator().manual_seed(n)
    h = weight * g * torch.randn(problems, n, generator=generator)
    J = (g / n**0.5) * torch.randn(problems, n, n, generator=generator).triu(1)
    visible = torch.ones(problems, n, dtype=torch.bool)
    visible[::4, ::3] = False
    return Ising(h.to(dtype), (J + J.mT).to(dtype), visible)


@cache
def damped(n: int, g: float, weight: float) -> tuple[Tensor, Tensor]:
    """m after 3,000 damped steps in float64, and whether that is a fixed point."""
    ising = ensemble(n, g, weight, F64)
    m, change = torch.zeros_like(ising.fields), torch.zeros_like(ising.fields)
    for _ in range(3000):
        m = m + 0.7 * change
        local = ising.fields + (matrix_of(ising) @ m[..., None])[..., 0]
        change = torch.tanh(local) * ising.visible_mask - m
    return m, change.abs().amax(-1) < 1e-9


def matrix_of(ising: Ising) -> Tensor:
    assert ising.matrix is not None
    return ising.matrix


def instability(ising: Ising, p: Tensor) -> Tensor:
    """The largest eigenvalue of √D J √D; up to 1 the point is a minimum of the free energy."""
    root = (2 * (p * (1 - p)).sqrt() * ising.visible_mask).double()
    return torch.linalg.eigvalsh(root[..., None] * matrix_of(ising).double() * root[..., None, :])[..., -1]


# Values


@pytest.mark.parametrize("lead", ["none", "shared", "heads", "per_problem"])
@pytest.mark.parametrize("three_body", [0.0, 0.15])
def test_fixed_point_equation(lead: Any, three_body: float) -> None:
    """m_j = tanh(h_j + Σ_k J_jk m_k + Σ_{k<l} K_jkl m_k m_l) over the visible spins, term by term."""
    base = make_problem((2, 4), 4, lead=lead, seed=1, couplings=0.2, three_body=three_body)
    ising = with_visible(base, causal(4))
    m = precise().moments(ising).magnetization
    for head, row in ((0, 0), (0, 3), (1, 2)):
        J = torch.zeros(4, 4, dtype=F64)
        if ising.couplings is not None:
            J = ising.couplings.expand(2, 4, 4, 4)[head, row]
        K = torch.zeros(4, 4, 4, dtype=F64)
        if ising.three_body is not None:
            K = ising.three_body.expand(2, 4, 4, 4, 4)[head, row]
        for j in range(row + 1):
            local = float(ising.fields[head, row, j])
            for k in range(4):
                local += float(J[j, k] * m[head, row, k])
                local += sum(float(K[j, k, i] * m[head, row, k] * m[head, row, i]) for i in range(k))
            assert float(m[head, row, j]) == pytest.approx(math.tanh(local), abs=1e-12)
        assert not m[head, row, row + 1 :].any()


def test_without_couplings_it_is_exact_with_relative_precision(form: str) -> None:
    """P = σ(-60) is 8.8e-27, while (m + 1)/2 is 0 in both precisions."""
    for dtype in (torch.float32, F64):
        p = MeanFieldSampler().moments(Ising(torch.full((2, 3), -30.0, dtype=dtype))).probability
        assert p[0, 0].item() == pytest.approx(8.756510762696521e-27, rel=1e-5, abs=0)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize(("g", "weight"), [(0.6, 0.05), (1.0, 1.0), (2.0, 0.05), (3.0, 1.0)])
@pytest.mark.parametrize("n", [3, 8, 40])
def test_it_is_the_minimum_to_which_damping_leads(
    n: int, g: float, weight: float, dtype: torch.dtype, form: str
) -> None:
    """100 problems near and beyond the transition, where several fixed points exist and damping is slow."""
    ising = ensemble(n, g, weight, dtype)
    moments = MeanFieldSampler().moments(ising)
    converged = moments.info["problems"]["converged"]
    want, fixed = damped(n, g, weight)
    gap = (moments.magnetization - want).abs().amax(-1)[converged & fixed]
    assert len(gap) >= 95
    assert (gap > 1e-3).sum() <= 3  # another minimum is at a distance of about 1
    assert float(gap.median()) < 4e-6  # a residual of 1e-6, and a rate near 1
    assert instability(ising, moments.probability)[converged].max() < 1 + 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("lead", ["shared", "heads", "per_problem"])
@pytest.mark.parametrize("n", [1, 5, 16, 31])
def test_forms_agree(n: int, lead: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """P and gradients of more problems than lanes, masks of every length in no order, slow problems among them."""
    base = make_problem((2, 41), n, lead=lead, seed=n, couplings=0.9 / (n + 8) ** 0.5)
    generator = torch.Generator().manual_seed(82)
    last = torch.randint(0, n + 1, (2, 41, 1), generator=generator)
    seen = (torch.arange(n) < last) & (torch.rand(2, 41, n, generator=generator) < 0.8)
    v, found = torch.randn(2, 41, n, generator=generator, dtype=dtype), []
    for form in FORMS:
        use(form, monkeypatch)
        h, J = (t.to(dtype).requires_grad_() for t in (base.fields, matrix_of(base)))
        sampler = MeanFieldSampler(tolerance=1e-12 if dtype == F64 else 1e-6)
        moments = sampler.moments(Ising(h, J, seen))
        assert moments.info["converged"]
        p = moments.probability
        found.append((p.detach(), *torch.autograd.grad((v * p).sum(), (h, J))))
    tolerance = 2e-10 if dtype == F64 else 3e-4  # residuals, amplified by the response
    for other in found[1:]:
        for got, want in zip(other, found[0], strict=True):
            assert (got - want).abs().max() < tolerance * max(1, float(want.abs().max()))


# The rule


FAULTS = {
    "140 equal couplings oscillate": (equal_pairs(140, -0.1, torch.float32), 1.0),
    "three spins disagree": (equal_pairs(3, -4.0, torch.float32), 0.1),
    "no fields": (equal_pairs(4, 1.5, torch.float32), 0.0),
    "fields below the tolerance": (equal_pairs(4, 1.5, torch.float32), 9e-7),
    "fields below the tolerance, down": (equal_pairs(4, 1.5, torch.float32), -9e-7),
    "glass without fields": (matrix_of(ensemble(12, 2.0, 0.0, torch.float32))[0], 0.0),
}


@pytest.mark.parametrize("case", FAULTS)
@pytest.mark.parametrize("batch", [1, 17, 33])
def test_an_answer_is_a_minimum_and_that_of_the_problem_alone(case: str, batch: int, form: str) -> None:
    """Saddles are left, also those where every field is within the tolerance, and oscillations are damped."""
    J, field = FAULTS[case]
    if form == "torch" and len(J) > 100:
        J = J.double()  # in float32 some BLAS round sums of 139 equal terms by more than the tolerance
    n = len(J)
    h = torch.randn(batch, n, generator=torch.Generator().manual_seed(batch)).to(J)
    h[batch // 2] = field
    sampler, whole = MeanFieldSampler(), Ising(h, J)
    moments, alone = sampler.moments(whole), sampler.moments(Ising(h[batch // 2], J))
    assert moments.info["converged"]
    assert alone.info["converged"]
    assert instability(whole, moments.probability).max() < 1
    assert (moments.probability[batch // 2] - alone.probability).abs().max() < (
        1e-6 if form == "torch" else 1e-7
    )
    if case.startswith("fields below"):
        assert (alone.magnetization * field > 0.99e-9).all()  # they follow the fields
    if case.startswith("no fields"):
        assert (alone.magnetization > 0.99).all()  # and without fields always the same way


def test_three_body_couplings_of_zero_change_nothing() -> None:
    ising = ensemble(5, 2.0, 0.3, F64, problems=64)
    more = Ising(ising.fields, ising.matrix, ising.visible, torch.zeros(5, 5, 5, dtype=F64))
    one, other = (MeanFieldSampler().moments(problem) for problem in (ising, more))
    assert torch.equal(one.info["problems"]["converged"], other.info["problems"]["converged"])
    more = (other.info["problems"]["iterations"] - one.info["problems"]["iterations"]).double()
    assert more.median() <= 4  # torch looks at residuals after every four
    assert (one.probability - other.probability).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("n", [2, 30])
def test_a_critical_point_is_answered_with_a_finite_gradient(n: int, dtype: torch.dtype, form: str) -> None:
    """h = 0 and J = 1 on a pair: 1 - D J is singular at m = 0, and max |g| = m³/3 all around."""
    h, J = torch.zeros(3, n, dtype=dtype), torch.zeros(n, n, dtype=dtype)
    J[0, 1] = J[1, 0] = 1
    h.requires_grad_()
    moments = MeanFieldSampler().moments(Ising(h, J.requires_grad_()))
    assert moments.magnetization.abs().max() < 0.02
    for gradient in torch.autograd.grad(moments.probability.sum(), (h, J)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("strength", [1.5, 1e4])
def test_the_gradient_at_a_point_that_is_not_stable_is_finite(strength: float, form: str) -> None:
    """One iteration reaches no minimum; what does not respond stably keeps the response of a free spin."""
    h = torch.full((3, 8), 0.01, dtype=F64, requires_grad=True)
    moments = MeanFieldSampler(max_iterations=1).moments(Ising(h, equal_pairs(8, strength).requires_grad_()))
    assert not moments.info["converged"]
    (gradient,) = torch.autograd.grad(moments.probability.sum(), h)
    assert gradient.isfinite().all()
    assert gradient.abs().max() <= 0.5


def test_what_is_not_a_number_has_not_converged() -> None:
    """Sums of huge fields may overflow to infinity minus infinity."""
    h = torch.tensor([[0.3, math.nan, 0.2], [0.1, 0.2, 0.3]])
    ising = Ising(h, equal_pairs(3, 0.1, torch.float32), check=False)
    for found in (solution(ising), fixed_points(ising, Rules(0.7, 1e-6, 50))):
        assert found.converged.tolist() == [False, True]


def test_slow_problems_take_fewer_iterations_than_damping(form: str) -> None:
    """Damping alone takes 152 of them on average, or stops at 500."""
    info = MeanFieldSampler().moments(ensemble(17, 0.6, 0.05, F64)).info
    assert info["converged"]
    assert info["problems"]["iterations"].double().mean() < 45


@pytest.mark.parametrize("n", [12, 40, 100])
def test_order_threads_and_batch_do_not_change_a_bit(n: int) -> None:
    """Slow and fast problems and saddles, one head after the other and mixed; 33 blocks of lanes, two sizes."""
    base = ensemble(n, 0.9, 0.1, torch.float32, problems=520)
    fields = base.fields.view(2, 260, n).clone()
    fields[:, ::9] = 0
    J, seen = 2 * matrix_of(base)[:2, None], base.visible_mask.view(2, 260, n)
    whole = solution(Ising(fields, J, seen))
    assert int(whole.iterations.max()) > 48  # gathered at least twice
    order = torch.randperm(260, generator=torch.Generator().manual_seed(2))
    for count, part in ((1, order), (3, order), (2, order[:5]), (1, order[:1])):
        torch.set_num_threads(count)
        found = solution(Ising(fields[:, part], J, seen[:, part]))
        for got, want in zip(found, whole, strict=True):
            assert torch.equal(got, want[:, part])


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("n", [30, 65])
def test_problems_with_the_same_couplings_get_the_bits_of_each_alone(n: int, dtype: torch.dtype) -> None:
    """P and its derivative by h, from one pass over J for four problems, or for each; with masks."""
    base = ensemble(n, 0.9, 0.1, dtype, problems=21)
    J, v = matrix_of(base)[0], torch.randn(21, n, generator=torch.Generator().manual_seed(3)).to(dtype)

    def answers(part: slice) -> tuple[Tensor, ...]:
        h = base.fields[part].clone().requires_grad_()
        assert base.visible is not None
        p = MeanFieldSampler().moments(Ising(h, J, base.visible[part])).probability
        return p.detach(), *torch.autograd.grad((v[part] * p).sum(), h)

    whole = answers(slice(None))
    for part in (slice(0, 1), slice(2, 5), slice(3, 8), slice(4, 21), slice(20, 21)):
        for got, want in zip(answers(part), whole, strict=True):
            assert torch.equal(got, want[part])


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize(("n", "own"), [(513, False), (530, True), (560, False)])
def test_large_problems_hold_each_pair_once(
    n: int, own: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P and gradients by torch, and the bits of each problem alone; with masks, and numbers of spins of every rest."""
    base = ensemble(n, 0.4, 0.5, dtype, problems=6)
    J, v = (
        matrix_of(base) if own else matrix_of(base)[:1],
        torch.linspace(-1, 1, 6 * n, dtype=dtype).view(6, n),
    )
    seen = base.visible_mask.clone()
    seen[1, 200:], seen[2, 519:] = False, False

    def answers(part: slice) -> list[Tensor]:
        h, own_J = (
            base.fields[part].clone().requires_grad_(),
            (J[part] if own else J).clone().requires_grad_(),
        )
        moments = MeanFieldSampler(tolerance=1e-12 if dtype == F64 else 1e-6).moments(
            Ising(h, own_J, seen[part])
        )
        assert moments.info["converged"]
        p = moments.probability
        return [p.detach(), *torch.autograd.grad((v[part] * p).sum(), (h, own_J))]

    whole = answers(slice(None))
    for part in (slice(0, 1), slice(1, 3), slice(2, 6)):
        assert torch.equal(answers(part)[0], whole[0][part])
        assert torch.equal(answers(part)[1], whole[1][part])
    use("torch", monkeypatch)
    for got, want in zip(whole, answers(slice(None)), strict=True):
        assert (got - want).abs().max() < (1e-10 if dtype == F64 else 2e-4) * max(1, float(want.abs().max()))


@pytest.mark.parametrize("form", ["lanes", "spread"])
def test_couplings_are_taken_as_the_mean_of_both_entries(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of unchecked J may differ by rounding; (J + Jᵀ)/2 has the same fixed point to rounding."""
    use(form, monkeypatch)
    for n in (6, 23) if form == "lanes" else (6, 40, 520):
        ising = ensemble(n, 0.5, 1.0, F64, problems=2)
        J = matrix_of(ising)
        skewed = J + 1e-3 * (torch.rand(J.shape, generator=torch.Generator().manual_seed(2), dtype=F64) - 0.5)
        skewed.diagonal(dim1=-2, dim2=-1).zero_()
        sampler = MeanFieldSampler(tolerance=1e-12)
        found = sampler.moments(Ising(ising.fields, skewed, ising.visible, check=False)).probability
        mean = sampler.moments(Ising(ising.fields, (skewed + skewed.mT) / 2, ising.visible)).probability
        assert (found - mean).abs().max() < 1e-11


def solution(ising: Ising) -> Any:
    return FixedPoint(ising, Rules(0.7, 1e-6, 500)).found


@pytest.mark.parametrize("three_body", [0.0, 0.15])
@pytest.mark.parametrize("lead", ["shared", "heads", "per_problem"])
def test_a_problem_stops_by_itself(lead: Any, three_body: float) -> None:
    """Whatever the batch around it; one of them is near the transition and slow."""
    base = make_problem((2, 4), 4, lead=lead, seed=11, three_body=three_body, couplings=0.3)
    fields = base.fields.clone()
    fields[1, 2] *= 0.01
    ising, sampler = Ising(fields, base.couplings, causal(4), base.three_body), MeanFieldSampler()
    whole = sampler.moments(ising)
    counts = whole.info["problems"]["iterations"]
    assert counts.max() > counts.min()
    assert whole.info["iterations"] == int(counts.max())
    for head, row in ((0, 3), (1, 2), (1, 0)):
        J, K = (
            None if t is None else t.expand(2, 4, *shape)[head, row]
            for t, shape in ((base.couplings, (4, 4)), (base.three_body, (4, 4, 4)))
        )
        alone = sampler.moments(Ising(fields[head, row], J, causal(4)[row], K))
        assert (alone.probability - whole.probability[head, row]).abs().max() < 1e-15
        assert alone.info["iterations"] == int(counts[head, row])


def test_unconverged_problems_are_named(form: str) -> None:
    h = torch.tensor([[1e-3, 2e-3], [2.0, 1.0]])
    info = MeanFieldSampler(max_iterations=15).moments(Ising(h, equal_pairs(2, 1.02, torch.float32))).info
    assert info["problems"]["converged"].tolist() == [False, True]
    assert not info["converged"]
    assert info["residual"] == float(info["problems"]["residual"][0]) > 1e-6
    assert info["iterations"] == 15


def test_a_residual_is_within_the_tolerance_in_both_precisions() -> None:
    """0.1 in float32 is more than 0.1; a residual between both must not count as converged."""
    assert float(np.float32(0.1)) > 0.1
    for tolerance in (0.1, 0.25, 1e-6, 1e60):
        limit = MeanFieldSampler(tolerance=tolerance)._rules.tolerance
        assert 0 < limit == float(np.float32(limit)) < tolerance


def test_damping_changes_the_path_and_not_the_end(form: str) -> None:
    ising = causal_problem(5, seed=8)
    slow, fast = (MeanFieldSampler(damping=d, tolerance=1e-14).moments(ising) for d in (0.2, 1.0))
    assert slow.info["iterations"] > fast.info["iterations"]
    assert (slow.probability - fast.probability).abs().max() < 1e-11


@pytest.mark.parametrize("three_body", [0.0, 0.02])
def test_factors_certify_weak_couplings_and_spare_the_search_for_saddles(
    three_body: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where 0.999 - J or 0.999 - J - K m is positive definite no conjugate gradients follow; elsewhere they do."""
    base = make_problem((2, 30), 6, lead="heads", seed=1, couplings=0.15, three_body=three_body)
    weak = Ising(base.fields, matrix_of(base), base.visible, base.three_body)
    strong = Ising(base.fields, 20 * matrix_of(base), base.visible, base.three_body)
    searched, solve = list[float](), iteration.conjugate_gradients

    def noted(product: Any, root: Tensor, right: Tensor, accuracy: float, *rest: Any) -> Any:
        searched.append(accuracy)
        return solve(product, root, right, accuracy, *rest)

    monkeypatch.setattr(iteration, "conjugate_gradients", noted)
    found = fixed_points(weak, Rules(0.7, 1e-12, 500))
    assert rules.TEST not in searched
    assert found.converged.all()
    assert fixed_points(strong, Rules(0.7, 1e-12, 500)).converged.all()
    assert rules.TEST in searched
    searched.clear()
    monkeypatch.setattr(rules, "MOST_FACTORED", 0)
    other = fixed_points(weak, Rules(0.7, 1e-12, 500))
    assert rules.TEST in searched
    assert (found.magnetization - other.magnetization).abs().max() < 1e-10


@pytest.mark.parametrize("strength", [0.9985, 0.9995, 1.001])
def test_no_certificate_reaches_the_transition(strength: float) -> None:
    """Pairs of spins without fields: A = 1 ± J at m = 0, a saddle above J = 1, where a problem is pushed away."""
    J = torch.tensor([[0.0, strength], [strength, 0.0]], dtype=F64)
    ising = Ising(torch.zeros(4, 2, dtype=F64), J)
    assert bool(iteration._is_definite(ising).all()) == (strength < 0.999)
    found = fixed_points(ising, Rules(0.7, 1e-10, 2000))
    assert found.converged.all()
    assert (found.magnetization.abs() > 0.05).all() == (strength > 1)


def test_torch_reaches_the_minima_of_compiled_code_where_there_are_several() -> None:
    """3,000 strong problems of 8 spins, whose damped iteration overshoots on its way; up to 1 may differ."""
    ising = ensemble(8, 2.5, 0.2, F64, problems=3000)
    found, want = fixed_points(ising, Rules(0.7, 1e-6, 500)), solution(ising)
    apart = (found.magnetization - want.magnetization).abs().amax(-1) > 1e-3
    assert int((apart & found.converged & want.converged).sum()) <= 1


def test_strongly_opposed_spins_do_not_keep_oscillating() -> None:
    """The certificate holds for J = -0.3 of 30 spins, whose damped iteration turns back at every step."""
    ising = Ising(torch.full((3, 30), 0.4, dtype=F64), equal_pairs(30, -0.3))
    assert iteration._is_definite(ising).all()
    found = fixed_points(ising, Rules(0.7, 1e-9, 500))
    assert found.converged.all()
    assert found.iterations.max() < 60
    assert (found.magnetization - torch.tanh(0.4 - 0.3 * 29 * found.magnetization)).abs().max() < 1e-8


# Gradients


def parameters() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    h, pairs, triples = (
        (scale * torch.randn(*shape, generator=generator, dtype=F64)).requires_grad_()
        for scale, shape in ((0.5, (2, 4, 4)), (0.25, (2, 1, 6)), (0.1, (2, 1, 4)))
    )
    return h, pairs, triples


def implicit(h: Tensor, pairs: Tensor, triples: Tensor) -> Tensor:
    ising = Ising(h, pack_couplings(pairs, 4), causal(4), pack_three_body(triples, 4), check=False)
    return precise().moments(ising).probability


def test_implicit_gradient_against_unrolled_autograd() -> None:
    """The same fixed point with every iteration in the graph of autograd."""
    parts = parameters()
    h, pairs, triples = parts
    J, K, m = pack_couplings(pairs, 4), pack_three_body(triples, 4), torch.zeros_like(h)
    for _ in range(400):
        local = h + (J @ m[..., None])[..., 0] + torch.einsum("...jkl,...k,...l->...j", K, m, m) / 2
        m = torch.where(causal(4), torch.tanh(local), 0)
    v = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(4), dtype=F64)
    got = torch.autograd.grad((v * implicit(*parts)).sum(), parts)
    unrolled = torch.where(causal(4), torch.sigmoid(2 * local), 0)
    for value, want in zip(got, torch.autograd.grad((v * unrolled).sum(), parts), strict=True):
        assert float(want.abs().max()) > 1e-3
        assert float((value - want).abs().max()) < 1e-11


def test_one_function_stands_between_the_terms_and_the_probability() -> None:
    """And what a caller does to P does not reach the gradient."""
    h, J = (t.clone().requires_grad_() for t in (torch.full((3, 4), 0.2), equal_pairs(4, 0.3, torch.float32)))
    p, again = (MeanFieldSampler().moments(Ising(h, J)).probability for _ in range(2))
    assert p.grad_fn is not None
    assert [f.name() for f, _ in p.grad_fn.next_functions if f is not None] == 2 * [
        "torch::autograd::AccumulateGrad"
    ]
    again.mul_(2)
    for got, want in zip(
        torch.autograd.grad(again.sum(), (h, J)), torch.autograd.grad(p.sum(), (h, J)), strict=True
    ):
        assert torch.equal(got, 2 * want)


def test_a_gradient_does_not_depend_on_its_unit(form: str) -> None:
    """Squares of cotangents of 1e-25 are 0 in float32."""
    ising = ensemble(6, 0.6, 1.0, torch.float32, problems=20)
    h = ising.fields.requires_grad_()
    p = MeanFieldSampler().moments(Ising(h, ising.matrix, ising.visible)).probability
    units = (1.0, 1e-25, 1e-40)
    one, small, least = (torch.autograd.grad(unit * p.sum(), h, retain_graph=True)[0] for unit in units)
    assert (one - 1e25 * small).abs().max() < 1e-5
    assert least.isfinite().all()  # 1 / 1e-40 is not


def test_invisible_spins_answer_nobody(form: str) -> None:
    base = make_problem((3,), 4, seed=6)
    visible = torch.tensor([True, False, True, True])
    loud = Ising(torch.where(visible, base.fields, 50.0), base.couplings, visible)
    quiet = Ising(torch.where(visible, base.fields, 0.0), base.couplings, visible)
    p = precise().moments(loud).probability
    assert torch.equal(p, precise().moments(quiet).probability)
    assert not p[:, 1].any()


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_hidden_spins_do_not_choose_the_side_of_a_saddle(seed: int, order: int) -> None:
    """Without fields m = 0 is a saddle; with hidden spins before the visible ones it is left as without them."""
    g, n = torch.Generator().manual_seed(seed), 6
    h, J = torch.zeros(n), pack_couplings(1.5 * torch.randn(15, generator=g), n)
    K = pack_three_body(torch.randn(20, generator=g), n) if order == 3 else None
    backend = MeanFieldSampler()
    for first in range(1, n - 1):
        kept = torch.arange(n) >= first
        full = backend.moments(Ising(h, J, kept, K)).probability[first:]
        part = (slice(first, None),)
        alone = backend.moments(Ising(h[part], J[2 * part], None, None if K is None else K[3 * part]))
        torch.testing.assert_close(full, alone.probability, rtol=0, atol=1e-4)
