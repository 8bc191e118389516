from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from diabat.heads.lora.couplings import (
    gradient_coupling,
    interaction,
    interaction_strength,
    reachable_coupling,
    weight_coupling,
    written_coupling,
)
from diabat.heads.lora.information import diagonal_correlation, head_information


def test_two_heads_by_hand() -> None:
    W = torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[2.0, 0.0], [0.0, -0.5]]])  # [2, hidden 2, d 2]
    g = torch.tensor([[[3.0, 0.0], [0.0, 4.0]], [[1.0, 1.0], [1.0, 0.0]]])  # [2 tokens, 2, d 2]
    omega = (2 - 1) / math.sqrt(5 * 4.25)
    rho = (0 + 1) / math.sqrt((9 + 2) * (16 + 1))
    assert float(weight_coupling(W)[0, 1]) == pytest.approx(omega, abs=1e-12)
    assert float(gradient_coupling(g)[0, 1]) == pytest.approx(rho, abs=1e-12)
    G = interaction(weight_coupling(W), gradient_coupling(g))
    assert float(interaction_strength(G)) == pytest.approx(math.sqrt(2) * omega * rho, abs=1e-12)
    # Outputs of variance 1 without correlation have nothing in common.
    torch.testing.assert_close(written_coupling(W, torch.eye(4)), torch.eye(2).double())
    assert torch.allclose(reachable_coupling(W, torch.eye(2)), torch.ones(2, 2, dtype=torch.float64))


@given(
    seed=st.integers(0, 10**6),
    heads=st.integers(2, 9),
    size=st.integers(1, 5),
    tokens=st.integers(1, 7),
    dead=st.booleans(),
    scale=st.sampled_from([1e-30, 1.0, 1e6]),
)
def test_couplings_are_positive_semidefinite(
    seed: int, heads: int, size: int, tokens: int, dead: bool, scale: float
) -> None:
    g = torch.Generator().manual_seed(seed)
    W = torch.randn(heads, 6, size, generator=g)
    gradients = scale * torch.randn(tokens, heads, size, generator=g)
    W[1] = W[0]  # singular
    if dead:
        W[0], gradients[:, -1] = 0, 0
    G = interaction(weight_coupling(W), gradient_coupling(gradients))
    assert float(torch.linalg.eigvalsh(G)[0]) >= -1e-12
    assert torch.allclose(G.diagonal(), torch.ones(heads, dtype=torch.float64))
    outputs = torch.randn(tokens, heads * size, generator=g).double()
    residual = torch.randn(tokens, 6, generator=g).double()
    invariant = interaction(
        written_coupling(W, outputs.T @ outputs), reachable_coupling(W, residual.T @ residual)
    )
    assert float(torch.linalg.eigvalsh(invariant)[0]) >= -1e-12
    if dead:
        rows = torch.stack([invariant[0], G[-1]])
        assert torch.allclose(rows, torch.eye(heads).double()[[0, -1]], rtol=0, atol=1e-15)


def test_slices_as_small_as_float64_allows() -> None:
    """Their squares are 0, their directions are not."""
    W = random_covariance(6).view(3, 6, 2)
    torch.testing.assert_close(weight_coupling(1e-200 * W), weight_coupling(W), rtol=0, atol=1e-12)


