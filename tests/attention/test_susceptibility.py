"""Correlation matrices with a given off-diagonal inverse: what defines them, closed forms, and extremes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from diabat.attention import susceptibility
from diabat.attention.susceptibility import consistent_correlations
from diabat.ising import pack_couplings

F64 = torch.float64


def scaled(n: int, strength: float, *, batch: tuple[int, ...] = (6,), seed: int = 0) -> Tensor:
    """S ~ N(0, strength/sqrt(n)) with zero diagonal."""
    pairs = n * (n - 1) // 2
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(*batch, pairs, generator=generator, dtype=F64)
    return pack_couplings(strength / n**0.5 * normal, n)


@pytest.mark.parametrize(("n", "strength"), [(1, 0.0), (2, 0.4), (5, 0.3), (8, 1.0), (8, 10.0), (30, 3.0)])
def test_inverse_is_minus_s_off_the_diagonal(n: int, strength: float) -> None:
    """The definition: C_jj = 1, C positive definite, and C⁻¹ + S diagonal."""
    S = scaled(n, strength)
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
    C = consistent_correlations(torch.cat((scaled(6, strength), ferromagnet)))
    assert torch.isfinite(C).all()
    assert float(C.abs().max()) <= 1 + 1e-12
    assert (torch.linalg.eigvalsh(C) > -1e-9).all()
    if sign == 1:
        assert float(C[-1].min()) > 0.99


def test_batch_shape_and_neighbours_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    S = torch.stack((scaled(4, 0.1, batch=(3,)), scaled(4, 30.0, batch=(3,))))
    together = consistent_correlations(S)
    assert together.shape == (2, 3, 4, 4)
    monkeypatch.setattr(susceptibility, "_CHUNK_CELLS", 20)  # one problem at a time
    assert torch.allclose(together, consistent_correlations(S), rtol=0, atol=1e-14)
    assert consistent_correlations(torch.zeros(0, 3, 3)).shape == (0, 3, 3)
