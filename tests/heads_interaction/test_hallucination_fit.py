from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from diabat.attention.heads.interaction.hallucination_fit import fit_hallucination
from diabat.checks import ArgumentError


def curve(gamma: Tensor, c: float, noise: float = 0.0, seed: int = 0) -> Tensor:
    """The paper's form a - λ/(1 - c Γ)."""
    g = torch.Generator().manual_seed(seed)
    return 2.0 - 0.7 / (1 - c * gamma) + noise * torch.randn(gamma.shape, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("c", [0.8, 0.3, -2.0])
def test_exact_data_give_c_back(c: float) -> None:
    gamma = torch.linspace(0.2, 1.1, 12, dtype=torch.float64)
    found = fit_hallucination(gamma, curve(gamma, c))
    assert found.c == pytest.approx(c, rel=5e-3)
    assert found.explained == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(found.predict(gamma), curve(gamma, c), rtol=0, atol=1e-3)
    assert not found.line_fits
    assert found.interval[0] <= c <= found.interval[1]


def test_a_line_is_the_curve_at_c_0() -> None:
    gamma = torch.linspace(0.2, 1.1, 12, dtype=torch.float64)
    found = fit_hallucination(gamma, 0.5 + 3 * gamma)
    assert found.c == pytest.approx(0, abs=2e-3)
    assert found.intercept == pytest.approx(0.5, abs=1e-2)
    assert found.slope == pytest.approx(3, abs=1e-2)
    assert found.line_fits
    assert found.explained_by_line == pytest.approx(1)


def test_noise_leaves_c_open() -> None:
    """The paper's R² of 0.53 from about twenty points says next to nothing on c."""
    gamma = torch.linspace(0.8, 0.9, 20, dtype=torch.float64)
    found = fit_hallucination(gamma, curve(gamma, 0.24, noise=0.006))
    assert 0.2 < found.explained < 0.8
    assert found.line_fits
    assert found.interval[0] == -math.inf
    assert found.interval[1] > 1
    assert found.explained - found.explained_by_line < 0.1


def test_the_interval_covers_c() -> None:
    """200 samples of 30 points at 95 %: at least 176 cover, alpha 1e-3 below the asymptotic 190."""
    gamma = torch.linspace(0.2, 1.1, 30, dtype=torch.float64)
    inside = 0
    for seed in range(200):
        low, high = fit_hallucination(gamma, curve(gamma, 0.6, noise=0.05, seed=seed)).interval
        inside += low <= 0.6 <= high
    assert inside >= 176


@pytest.mark.parametrize(
    ("gamma", "excess", "match"),
    [
        (torch.ones(3), torch.ones(3), "four or more"),
        (torch.rand(5) + 1, torch.ones(4), "as many as gamma"),
        (torch.ones(5), torch.ones(5), "different positive finite numbers"),
        (torch.linspace(-1, 1, 5), torch.ones(5), "different positive finite numbers"),
        (torch.linspace(1, 2, 5), torch.full((5,), torch.nan), "finite excess"),
    ],
)
def test_bad_input(gamma: Any, excess: Any, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        fit_hallucination(gamma, excess)
