"""Errors of the papers, as docs/papers.md has them."""

from __future__ import annotations

import math

import torch

from diabat import Ising, sampler
from diabat.attention import games
from statements.table import F64, says


def random_game(problems: int, n: int, d: int) -> games.NormGame:
    return games.NormGame(torch.randn(problems, n, d, generator=torch.Generator().manual_seed(0), dtype=F64))


def negative_pairs(n: int, d: int) -> tuple[float, float]:
    """Share of negative J_ij of eq. 9 in 200 games of random vectors, and five standard errors (alpha 6e-7)."""
    row, column = torch.triu_indices(n, n, 1)
    J = games.banzhaf_interaction(random_game(200, n, d).table())[:, row, column]
    shares = (J < 0).double().mean(1)
    return shares.mean().item(), 5 * shares.std().item() / 200**0.5


@says
def coupled_by_normalisation() -> None:
    r"""papers: it has $-\alpha_{ij} \alpha_{ik}$. So have the normalised weights $\tilde\alpha$ of section 3.2 at J =
    0"""
    h = torch.tensor([0.3, -0.5, 1.1], dtype=F64)
    a = h.softmax(0)
    slope = torch.autograd.functional.jacobian(lambda h: h.softmax(0), h)
    assert torch.allclose(slope[2, 0], -a[2] * a[0])

    def normalised(h: torch.Tensor) -> torch.Tensor:
        alpha = (2 * h).sigmoid()
        return alpha / alpha.sum()

    slope = torch.autograd.functional.jacobian(normalised, h)
    assert (slope[~torch.eye(3, dtype=torch.bool)] < -0.01).all()


@says
def weights_of_one_coalition() -> None:
    """papers: With K = 1 the weight is 1, and nothing of the Gibbs target is left"""
    game = random_game(1, 6, 8)
    one, other = (games.sample_banzhaf(game, 1, weighting=w, seed=3).value for w in ("gibbs", "uniform"))
    assert torch.allclose(one, other)
    many = games.sample_banzhaf(game, 4_000, weighting="gibbs", seed=3).value
    table = game.table()
    assert (many - games.gibbs_marginal(table, 1.0)).abs().max() < (many - games.banzhaf(table)).abs().max()


@says
def contributions_are_negative() -> None:
    r"""papers: Of the marginal contributions of 128 random vectors of 64 features 31 % are negative,
    $\Phi(-\sqrt{d/2n})$"""
    # 500 games, 20 players and coalitions of each: 5 standard errors over the games (alpha 6e-7)
    game, players = random_game(500, 128, 64), torch.arange(20)
    without = torch.rand(500, 20, 128, generator=torch.Generator().manual_seed(1)) < 0.5
    without[:, players, players] = False
    within = without.clone()
    within[:, players, players] = True
    negative = (game.value(within) < game.value(without)).double().mean(1)
    law = 0.5 * math.erfc(math.sqrt(64 / 256) / math.sqrt(2))
    assert abs(law - 0.31) < 0.005
    assert abs(negative.mean() - law) < 5 * negative.std() / 500**0.5


@says
def negative_couplings_are_the_base_rate() -> None:
    """papers: Of the $J_{ij}$ of random vectors of 64 features, eq. 9 makes 100 % negative for three tokens and
    79 % for eight; with 16 features it is 64 % for eight"""
    for n, d, told in ((3, 64, 1.0), (8, 64, 0.79), (8, 16, 0.64)):
        share, error = negative_pairs(n, d)
        assert abs(share - told) < error + 0.005
        assert share - error > 0.5


@says
def fixed_point_and_expectation() -> None:
    r"""games: | $\langle s\rangle$ at the fixed point | | 0.786, 0.859, 0.760 | solution of eq. 16 |
    games: | $\langle s\rangle$ exact, by enumeration | | 0.718, 0.794, 0.709 | |
    papers: In the worked example the solution is larger than $\langle s \rangle$"""
    # tests/attention/test_neurogame_example.py has every number of the example
    J = torch.tensor([[0, 0.466, 0.312], [0.466, 0, 0.278], [0.312, 0.278, 0]], dtype=F64)
    problem = Ising(torch.tensor([0.423, 0.711, 0.512], dtype=F64), J)
    for name, told in (("exact", (0.718, 0.794, 0.709)), ("mean_field", (0.786, 0.859, 0.760))):
        assert (sampler(name).moments(problem).magnetization - torch.tensor(told)).abs().max() < 5e-4
