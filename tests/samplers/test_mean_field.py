from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from diabat.ising import Ising, pack_couplings, pack_three_body
from diabat.samplers import UnsupportedError
from diabat.samplers.mean_field import MeanFieldSampler, fixed_points
from diabat.samplers.mean_field.iteration import iterate
from diabat.testing.problems import causal_problem, make_problem, with_visible

F64 = torch.float64
CAUSAL = torch.ones(4, 4, dtype=torch.bool).tril()


def converged() -> MeanFieldSampler:
    return MeanFieldSampler(max_iterations=5000, tolerance=1e-15)


def test_one_coupled_pair_by_hand() -> None:
    """h = 0 and J = 1.5: m = tanh(1.5 m) has the solutions 0 and ±0.8586; the iteration starts at 0."""
    J = torch.tensor([[0, 1.5], [1.5, 0]], dtype=F64)
    assert converged().moments(Ising(torch.zeros(2, dtype=F64), J)).probability.tolist() == [0.5, 0.5]
    m = converged().moments(Ising(torch.full((2,), 1e-9, dtype=F64), J)).magnetization
    assert m.tolist() == pytest.approx([0.858559] * 2, abs=1e-6)


@pytest.mark.parametrize("lead", ["none", "shared", "heads", "per_problem"])
@pytest.mark.parametrize("three_body", [0.0, 0.15])
def test_fixed_point_equation(lead: Any, three_body: float) -> None:
    """m_j = tanh(h_j + Σ_k J_jk m_k + Σ_{k<l} K_jkl m_k m_l) over the visible spins, term by term."""
    base = make_problem((2, 4), 4, lead=lead, seed=1, couplings=0.2, three_body=three_body)
    ising = with_visible(base, CAUSAL)
    m = converged().moments(ising).magnetization
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


def test_without_couplings_it_is_exact() -> None:
    ising = make_problem((3,), 5, lead="none", seed=2)
    assert (converged().moments(ising).probability - torch.sigmoid(2 * ising.fields)).abs().max() < 1e-14


def test_probabilities_keep_their_relative_precision() -> None:
    """P = σ(-60) is 8.8e-27, while (m + 1)/2 is 0 in both precisions."""
    for dtype in (torch.float32, F64):
        p = MeanFieldSampler().moments(Ising(torch.full((2, 3), -30.0, dtype=dtype))).probability
        assert p[0, 0].item() == pytest.approx(8.756510762696521e-27, rel=1e-5)


def unrolled(h: Tensor, J: Tensor, K: Tensor, visible: Tensor, iterations: int = 400) -> Tensor:
    """The same fixed point with every iteration in the autograd graph."""
    m = torch.zeros_like(h)
    for _ in range(iterations):
        local = (
            h + torch.einsum("...jk,...k->...j", J, m) + torch.einsum("...jkl,...k,...l->...j", K, m, m) / 2
        )
        m = torch.where(visible, torch.tanh(local), 0)
    return torch.where(visible, torch.sigmoid(2 * local), 0)


def parameters() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    h, pairs, triples = (
        (scale * torch.randn(*shape, generator=generator, dtype=F64)).requires_grad_()
        for scale, shape in ((0.5, (2, 4, 4)), (0.25, (2, 1, 6)), (0.1, (2, 1, 4)))
    )
    return h, pairs, triples


def implicit(h: Tensor, pairs: Tensor, triples: Tensor) -> Tensor:
    ising = Ising(h, pack_couplings(pairs, 4), CAUSAL, pack_three_body(triples, 4), check=False)
    return converged().moments(ising).probability


def test_implicit_gradient_against_central_differences() -> None:
    """Central differences of a fixed point converged to 1e-15 are good to about 1e-9."""
    assert torch.autograd.gradcheck(implicit, parameters(), eps=1e-6, atol=1e-7)


