from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import diabat
from diabat.checks import ArgumentError
from experiments.heads.communities import communities, modularity, within_against_between


def planted(labels: Tensor, strength: float, seed: int = 0, noise: float = 0.02) -> Tensor:
    """A symmetric matrix of unit diagonal with larger couplings inside groups."""
    g = torch.Generator().manual_seed(seed)
    upper = torch.triu(noise * torch.randn(len(labels), len(labels), generator=g, dtype=torch.float64), 1)
    same = (labels[:, None] == labels).double()
    return (upper + upper.T + strength * same).fill_diagonal_(1)


GROUPS = torch.tensor([0, 1, 1, 0, 2, 3, 3, 2, 0, 1, 2, 3, 0, 1])


@pytest.mark.parametrize("backend", ["exact", "tempering", "dqa"])
def test_communities_recover_planted_groups_with_any_sampler(backend: str) -> None:
    G = planted(GROUPS, 0.15)
    found = communities(G, diabat.sampler(backend), num_reads=200, seed=3)
    assert torch.equal(found, GROUPS)
    assert torch.equal(communities(G, diabat.sampler(backend), num_reads=200, seed=3), found)
    assert modularity(G, found) > modularity(G, torch.arange(14) % 4)


def test_modularity_by_hand() -> None:
    G = torch.tensor([[1.0, 0.5, -0.25], [0.5, 1.0, 0.0], [-0.25, 0.0, 1.0]], dtype=torch.float64)
    positive, negative, total = [0.5, 0.5, 0.0], [0.25, 0.0, 0.25], 2 * 0.75

    def excess(i: int, j: int) -> float:
        return float(G[i, j]) - positive[i] * positive[j] / 1.0 + negative[i] * negative[j] / 0.5

    assert modularity(G, torch.tensor([0, 0, 1])) == pytest.approx(2 * excess(0, 1) / total)
    assert modularity(G, torch.tensor([0, 1, 1])) == pytest.approx(2 * excess(1, 2) / total)


def test_noise_is_rejected_on_its_own_matrix_and_not_on_another() -> None:
    """60 noise matrices at level 5 %: 3 rejections expected, at most 9 with alpha 2e-3 (binomial)."""
    noise = [planted(GROUPS, 0, seed) for seed in range(61)]
    labels = [communities(G, diabat.sampler("exact"), num_reads=50) for G in noise[:60]]
    same = [within_against_between(G, found)[1] for G, found in zip(noise, labels, strict=False)]
    other = [within_against_between(G, found)[1] for G, found in zip(noise[1:], labels, strict=True)]
    assert np.mean(np.array(same) < 0.05) > 0.9
    assert sum(p < 0.05 for p in other) <= 9
    one, two = planted(GROUPS, 0.04, 1), planted(GROUPS, 0.04, 2)
    assert within_against_between(two, communities(one, diabat.sampler("exact")))[1] < 1e-4


def test_within_against_between_by_hand() -> None:
    G = torch.tensor([[1, 0.9, 0.1, 0.2], [0.9, 1, 0.3, 0.1], [0.1, 0.3, 1, 0.2], [0.2, 0.1, 0.2, 1]])
    # 0.9 beats four; 0.2 beats 0.1 twice, ties 0.2, loses to 0.3.
    assert within_against_between(G, torch.tensor([0, 0, 1, 1]))[0] == pytest.approx((4 + 2.5) / 8)
    assert within_against_between(G, torch.zeros(4, dtype=torch.int64)) == (0.5, 1.0)


def test_a_matrix_without_couplings_is_not_split() -> None:
    assert communities(torch.eye(5), diabat.sampler("exact")).tolist() == [0] * 5
    G = 0.5 + 0.5 * torch.eye(4)  # all alike: nothing separates them
    assert communities(G, diabat.sampler("exact")).tolist() == [0] * 4


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: modularity(torch.ones(3, 4), GROUPS), r"G: expected a tensor \[H, H\]"),
        (lambda: modularity(torch.rand(3, 3), GROUPS), "finite symmetric matrix"),
        (lambda: modularity(torch.full((3, 3), torch.nan), GROUPS), "finite symmetric matrix"),
        (lambda: communities(torch.eye(3), "exact"), "sampler: expected a Sampler"),  # type: ignore[arg-type]
        (lambda: modularity(torch.eye(3), torch.zeros(2)), r"labels: expected \[3\], got \[2\]"),
    ],
)
def test_bad_input(call: Any, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        call()
