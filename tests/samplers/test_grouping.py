from __future__ import annotations

import pytest
import torch

from diabat.ising import Ising
from diabat.samplers import grouping
from diabat.samplers.grouping import grouped, scatter, scatter_pairs, scatter_problems, tiers
from diabat.testing.problems import Lead, causal_problem, make_problem


@pytest.mark.parametrize(
    ("lead", "whole"), [("none", True), ("shared", True), ("heads", True), ("per_problem", True)]
)
@pytest.mark.parametrize("three_body", [0.0, 0.3])
def test_a_batch_in_its_own_order_is_taken_whole(lead: Lead, whole: bool, three_body: float) -> None:
    ising = make_problem((2, 3), 5, lead=lead, seed=1, three_body=three_body)
    (tier,) = tiers(ising)
    assert tier.whole is whole


def test_other_batches_are_gathered() -> None:
    ising = causal_problem(5, seed=1)
    assert not any(tier.whole for tier in tiers(ising))
    # Couplings along the second dimension: groups take every other problem.
    J = make_problem((2, 3), 5, lead="heads", seed=1).couplings
    assert J is not None
    crossed = Ising(make_problem((3, 2), 5, seed=2).fields, J.reshape(1, 2, 5, 5))
    assert [tier.whole for tier in tiers(crossed)] == [False]
    everywhere = make_problem((4,), 5, seed=3)
    hidden = torch.ones(4, 5, dtype=torch.bool)
    assert [t.whole for t in tiers(Ising(everywhere.fields, everywhere.couplings, hidden))] == [True]
    hidden[:, 2] = False
    assert [t.whole for t in tiers(Ising(everywhere.fields, everywhere.couplings, hidden))] == [False]


@pytest.mark.parametrize("lead", ["none", "shared", "heads", "per_problem"])
def test_a_whole_batch_equals_a_gathered_one(monkeypatch: pytest.MonkeyPatch, lead: Lead) -> None:
    ising = make_problem((2, 3), 5, lead=lead, seed=1, three_body=0.3)
    (whole,) = grouped(ising)
    grouping._cached_tiers.cache_clear()
    monkeypatch.setattr(torch, "equal", lambda a, b: False)  # what recognises a whole batch
    (gathered,) = grouped(ising)
    grouping._cached_tiers.cache_clear()
    monkeypatch.undo()
    assert whole.tier.whole
    assert not gathered.tier.whole
    for name in ("fields", "couplings", "three_body"):
        a, b = getattr(whole, name), getattr(gathered, name)
        assert (a is None and b is None) or torch.equal(a, b)
    groups, queries, m = whole.tier.cells.shape
    values = torch.arange(float(groups * queries * m * m)).reshape(groups, queries, m, m)
    for assemble, part in ((scatter, values[..., 0]), (scatter_problems, values[..., 0, 0])):
        assert torch.equal(assemble([(whole.tier, part)], ising), assemble([(gathered.tier, part)], ising))
    pairs = scatter_pairs([(whole.tier, values)], ising)
    assert torch.equal(pairs, scatter_pairs([(gathered.tier, values)], ising))


def test_a_whole_batch_aliases_nothing() -> None:
    ising = make_problem((6,), 5, seed=1)
    (group,) = grouped(ising)
    assert ising.couplings is not None
    assert group.couplings is not None
    group.fields.zero_()
    group.couplings.zero_()
    assert bool(ising.fields.any())
    assert bool(ising.couplings.any())
    values = torch.ones(1, 6, 5)
    scatter([(group.tier, values)], ising).zero_()
    scatter_problems([(group.tier, values[..., 0])], ising).zero_()
    assert bool(values.all())
