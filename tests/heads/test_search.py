"""Salient groups of games whose dividends are known, and the search of good coalitions."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import diabat
from diabat.attention import games
from diabat.attention.games.tables import sizes
from diabat.heads import Dividends, common, fit_surrogate, max_dividend, surrogate
from diabat.heads.games.search import low_energy_states
from diabat.ising import pack_couplings

F64 = torch.float64


def of(n: int, **dividends: float) -> Dividends:
    """Dividends by the digits of the players: p023 = 1.5 is w({0, 2, 3}) = 1.5."""
    w = torch.zeros(1, 1 << n, dtype=F64)
    for name, value in dividends.items():
        w[0, sum(1 << int(digit) for digit in name[1:])] = value
    return Dividends(games.all_coalitions(n), w)


def test_the_largest_dividend_names_the_group() -> None:
    found = of(4, p0=3.0, p12=2.0, p123=1.0)
    assert max_dividend(found) == (0,)
    assert max_dividend(found, 2) == (1, 2)
    assert max_dividend(found, 3) == (1, 2, 3)


def test_the_common_group_of_a_share() -> None:
    found = of(4, p01=1.0, p012=0.2, p013=0.1, p23=0.5, p2=-4.0)
    assert common(found, 1.0) == ()  # the intersection of eq. 8
    assert common(found, 0.75) == (0, 1)
    assert common(found, 0.5) == (0, 1)
    assert common(found, 0.25) == (0, 1, 2)  # before (0, 1, 3), which is in as many
    assert common(of(3, p0=-1.0)) == ()


def exhaustive(found: Dividends, share: float) -> tuple[int, ...]:
    positive = [
        {i for i, there in enumerate(mask) if there}
        for mask, value in zip(found.coalitions.tolist(), found.value.tolist(), strict=True)
        if any(mask) and value > 0
    ]
    best: tuple[int, int, tuple[int, ...]] = (0, -len(positive), ())
    for size in range(1, found.coalitions.shape[1] + 1):
        for group in itertools.combinations(range(found.coalitions.shape[1]), size):
            inside = sum(set(group) <= there for there in positive)
            if inside >= share * len(positive):
                best = min(best, (-size, -inside, group))
    return best[2]


@pytest.mark.parametrize("share", [1.0, 0.6, 0.4, 0.2, 0.05])
def test_the_common_group_against_a_search_of_all(share: float) -> None:
    for seed in range(5):
        g = torch.Generator().manual_seed(seed)
        found = Dividends.of(torch.randn(1, 64, generator=g, dtype=F64), 6)
        assert common(found, share) == exhaustive(found, share)


def test_the_common_group_of_many_players() -> None:
    """Beyond the table groups are counted from the coalitions; both ways say the same."""
    masks = torch.zeros(4, 30, dtype=torch.bool)
    for row, members in enumerate(([3, 20], [3, 20, 29], [3, 7, 20], [4])):
        masks[row, members] = True
    found = Dividends(masks, torch.tensor([[1.0, 0.5, 0.5, 2.0]], dtype=F64))
    assert common(found, 0.75) == (3, 20)
    assert common(found, 1.0) == ()
    assert common(found, 0.25) == (3, 7, 20)


def pairwise(n: int, seed: int = 0, higher: float = 0.0) -> Tensor:
    """A table whose dividends are of order 1 and 2, and a little above."""
    g = torch.Generator().manual_seed(seed)
    scale = torch.tensor([0, 0.6, 0.3, higher] + [0.0] * n)
    return games.inverse_mobius(torch.randn(1 << n, generator=g, dtype=F64) * scale[sizes(n)])


def lookup(table: Tensor, calls: list[int] | None = None) -> Any:
    n = table.shape[-1].bit_length() - 1

    def value(masks: Tensor) -> Tensor:
        if calls is not None:
            calls.append(len(masks))
        return table[(masks.long() << torch.arange(n)).sum(-1)]

    return value


def test_a_pairwise_game_is_fitted_exactly() -> None:
    table, masks = pairwise(7), games.all_coalitions(7)
    some = torch.randperm(128)[:60]
    model = fit_surrogate(masks[some], table[some])
    torch.testing.assert_close(model.value(masks), table, rtol=0, atol=1e-4)


def test_proposals_come_from_two_temperatures(monkeypatch: pytest.MonkeyPatch) -> None:
    """At which the exponent of all states has a standard deviation of 4 and of 16; proposals are what was drawn."""
    asked: list[diabat.Ising] = []
    drawn: list[Tensor] = []
    sampler, states = diabat.sampler("exact"), games.all_coalitions(6)
    sample = type(sampler).sample

    def watched(backend: Any, problem: diabat.Ising, *given: Any, **named: Any) -> Any:
        asked.append(problem)
        found = sample(backend, problem, *given, **named)
        drawn.append(found.spins > 0)
        return found

    monkeypatch.setattr(type(sampler), "sample", watched)
    g = torch.Generator().manual_seed(0)
    h, J = torch.randn(6, generator=g, dtype=F64), pack_couplings(torch.randn(15, generator=g, dtype=F64), 6)
    found = low_energy_states(h, J, sampler, 50, seed=3)
    spreads = [float(problem.energy(2 * states.double() - 1).std(correction=0)) for problem in asked]
    assert spreads == pytest.approx([4, 16])
    assert [len(reads) for reads in drawn] == [50, 50]
    assert torch.equal(found, torch.unique(torch.cat(drawn), dim=0))
    for fields, couplings in ((h, 0 * J), (0 * h, J)):
        assert len(low_energy_states(fields, couplings, sampler, 50, seed=3))
    assert low_energy_states(0 * h, 0 * J, sampler, 50, seed=3).shape == (0, 6)


@pytest.mark.parametrize("name", ["exact", "tempering", "dqa"])
def test_the_search_finds_the_exhaustive_best(name: str) -> None:
    n, penalty, calls = 10, 0.3, list[int]()
    table = pairwise(n, higher=0.05)
    options: Any = {"penalty": penalty, "evaluations": 120, "num_reads": 60, "seed": 0}
    found = surrogate(lookup(table, calls), n, diabat.sampler(name), **options)
    objective = table - penalty * games.all_coalitions(n).sum(-1).double()
    assert found.objective == pytest.approx(float(objective.max()), abs=1e-12)
    code = sum(1 << player for player in found.players)
    assert code == int(objective.argmax())
    assert found.value == pytest.approx(float(table[code]), abs=1e-12)
    assert found.evaluations == sum(calls) == len(found.values) == 120
    assert len(torch.unique(found.coalitions, dim=0)) == 120
    again = surrogate(lookup(table), n, diabat.sampler(name), **options)
    assert torch.equal(again.coalitions, found.coalitions)


def test_what_the_sampler_is_asked_for_and_what_is_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the evaluations are drawn; the maxima asked for are those of v(S) - λ|S|, also as the law has them.

    A sampler that proposes nothing new leaves the rest to the neighbours of the best coalition, here the empty one.
    """
    n, penalty = 8, 0.3
    linear = 0.1 * games.all_coalitions(n).sum(-1).double()
    asked: list[tuple[Tensor, Tensor]] = []

    def nothing(fields: Tensor, couplings: Tensor, *given: Any) -> Tensor:
        asked.append((fields, couplings))
        return torch.zeros(0, n, dtype=torch.bool)

    monkeypatch.setattr("diabat.heads.games.search.low_energy_states", nothing)
    calls: list[int] = []
    found = surrogate(
        lookup(linear, calls), n, diabat.sampler("exact"), penalty=penalty, evaluations=41, seed=0
    )
    assert (calls[0], found.players) == (21, ())
    assert int(found.coalitions[21:].sum(-1).max()) <= 2
    for fields, couplings in asked:  # a player is worth .1 and costs .3: h = (.1 - .3)/2
        torch.testing.assert_close(fields, torch.full_like(fields, -0.1), rtol=0, atol=1e-4)
        assert float(couplings.abs().max()) < 1e-4


