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