def test_gradients_of_the_couplings() -> None:
    W = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    dead = (W * torch.tensor([1.0, 0.0, 1.0])[:, None, None]).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(weight_coupling(dead).sum(), dead)
    assert bool(torch.isfinite(gradient).all())
    g = torch.randn(5, 3, 2, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(weight_coupling, (W,))
    torch.autograd.gradcheck(gradient_coupling, (g,))
    torch.autograd.gradcheck(lambda w, x: interaction_strength(
        interaction(weight_coupling(w), gradient_coupling(x))
    ), (W, g))  # fmt: skip
    torch.autograd.gradcheck(lambda w: written_coupling(w, random_covariance(6)), (W,))
    torch.autograd.gradcheck(lambda w: reachable_coupling(w, random_covariance(4)), (W,))


def test_a_basis_inside_a_head_moves_the_paper_s_couplings_only() -> None:
    W, o = torch.randn(3, 5, 2, dtype=torch.float64), torch.randn(8, 3, 2, dtype=torch.float64)
    r = torch.randn(8, 5, dtype=torch.float64)
    M = torch.randn(3, 2, 2, dtype=torch.float64)
    W_M, o_M = W @ torch.linalg.inv(M), torch.einsum("hde,nhe->nhd", M, o)
    u = [x.flatten(1) for x in (o, o_M)]
    torch.testing.assert_close(written_coupling(W_M, u[1].T @ u[1]), written_coupling(W, u[0].T @ u[0]))
    torch.testing.assert_close(reachable_coupling(W_M, r.T @ r), reachable_coupling(W, r.T @ r))
    assert not torch.allclose(weight_coupling(W_M), weight_coupling(W), atol=0.05)


def test_a_rank_deficient_slice_reaches_its_columns_only() -> None:
    W = torch.zeros(2, 3, 2)
    W[0, 0] = torch.tensor([1.0, 2.0])  # rank one: the first axis
    W[1] = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    r = torch.tensor([[3.0, 4.0, 7.0]])
    assert float(reachable_coupling(W, r.T @ r)[0, 1]) == pytest.approx(9 / (3 * 5))


def random_covariance(features: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    A = torch.randn(features, 2 * features, generator=g, dtype=torch.float64)
    return A @ A.T


def test_identical_heads_share_everything() -> None:
    block = random_covariance(3)
    found = head_information(block.repeat(2, 2), 2)
    assert found.total_correlation == math.inf
    assert found.redundancy.tolist() == [math.inf, math.inf]
    apart = torch.block_diag(block.repeat(2, 2), random_covariance(3, 1))
    with_third = head_information(apart, 3)
    assert with_third.free_riding.tolist() == pytest.approx([0, math.inf, 0], abs=1e-9)
    assert with_third.redundancy.tolist() == pytest.approx([math.inf, math.inf, 0], abs=1e-6)


def test_heads_with_fewer_different_tokens_than_features_know_each_other() -> None:
    """Rounding of the sums makes eigenvalues of the covariance negative."""
    g = torch.Generator().manual_seed(0)
    x = 300 + torch.randn(24, 64, generator=g, dtype=torch.float64).repeat(5, 1)
    mean = x.mean(0)
    covariance = (x.T @ x - len(x) * mean[:, None] * mean) / (len(x) - 1)
    assert torch.linalg.eigvalsh(covariance)[0] < -1e-11
    found = head_information(covariance, 4, len(x))
    assert found.total_correlation == math.inf
    assert found.redundancy.isinf().all()


@pytest.mark.parametrize("c", [0.0, 0.3, -0.9, 0.9999])
def test_two_correlated_heads_in_closed_form(c: float) -> None:
    pair = torch.tensor([[1.0, c], [c, 1.0]], dtype=torch.float64)
    found, expected = head_information(torch.kron(pair, torch.eye(3).double()), 2), -1.5 * math.log(1 - c**2)
    assert found.total_correlation == pytest.approx(expected, abs=1e-7)
    assert found.free_riding.tolist() == pytest.approx([0, expected], abs=1e-7)
    assert found.redundancy.tolist() == pytest.approx([expected, expected], abs=1e-7)


def test_definitions_by_log_determinants() -> None:
    H, d = 4, 3
    covariance = random_covariance(H * d)
    found = head_information(covariance, H)

    def log_det(heads: list[int]) -> Tensor:
        index = [d * h + k for h in heads for k in range(d)]
        return torch.logdet(covariance[index][:, index])

    everyone = list(range(H))
    for i in everyone:
        others = [h for h in everyone if h != i]
        riding = 0.5 * (log_det([i]) + log_det(everyone[:i]) - log_det(everyone[: i + 1]))
        redundancy = 0.5 * (log_det([i]) + log_det(others) - log_det(everyone))
        assert float(found.free_riding[i]) == pytest.approx(float(riding), abs=1e-8)
        assert float(found.redundancy[i]) == pytest.approx(float(redundancy), abs=1e-8)
    total = 0.5 * (sum(float(log_det([i])) for i in everyone) - float(log_det(everyone)))
    assert found.total_correlation == pytest.approx(total, abs=1e-8)


def test_information_does_not_depend_on_the_basis_inside_a_head() -> None:
    covariance = random_covariance(12)
    M = torch.block_diag(*torch.randn(4, 3, 3, dtype=torch.float64))
    found, moved = (head_information(c, 4) for c in (covariance, M @ covariance @ M.T))
    assert moved.total_correlation == pytest.approx(found.total_correlation, abs=1e-7)
    torch.testing.assert_close(moved.free_riding, found.free_riding, rtol=0, atol=1e-7)
    torch.testing.assert_close(moved.redundancy, found.redundancy, rtol=0, atol=1e-7)
    unit = diagonal_correlation(covariance, 4)
    assert not torch.allclose(diagonal_correlation(M @ covariance @ M.T, 4), unit, atol=0.05)


def test_a_direction_of_no_variance_knows_nothing() -> None:
    """Two features of head 0 differ by a millionth of what head 1 writes: without that the heads are independent."""
    mix = torch.tensor([[1.0, 0.0], [1.0, 1e-6], [0.0, 1.0]], dtype=torch.float64)
    covariance = torch.block_diag(mix @ mix.T, torch.eye(1, dtype=torch.float64))
    found = head_information(covariance, 2)
    assert found.total_correlation == pytest.approx(0, abs=1e-9)


def test_the_bias_of_a_sample_by_its_formula() -> None:
    """Four features of 9 tokens, n = 8: ½ Σ over heads of E log det Σ̂_i - log det Σ_i, less that of all."""
    k = torch.arange(4, dtype=torch.float64)
    parts = torch.digamma((8 - k) / 2) - math.log(4)
    expected = float(parts[:2].sum() - 0.5 * parts.sum())
    assert head_information(torch.eye(4), 2, 9).bias == pytest.approx(expected, abs=1e-12)


def test_the_bias_of_a_sample_is_subtracted() -> None:
    """Alpha 1e-4: 400 samples of 40 tokens; the mean of the corrected TC within 3.9 of its standard errors."""
    H, d, tokens = 3, 4, 40
    covariance = random_covariance(H * d)
    factor = torch.linalg.cholesky(covariance)
    exact = head_information(covariance, H)
    g = torch.Generator().manual_seed(3)
    drawn = [torch.randn(tokens, H * d, generator=g, dtype=torch.float64) @ factor.T for _ in range(400)]
    found = [head_information(torch.cov(x.T), H, tokens) for x in drawn]
    for name in ("free_riding", "redundancy"):
        values = torch.stack([vars(f)[name] for f in found])
        deviation = (values.mean(0) - vars(exact)[name]) / (values.std(0) / 20)
        assert deviation[1:].abs().max() < 3.9
    assert found[0].bias > 0.5
    plug_in = torch.tensor([f.total_correlation + f.bias for f in found], dtype=torch.float64)
    assert (plug_in.mean() - exact.total_correlation) / (plug_in.std() / 20) > 20


def test_diagonal_correlation_by_hand() -> None:
    x = torch.randn(50, 4, dtype=torch.float64)
    x[:, 2] = x[:, 0]  # feature 0 of both heads is the same
    expected = (1 + torch.corrcoef(x[:, [1, 3]].T)[0, 1]) / 2
    assert float(diagonal_correlation(torch.cov(x.T), 2)[0, 1]) == pytest.approx(float(expected))