def test_implicit_gradient_against_unrolled_autograd() -> None:
    parts = parameters()
    h, pairs, triples = parts
    v = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(4), dtype=F64)
    got = torch.autograd.grad((v * implicit(*parts)).sum(), parts)
    slow = unrolled(h, pack_couplings(pairs, 4), pack_three_body(triples, 4), CAUSAL)
    for value, want in zip(got, torch.autograd.grad((v * slow).sum(), parts), strict=True):
        assert float(want.abs().max()) > 1e-3
        assert float((value - want).abs().max()) < 1e-11


def test_gradient_of_couplings_is_symmetric_like_every_other_backends() -> None:
    """A J trained as a free symmetric matrix must stay one, or the next forward pass refuses it."""
    base = make_problem((3,), 4, seed=5, three_body=0.1, couplings=0.2)
    assert base.couplings is not None
    assert base.three_body is not None
    J, K = base.couplings.clone().requires_grad_(), base.three_body.clone().requires_grad_()
    converged().moments(Ising(base.fields, J, three_body=K)).probability.pow(2).sum().backward()
    assert J.grad is not None
    assert K.grad is not None
    assert (J.grad - J.grad.T).abs().max() < 1e-14
    assert not J.grad.diagonal().any()
    assert (K.grad - K.grad.permute(2, 0, 1)).abs().max() < 1e-14
    assert (K.grad - K.grad.permute(1, 0, 2)).abs().max() < 1e-14
    assert not K.grad.diagonal().any()


def test_invisible_spins_answer_nobody() -> None:
    base = make_problem((3,), 4, seed=6)
    visible = torch.tensor([True, False, True, True])
    loud = Ising(torch.where(visible, base.fields, 50.0), base.couplings, visible)
    quiet = Ising(torch.where(visible, base.fields, 0.0), base.couplings, visible)
    p = converged().moments(loud).probability
    assert torch.equal(p, converged().moments(quiet).probability)
    assert not p[:, 1].any()


def test_info_says_whether_it_converged() -> None:
    ising = causal_problem(5, seed=7)
    good = MeanFieldSampler().moments(ising).info
    assert good["converged"] is True
    assert good["residual"] <= 1e-6
    assert good["iterations"] < 500
    short = MeanFieldSampler(max_iterations=2).moments(ising).info
    assert (short["converged"], short["iterations"]) == (False, 2)
    assert short["residual"] > 1e-6


def ensemble(n: int, g: float, weight: float, dtype: torch.dtype, problems: int = 200) -> Ising:
    """h ~ N(0, weight·g), J ~ N(0, g/√n), an own J for each problem; every third spin of some problems is hidden."""
    generator = torch.Generator().manual_seed(n)
    h = weight * g * torch.randn(problems, n, generator=generator, dtype=F64)
    J = (g / n**0.5) * torch.randn(problems, n, n, generator=generator, dtype=F64).triu(1)
    visible = torch.ones(problems, n, dtype=torch.bool)
    visible[::4, ::3] = False
    return Ising(h.to(dtype), (J + J.mT).to(dtype), visible)


def plain(ising: Ising, iterations: int) -> tuple[Tensor, Tensor]:
    """m after so many damped steps in float64, and the residual."""
    h, J = ising.fields.double(), ising.couplings
    assert J is not None
    m = torch.zeros_like(h)
    for _ in range(iterations):
        new = torch.tanh(h + (J.double() @ m[..., None])[..., 0]) * ising.visible_mask
        change, m = new - m, m + 0.7 * (new - m)
    return m, change.abs().amax(-1)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize(("g", "weight"), [(0.6, 0.05), (1.0, 1.0), (2.0, 0.05), (3.0, 1.0)])
