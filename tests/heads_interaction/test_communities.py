from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import diabat
from diabat.attention.heads.interaction.coalition_tests import held_out, permuted, within_against_between
from diabat.attention.heads.interaction.communities import biclusters, communities, modularity
from diabat.checks import ArgumentError
from diabat.samplers.base import UnsupportedError


def planted(labels: Tensor, strength: float, seed: int = 0, noise: float = 0.02) -> Tensor:
    """A symmetric matrix of unit diagonal with larger couplings inside groups."""
    g = torch.Generator().manual_seed(seed)
    upper = torch.triu(noise * torch.randn(len(labels), len(labels), generator=g, dtype=torch.float64), 1)
    same = (labels[:, None] == labels).double()
    return (upper + upper.T + strength * same).fill_diagonal_(1)


def noise(seed: int, heads: int = 14) -> Tensor:
    return planted(torch.arange(heads), 0.0, seed)


GROUPS = torch.tensor([0, 1, 1, 0, 2, 3, 3, 2, 0, 1, 2, 3, 0, 1])


@pytest.mark.parametrize("offset", [0.0, -0.3, 0.2])
def test_biclusters_recover_planted_groups(offset: float) -> None:
    for seed in range(5):
        G = planted(GROUPS, 0.15, seed) + offset * (1 - torch.eye(14))
        assert torch.equal(biclusters(G, 4), GROUPS)


@pytest.mark.parametrize("backend", ["exact", "tempering", "dqa"])
def test_communities_recover_planted_groups_with_any_sampler(backend: str) -> None:
    G = planted(GROUPS, 0.15)
    found = communities(G, diabat.sampler(backend), num_reads=200, seed=3)
    assert torch.equal(found, GROUPS)
    assert torch.equal(communities(G, diabat.sampler(backend), num_reads=200, seed=3), found)
    assert modularity(G, found) > modularity(G, torch.arange(14) % 4)


def test_the_first_split_is_the_best_of_all() -> None:
    """Two groups: against every bipartition of eight heads."""
    G = planted(torch.tensor([0, 0, 1, 1, 0, 1, 0, 1]), 0.05, seed=1, noise=0.1)
    found = communities(G, diabat.sampler("exact"), num_reads=500)
    best = max(
        modularity(G, torch.tensor([int(i in part) for i in range(8)]))
        for size in range(5)
        for part in combinations(range(8), size)
    )
    if int(found.max()) == 1:
        assert modularity(G, found) == pytest.approx(best)
    else:  # it went on splitting
        assert modularity(G, found) > best


def test_a_sampler_without_reads_refuses() -> None:
    with pytest.raises(UnsupportedError, match="cannot draw samples"):
        communities(planted(GROUPS, 0.15), diabat.sampler("mean_field"))


def test_modularity_by_hand() -> None:
    G = torch.tensor([[1.0, 0.5, -0.25], [0.5, 1.0, 0.0], [-0.25, 0.0, 1.0]], dtype=torch.float64)
    positive, negative, total = [0.5, 0.5, 0.0], [0.25, 0.0, 0.25], 2 * 0.75

    def excess(i: int, j: int) -> float:
        return float(G[i, j]) - positive[i] * positive[j] / 1.0 + negative[i] * negative[j] / 0.5

    assert modularity(G, torch.tensor([0, 0, 1])) == pytest.approx(2 * excess(0, 1) / total)
    assert modularity(G, torch.tensor([0, 1, 1])) == pytest.approx(2 * excess(1, 2) / total)


def test_a_matrix_without_couplings_is_not_split() -> None:
    assert communities(torch.eye(5), diabat.sampler("exact")).tolist() == [0] * 5
    G = 0.5 + 0.5 * torch.eye(4)  # all alike: nothing separates them
    assert communities(G, diabat.sampler("exact")).tolist() == [0] * 4


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


def test_noise_is_rejected_on_its_own_matrix_and_not_on_another() -> None:
    """60 noise matrices at level 5 %: 3 rejections expected, at most 9 with alpha 2e-3 (binomial)."""

    def cluster(G: Tensor) -> Tensor:
        return biclusters(G, 4)

    same = [within_against_between(noise(s), cluster(noise(s))).p_value for s in range(60)]
    other = [held_out(noise(s), noise(s + 1000), cluster).p_value for s in range(60)]
    assert np.mean(np.array(same) < 0.05) > 0.9
    assert sum(p < 0.05 for p in other) <= 9
    shuffled = [permuted(noise(s), cluster, permutations=19, seed=s).p_value for s in range(20)]
    assert sum(p <= 0.05 for p in shuffled) <= 5  # 1 expected; alpha 3e-4


def test_planted_coalitions_are_found_by_both_tests() -> None:
    def cluster(G: Tensor) -> Tensor:
        return biclusters(G, 4)

    one, two = planted(GROUPS, 0.04, 1), planted(GROUPS, 0.04, 2)
    assert held_out(one, two, cluster).p_value < 1e-4
    found = permuted(one, cluster, permutations=99)
    assert found.p_value == pytest.approx(0.01)
    assert found.advantage > 0.8


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: biclusters(torch.ones(3, 4), 2), r"G: expected a tensor \[H, H\]"),
        (lambda: biclusters(torch.rand(3, 3), 2), "finite symmetric matrix"),
        (lambda: biclusters(torch.full((3, 3), torch.nan), 2), "finite symmetric matrix"),
        (lambda: biclusters(torch.eye(3), 4), "count: expected at most 3"),
        (lambda: biclusters(torch.eye(3), 1), "count: expected an integer >= 2"),
        (lambda: communities(torch.eye(3), "exact"), "sampler: expected a Sampler"),  # type: ignore[arg-type]
        (lambda: modularity(torch.eye(3), torch.zeros(2)), r"labels: expected \[3\], got \[2\]"),
        (lambda: within_against_between(torch.eye(3), torch.zeros(2)), r"labels: expected \[3\]"),
        (lambda: permuted(torch.eye(3), torch.argmax, permutations=0), "permutations: expected an integer"),
    ],
)
def test_bad_input(call: Any, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        call()
