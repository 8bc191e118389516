"""Coalitions by biclustering, and tests of them on planted groups and pure noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from experiments.heads.coalitions import biclusters, permuted, within_against_between

GROUPS = torch.tensor([0, 1, 1, 0, 2, 3, 3, 2, 0, 1, 2, 3, 0, 1])


def planted(strength: float, seed: int = 0, noise: float = 0.02) -> Tensor:
    """A symmetric matrix of unit diagonal with larger couplings inside groups."""
    g = torch.Generator().manual_seed(seed)
    upper = torch.triu(noise * torch.randn(14, 14, generator=g, dtype=torch.float64), 1)
    return (upper + upper.T + strength * (GROUPS[:, None] == GROUPS)).fill_diagonal_(1)


def cluster(G: Tensor) -> Tensor:
    return biclusters(G, 4)


@pytest.mark.parametrize("offset", [0.0, -0.3, 0.2])
def test_biclusters_recover_planted_groups(offset: float) -> None:
    for seed in range(5):
        G = planted(0.15, seed) + offset * (1 - torch.eye(14))
        assert torch.equal(biclusters(G, 4), GROUPS)


def test_noise_is_rejected_on_its_own_matrix_and_not_on_another() -> None:
    """60 noise matrices at level 5 %: 3 rejections expected, at most 9 with alpha 2e-3 (binomial)."""

    same = [within_against_between(planted(0, s), cluster(planted(0, s))).p_value for s in range(60)]
    other = [within_against_between(planted(0, s + 1000), cluster(planted(0, s))).p_value for s in range(60)]
    assert np.mean(np.array(same) < 0.05) > 0.9
    assert sum(p < 0.05 for p in other) <= 9
    shuffled = [permuted(planted(0, s), cluster, permutations=19, seed=s).p_value for s in range(20)]
    assert sum(p <= 0.05 for p in shuffled) <= 5  # 1 expected; alpha 3e-4


def test_planted_coalitions_are_found_by_both_tests() -> None:
    one, two = planted(0.04, 1), planted(0.04, 2)
    assert within_against_between(two, cluster(one)).p_value < 1e-4
    found = permuted(one, cluster, permutations=99)
    assert found.p_value == pytest.approx(0.01)
    assert found.advantage > 0.8


def test_within_against_between_by_hand() -> None:
    G = torch.tensor([[1, 0.9, 0.1, 0.2], [0.9, 1, 0.3, 0.1], [0.1, 0.3, 1, 0.2], [0.2, 0.1, 0.2, 1]])
    found = within_against_between(G, torch.tensor([0, 0, 1, 1]))
    assert (found.pairs_within, found.pairs_between) == (2, 4)
    assert found.mean_within == pytest.approx(0.55)
    assert found.mean_between == pytest.approx(0.175)
    # 0.9 beats four; 0.2 beats 0.1 twice, ties 0.2, loses to 0.3.
    assert found.advantage == pytest.approx((4 + 2.5) / 8)
    alone = within_against_between(G, torch.zeros(4, dtype=torch.int64))
    assert alone.p_value == 1.0