@pytest.mark.parametrize("n", [3, 8, 17, 40])
def test_it_is_the_fixed_point_to_which_damping_leads(
    n: int, g: float, weight: float, dtype: torch.dtype
) -> None:
    """With 200 problems near and beyond the transition, where several fixed points exist and damping is slow."""
    ising = ensemble(n, g, weight, dtype)
    moments = MeanFieldSampler().moments(ising)
    want, residual = plain(ising, 5000)
    both = (residual < 1e-9) & moments.info["problems"]["converged"]
    assert both.sum() >= 190
    gap = (moments.magnetization - want).abs().amax(-1)[both]
    assert float(gap.max()) < 1e-3  # another fixed point is at a distance of about 1
    assert float(gap.median()) < 4e-6  # a residual of 1e-6, and a rate near 1


@pytest.mark.parametrize("n", [16, 40])
def test_slow_problems_take_fewer_iterations_than_damping(n: int) -> None:
    ising = ensemble(n, 0.6, 0.05, F64)
    info = MeanFieldSampler().moments(ising).info["problems"]
    assert 2 * int(info["iterations"].sum()) < int(iterate(ising, 0.7, 1e-6, 500).iterations.sum())


def matrix_of(ising: Ising) -> Tensor:
    """J of a problem that has couplings."""
    assert ising.matrix is not None
    return ising.matrix


def widened(ising: Ising, n: int) -> Ising:
    """The same problem with free spins behind it: more than 24 spins are solved one problem after the other."""
    more = n - ising.num_spins
    assert ising.couplings is not None
    return Ising(
        torch.nn.functional.pad(ising.fields, (0, more)),
        torch.nn.functional.pad(ising.couplings, (0, more, 0, more)),
        torch.nn.functional.pad(ising.visible_mask, (0, more), value=True),
    )