def test_the_ridge_is_that_of_generalised_cross_validation() -> None:
    """Against the trace of the whole matrix that makes ŷ of y, the constant included, over 28 strengths."""
    chosen = set()
    for seed in range(6):
        g = torch.Generator().manual_seed(seed)
        masks = torch.rand(12, 6, generator=g) < 0.5
        s = 2 * masks.double() - 1
        v = s @ torch.randn(6, generator=g, dtype=F64) + 2 * torch.randn(12, generator=g, dtype=F64)
        i, j = torch.triu_indices(6, 6, 1)
        terms = torch.cat((s, s[:, i] * s[:, j]), 1)
        X, centre = terms - terms.mean(0), torch.full((12, 12), 1 / 12, dtype=F64)
        largest = float(torch.linalg.matrix_norm(X, 2)) ** 2
        scores, fits = [], []
        for ridge in torch.logspace(-8, 1, 28, dtype=F64) * largest:
            hat = centre + X @ torch.linalg.solve(X.T @ X + ridge * torch.eye(21, dtype=F64), X.T)
            fits.append(hat @ v)
            scores.append(float((v - hat @ v).square().sum() / (1 - hat.trace() / 12) ** 2))
        best = min(range(28), key=scores.__getitem__)
        chosen.add(best)
        found = fit_surrogate(masks, v).value(masks)
        torch.testing.assert_close(found, fits[best], rtol=0, atol=1e-6)
    assert len(chosen) > 2


@pytest.mark.parametrize(("n", "evaluations"), [(1, 200), (3, 200), (4, 8)])
def test_few_players_are_searched_whole(n: int, evaluations: int) -> None:
    table = pairwise(n)
    found = surrogate(lookup(table), n, diabat.sampler("exact"), evaluations=evaluations, seed=0)
    assert found.evaluations == min(evaluations, 1 << n)
    flat = surrogate(
        lambda masks: torch.zeros(len(masks)), n, diabat.sampler("exact"), evaluations=evaluations, seed=0
    )
    assert (flat.players, flat.objective) == ((), 0)
