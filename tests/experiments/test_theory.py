"""``experiments.theory``: closed forms against autograd, sampling and exact Hessians."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.optimize import brentq

from experiments.theory import chain, fit_hallucination, games, random_game


def test_random_games_violate_the_theorem_and_never_the_bound() -> None:
    """The counts that a longer implementation gave for these games."""
    columns = ("games", "admissible", "violate 2.2", "violate the bound")
    admitted, coupled, every = games(150)
    assert [admitted[key] for key in columns] == [150, 53, 51, 0]
    assert [coupled[key] for key in columns] == [118, 38, 36, 0]
    assert every["violate the bound"] == 0


@pytest.mark.parametrize("seed", range(4))
def test_a_game_against_samples_and_autograd(seed: int) -> None:
    """200,000 samples, within 5 standard errors (alpha below 1e-5)."""
    game = random_game(seed)
    heads, out, size = game.targets.shape
    g = torch.Generator().manual_seed(seed)
    h = torch.randn(200_000, heads * size, generator=g, dtype=torch.float64)
    h = (h @ torch.linalg.cholesky(game.moments).T).unflatten(1, (heads, size))
    noise = math.sqrt(game.noise) * torch.randn(len(h), out, generator=g, dtype=torch.float64)
    W = torch.randn(game.targets.shape, generator=g, dtype=torch.float64)
    e = torch.einsum("hod,nhd->no", W - game.targets, h) - noise
    losses = 0.5 * e.square().sum(1)
    assert abs(float(game.distortion(W) - losses.mean())) < 5 * float(losses.std()) / len(h) ** 0.5
    rows = torch.einsum("hod,no->hnd", W, e).flatten(1)
    rho = torch.nn.functional.normalize(rows, dim=1)
    omega = torch.nn.functional.normalize(W.flatten(1), dim=1)
    torch.testing.assert_close(game.G(W), (omega @ omega.T) * (rho @ rho.T), rtol=0, atol=0.02)
    hessian: Any = torch.autograd.functional.hessian(game.distortion, W)
    torch.testing.assert_close(game.block_norms, hessian.square().sum((1, 2, 4, 5)).sqrt())
    leaf = game.equilibrium.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(game.potential(leaf), leaf)
    assert float(gradient.norm()) < 1e-10


@pytest.mark.parametrize("c", [0.8, 0.3, -2.0, 0.0])
def test_exact_data_give_c_back(c: float) -> None:
    gamma = torch.linspace(0.2, 1.1, 12, dtype=torch.float64)
    found = fit_hallucination(gamma, 2 - 0.7 / (1 - c * gamma) if c else 0.5 + 3 * gamma)
    assert found["c"] == pytest.approx(c, rel=5e-3, abs=2e-3)
    assert found["R²"] == pytest.approx(1, abs=1e-6)
    assert found["from"] <= c <= found["to"]
    assert (found["from"] <= 0 <= found["to"]) == (c == 0)


def test_the_interval_ends_where_the_likelihood_has_fallen_by_half_of_chi_square() -> None:
    gamma = torch.linspace(0.2, 1.1, 30, dtype=torch.float64)
    noise = 0.05 * torch.randn(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    excess = 2 - 0.7 / (1 - 0.6 * gamma) + noise
    found = fit_hallucination(gamma, excess)

    def squares(c: float) -> float:
        X = torch.stack((torch.ones(30, dtype=torch.float64), gamma / (1 - c * gamma)), 1)
        return float((excess - X @ torch.linalg.lstsq(X, excess).solution).square().sum())

    for end in ("from", "to"):
        fallen = 30 * math.log(squares(found[end]) / squares(found["c"]))
        assert fallen == pytest.approx(
            3.841, abs=0.05
        )  # 95 %, one degree of freedom; ends are points of a grid
    total = float((excess - excess.mean()).square().sum())
    assert found["R²"] == pytest.approx(1 - squares(found["c"]) / total)


@pytest.mark.parametrize("ridge", [0.05, 0.5])
def test_the_chain_of_two_bits_by_hand(ridge: float) -> None:
    """Both bits alike: a bit is right with chance q = σ(2w), where 4 (q - 1 + p) + 16 α w = 0 at the equilibrium."""
    p, delta = 0.01, 0.5
    w = float(brentq(lambda w: 4 * (1 / (1 + math.exp(-2 * w)) - 1 + p) + 16 * ridge * w, 0, 9))
    q = 1 / (1 + math.exp(-2 * w))
    given = [
        ((1 - p) ** 2, q * q),
        (2 * p * (1 - p), q * (1 - q)),
        (p * p, (1 - q) ** 2),
    ]  # none, one, two flipped
    chance = sum(share for share, right in given if 1 - right >= delta)
    square = sum(share * (1 - right) ** 2 for share, right in given) / delta**2
    paid = -sum(share * math.log(right) for share, right in given) / (2 * delta**2)
    least = -2 * (p * math.log(p) + (1 - p) * math.log(1 - p)) / (2 * delta**2)
    best = 1 - (1 - p) ** 2  # the optimum is sure of a pair of which a bit is flipped
    expected = [(chance, square), (square, paid), (paid, paid), (chance, paid), (chance / best, paid / best),
                (chance / best, least / best)]  # fmt: skip
    found = chain(p, ridge, delta, oracle=True)
    for row, (left, right) in zip(found, expected, strict=True):
        assert (row["left"], row["right"], row["right / left"]) == pytest.approx((left, right, right / left))
        assert row["holds"] == (left <= right * (1 + 1e-9))
    assert [row["holds"] for row in found] == [True] * 5 + [ridge < 0.1]


def test_without_an_oracle_the_entropy_is_a_link_and_the_optimum_is_right() -> None:
    links = chain(0.01, 0.5, 0.5, oracle=False)
    assert len(links) == 4
    entropy = -2 * (0.01 * math.log(0.01) + 0.99 * math.log(0.99))
    assert links[2]["right"] - links[2]["left"] == pytest.approx(entropy / 0.5)