@pytest.mark.parametrize(("strength", "field"), [(4.0, 0.1), (10.0, 0.01)])
@pytest.mark.parametrize("n", [3, 40])
def test_a_problem_that_oscillates_halves_its_damping(n: int, strength: float, field: float) -> None:
    """Three spins that disagree strongly: the damped iteration jumps between two points for ever.

    The second problem halves it three times, and keeps that when problems are gathered in new blocks.
    """
    J = -strength * (1 - torch.eye(3, dtype=F64))
    ising = widened(Ising(torch.full((3,), field, dtype=F64), J), n)
    J = matrix_of(ising)
    assert float(iterate(ising, 0.7, 1e-6, 500).residual) > 0.1
    moments = MeanFieldSampler().moments(ising)
    assert moments.info["converged"]
    assert moments.info["iterations"] < 256
    m = moments.magnetization
    assert (torch.tanh(ising.fields + J @ m) - m).abs().max() < 4e-6 * strength


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("lead", ["none", "shared", "heads", "per_problem"])
def test_compiled_code_and_torch_agree(lead: Any, dtype: torch.dtype) -> None:
    ising = with_visible(make_problem((2, 4), 4, lead=lead, seed=10, couplings=0.4), CAUSAL).to(dtype)
    compiled = MeanFieldSampler().moments(ising)
    found = iterate(ising, 0.7, 1e-6, 500)
    assert (compiled.magnetization - found.magnetization).abs().max() < 1e-5
    assert compiled.info["problems"]["iterations"].shape == (2, 4)
    assert (found.iterations >= compiled.info["problems"]["iterations"] - 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("lead", ["shared", "heads", "per_problem"])
@pytest.mark.parametrize("n", [1, 2, 5, 16, 31])
def test_lanes_and_one_problem_after_the_other_agree(
    n: int, lead: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More problems than lanes, masks of every length in no order, and slow problems among them."""
    ising = with_visible(
        make_problem((2, 41), n, lead=lead, seed=n, couplings=0.9 / (n + 8) ** 0.5),
        masks(82, n).view(2, 41, n),
    )
    ising = ising.to(dtype)
    v = torch.randn(2, 41, n, generator=torch.Generator().manual_seed(1), dtype=dtype)
    lanes, spins = (solved_with(ising, v, limit, monkeypatch) for limit in (32, 0))
    tolerance = 2e-10 if dtype == F64 else 2e-4  # residuals of 1e-12 and 1e-6, amplified by the response
    for got, want in zip(lanes, spins, strict=True):
        assert (got - want).abs().max() < tolerance * max(1, float(want.abs().max()))


def masks(count: int, n: int) -> Tensor:
    """Every length up to n, with holes, in no order."""
    generator = torch.Generator().manual_seed(count)
    last = torch.randint(0, n + 1, (count, 1), generator=generator)
    return (torch.arange(n) < last) & (torch.rand(count, n, generator=generator) < 0.8)


def solved_with(ising: Ising, v: Tensor, limit: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, ...]:
    """P and the gradients of v·P, with up to ``limit`` spins in lanes."""
    monkeypatch.setattr(fixed_points, "MOST_IN_LANES", limit)
    h, J = ising.fields.clone().requires_grad_(), matrix_of(ising).clone().requires_grad_()
    p = (
        MeanFieldSampler(tolerance=1e-12 if v.dtype == F64 else 1e-6)
        .moments(Ising(h, J, ising.visible))
        .probability
    )
    return p.detach(), *torch.autograd.grad((v * p).sum(), (h, J))


def test_order_and_threads_do_not_change_a_bit() -> None:
    """Slow and fast problems, one head after the other and mixed; 33 blocks of lanes."""
    ising = ensemble(12, 0.9, 0.1, torch.float32, problems=520)
    heads = Ising(
        ising.fields.view(2, 260, 12), matrix_of(ising)[:2, None], ising.visible_mask.view(2, 260, 12)
    )
    whole = MeanFieldSampler().moments(heads)
    assert int(whole.info["iterations"]) > 104  # gathered at least three times
    order = torch.randperm(260, generator=torch.Generator().manual_seed(2))
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            mixed = Ising(heads.fields[:, order], heads.couplings, heads.visible_mask[:, order])
            found = MeanFieldSampler().moments(mixed)
            assert torch.equal(found.probability, whole.probability[:, order])
            for fact, values in found.info["problems"].items():
                assert torch.equal(values, whole.info["problems"][fact][:, order])
    finally:
        torch.set_num_threads(threads)


def test_a_residual_is_within_the_tolerance_in_both_precisions() -> None:
    """0.1 in float32 is more than 0.1; a residual between both must not end the iteration unconverged."""
    assert float(np.float32(0.1)) > 0.1
    assert fixed_points.rounded_down(0.1, np.dtype(np.float32)) <= 0.1
    assert fixed_points.rounded_down(0.1, np.dtype(np.float64)) == 0.1
    assert fixed_points.rounded_down(0.25, np.dtype(np.float32)) == 0.25
    assert fixed_points.rounded_down(1e60, np.dtype(np.float32)) == np.finfo(np.float32).max


@pytest.mark.parametrize("three_body", [0.0, 0.15])
@pytest.mark.parametrize("lead", ["shared", "heads", "per_problem"])
def test_a_problem_does_not_depend_on_the_batch_around_it(lead: Any, three_body: float) -> None:
    """Each problem stops when it has converged itself; one of them is near the transition and slow."""
    base = make_problem((2, 4), 4, lead=lead, seed=11, three_body=three_body, couplings=0.3)
    fields = base.fields.clone()
    fields[1, 2] *= 0.01
    ising, sampler = Ising(fields, base.couplings, CAUSAL, base.three_body), MeanFieldSampler()
    whole = sampler.moments(ising)
    counts = whole.info["problems"]["iterations"]
    assert counts.max() > counts.min()
    assert whole.info["iterations"] == int(counts.max())
    for head, row in ((0, 3), (1, 2), (1, 0)):
        J, K = (
            None if t is None else t.expand(2, 4, *shape)[head, row]
            for t, shape in ((base.couplings, (4, 4)), (base.three_body, (4, 4, 4)))
        )
        alone = sampler.moments(Ising(fields[head, row], J, CAUSAL[row], K))
        assert (alone.probability - whole.probability[head, row]).abs().max() < 1e-15
        assert alone.info["iterations"] == int(counts[head, row])


def test_unconverged_problems_are_named() -> None:
    h = torch.tensor([[1e-3, 2e-3], [2.0, 1.0]])
    ising = Ising(h, torch.tensor([[0.0, 1.02], [1.02, 0.0]]))
    info = MeanFieldSampler(max_iterations=20).moments(ising).info
    assert info["problems"]["converged"].tolist() == [False, True]
    assert not info["converged"]
    assert info["residual"] == float(info["problems"]["residual"][0])


@pytest.mark.parametrize(
    "pairs", [(1.5, 0.0, 0.0), (1.0, 0.5, 0.0)], ids=["a negative pivot", "a pivot of zero"]
)
@pytest.mark.parametrize("n", [3, 40])
def test_the_gradient_at_a_point_that_is_not_stable(n: int, pairs: tuple[float, ...]) -> None:
    """h = 0 has the fixed point m = 0, where dP/dh = ½ (1 - J)⁻¹ also if 1 - J has negative eigenvalues."""
    J = pack_couplings(torch.tensor(pairs, dtype=F64), 3)
    J = matrix_of(widened(Ising(torch.zeros(3, dtype=F64), J), n))
    h = torch.zeros(3, n, dtype=F64, requires_grad=True)
    p = MeanFieldSampler().moments(Ising(h, J)).probability
    (got,) = torch.autograd.grad(p[1, 0], h)
    want = torch.linalg.inv(torch.eye(n, dtype=F64) - J)[0] / 2
    assert (got[1] - want).abs().max() < 1e-14
    assert not got[[0, 2]].any()


@pytest.mark.parametrize("n", [128, 130, 300])
def test_large_problems_are_solved_in_the_same_way(n: int) -> None:
    """By compiled code up to 128 spins (256 if few share a J), above by products of matrices."""
    generator = torch.Generator().manual_seed(n)
    J = (0.4 / n**0.5) * torch.randn(n, n, generator=generator, dtype=F64).triu(1)
    for problems in (2, 40):
        ising = Ising(torch.randn(problems, n, generator=generator, dtype=F64), J + J.mT)
        m = MeanFieldSampler(tolerance=1e-12).moments(ising).magnetization
        assert (torch.tanh(ising.fields + m @ (J + J.mT)) - m).abs().max() < 1e-11


def test_damping_changes_the_path_and_not_the_end() -> None:
    ising = causal_problem(5, seed=8)
    slow, fast = (MeanFieldSampler(damping=d, tolerance=1e-14).moments(ising) for d in (0.2, 1.0))
    assert slow.info["iterations"] > fast.info["iterations"]
    assert (slow.probability - fast.probability).abs().max() < 1e-11


def test_what_it_does_not_do_is_refused() -> None:
    ising = make_problem((2,), 3)
    with pytest.raises(
        UnsupportedError, match=r"sampler 'mean_field' computes moments only and cannot draw samples\."
    ):
        MeanFieldSampler().sample(ising, 5)
    with pytest.raises(UnsupportedError, match=r"sampler 'mean_field' does not report pair correlations\."):
        MeanFieldSampler().moments(ising, correlations=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"damping": 0.0}, r"damping: expected a number in \(0, 1\], got 0.0"),
        ({"damping": 1.5}, "damping: expected"),
        ({"damping": math.nan}, "damping: expected"),
        ({"max_iterations": 0}, "max_iterations: expected an integer >= 1, got 0"),
        ({"max_iterations": True}, "max_iterations: expected an integer >= 1, got True"),
        ({"max_iterations": 2.5}, "max_iterations: expected an integer >= 1, got 2.5"),
        ({"tolerance": 0.0}, "tolerance: expected a positive finite number, got 0.0"),
        ({"tolerance": math.nan}, "tolerance: expected a positive finite number, got nan"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MeanFieldSampler(**options)
