"""Batches as groups of equal numbers of visible spins, and back."""

from __future__ import annotations

import pytest
import torch
from problems import padded_windows

from diabat.ising import Ising
from diabat.samplers import grouping
from diabat.samplers.grouping import Cost, enumeration_cost, tiers, unpadded_cost
from diabat.testing.problems import Lead, causal_problem, make_problem

LEADS: tuple[Lead, ...] = ("none", "shared", "heads", "per_problem")


def one_tier(groups: int, problems: int, spins: int) -> float:
    """Cost that pads all groups of a bucket to one tier."""
    return 1.0


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("three_body", [0.0, 0.3])
def test_a_batch_in_its_own_order_is_taken_whole(lead: Lead, three_body: float) -> None:
    (tier,) = tiers(make_problem((2, 3), 5, lead=lead, seed=1, three_body=three_body)).tiers
    assert tier.whole


def test_other_batches_are_gathered() -> None:
    ising = causal_problem(5, seed=1)
    assert not any(tier.whole for tier in tiers(ising).tiers)
    # Couplings along the second dimension: groups take every other problem.
    J = make_problem((2, 3), 5, lead="heads", seed=1).couplings
    crossed = Ising(make_problem((3, 2), 5, seed=2).fields, J.reshape(1, 2, 5, 5))
    assert [tier.whole for tier in tiers(crossed).tiers] == [False]
    everywhere = make_problem((4,), 5, seed=3)
    hidden = torch.ones(4, 5, dtype=torch.bool)
    assert [t.whole for t in tiers(Ising(everywhere.fields, everywhere.couplings, hidden)).tiers] == [True]
    hidden[:, 2] = False
    assert [t.whole for t in tiers(Ising(everywhere.fields, everywhere.couplings, hidden)).tiers] == [False]


@pytest.mark.parametrize("lead", LEADS)
def test_a_whole_batch_equals_a_gathered_one(monkeypatch: pytest.MonkeyPatch, lead: Lead) -> None:
    ising = make_problem((2, 3), 5, lead=lead, seed=1, three_body=0.3)
    as_it_is = tiers(ising)
    (whole,) = as_it_is.gather(ising)
    grouping._cached_tiers.cache_clear()
    monkeypatch.setattr(torch, "equal", lambda a, b: False)  # what recognises a whole batch
    moved = tiers(ising)
    (gathered,) = moved.gather(ising)
    grouping._cached_tiers.cache_clear()
    monkeypatch.undo()
    assert as_it_is.whole
    assert not moved.whole
    for name in ("fields", "couplings", "three_body"):
        a, b = getattr(whole, name), getattr(gathered, name)
        assert (a is None and b is None) or torch.equal(a, b)
    groups, queries, m = whole.tier.cells.shape
    values = torch.arange(float(groups * queries * m * m)).reshape(groups, queries, m, m)
    assert torch.equal(as_it_is.per_spin([values[..., 0]]), moved.per_spin([values[..., 0]]))
    assert torch.equal(as_it_is.per_problem([values[..., 0, 0]]), moved.per_problem([values[..., 0, 0]]))
    assert torch.equal(as_it_is.per_pair([values]), moved.per_pair([values]))


def test_a_whole_batch_aliases_nothing() -> None:
    ising = make_problem((6,), 5, seed=1)
    found = tiers(ising)
    (group,) = found.gather(ising)
    group.fields.zero_()
    group.couplings.zero_()
    assert bool(ising.fields.any())
    assert bool(ising.couplings.any())
    values = torch.ones(1, 6, 5)
    found.per_spin([values]).zero_()
    found.per_problem([values[..., 0]]).zero_()
    assert bool(values.all())


@pytest.mark.parametrize("cost", [enumeration_cost, unpadded_cost, one_tier])
@pytest.mark.parametrize("lead", LEADS)
def test_what_is_gathered_goes_back_where_it_was(lead: Lead, cost: Cost) -> None:
    """Round trip of numbers per spin, problem and pair, and the right J and K for every problem."""
    ising = padded_windows(lead, three_body=0.3)
    found, seen = tiers(ising, cost), ising.visible_mask
    groups = found.gather(ising)
    spins = found.per_spin([g.fields for g in groups], fill=-7.0)
    assert torch.equal(spins, torch.where(seen, ising.fields, -7.0))
    sums = found.per_problem([g.fields.sum(-1) for g in groups], fill=-7.0)
    some = seen.any(-1)
    assert torch.allclose(sums, torch.where(some, (ising.fields * seen).sum(-1), -7.0))
    both = seen[..., :, None] & seen[..., None, :]
    if ising.couplings is not None:
        pairs = found.per_pair(
            [g.couplings[:, None].expand(*g.fields.shape, -1) for g in groups if g.couplings is not None]
        )
        assert torch.equal(pairs, torch.where(both, ising.couplings.expand(*seen.shape, 4), 0))
    slices = [
        g.three_body.sum(-1)[:, None].expand(*g.fields.shape, -1) for g in groups if g.three_body is not None
    ]
    inside = torch.where(seen[..., None, None, :], ising.three_body, 0).sum(-1)
    assert torch.allclose(found.per_pair(slices), torch.where(both, inside, 0))


@pytest.mark.parametrize("cost", [unpadded_cost, one_tier])
@pytest.mark.parametrize("lead", LEADS)
def test_places_are_the_problems_without_padding(lead: Lead, cost: Cost) -> None:
    ising = padded_windows(lead, three_body=0.3)
    flat, index = ising.fields.reshape(-1, 4), ising.coupling_index()
    rows: list[int] = []
    for group in tiers(ising, cost).gather(ising):
        places = group.tier.places
        rows += places.rows.tolist()
        assert torch.equal(places.couplings, index[places.rows])
        padded = torch.cat((flat, flat.new_zeros(len(flat), 1)), 1)
        assert torch.equal(group.fields[places[:2]], padded[places.rows[:, None], places.spins])
        live = places.spins < 4
        assert torch.equal(places.cells[live], (places.rows[:, None] * 4 + places.spins)[live])
        assert (places.cells[~live] == flat.numel()).all()
        back = group.tier.padded(group.fields[places[:2]])
        assert torch.equal(back, group.fields)
        parts = group.tier.places_by_group
        assert len(parts) == len(group.fields)
        assert torch.equal(torch.cat([part.rows for part in parts]), places.rows)
        for g, part in enumerate(parts):
            assert (part.groups == g).all()
    assert sorted(rows) == ising.visible_mask.reshape(-1, 4).any(1).nonzero()[:, 0].tolist()


@pytest.mark.parametrize("visible", [None, torch.ones(4, dtype=torch.bool)])
def test_an_empty_batch_has_no_tier(visible: torch.Tensor | None) -> None:
    ising = Ising(torch.zeros(0, 3, 4), torch.zeros(4, 4), visible, check=False)
    found = tiers(ising)
    assert (found.tiers, found.whole, found.gather(ising)) == ((), False, [])
    assert ising.coupling_index().shape == (0,)


def test_gradients_flow_through_gather_and_scatter() -> None:
    ising = padded_windows("heads", three_body=0.3)
    h, J = ising.fields.clone().requires_grad_(), ising.couplings
    J = J.clone().requires_grad_()
    problem = Ising(h, J, ising.visible)
    found = tiers(problem)
    groups = found.gather(problem)
    shown = found.per_spin([(g.couplings @ g.fields.mT).mT for g in groups if g.couplings is not None])
    mine = torch.autograd.grad(shown.square().sum(), (h, J))
    seen = ising.visible_mask
    direct = torch.where(seen, (J @ torch.where(seen, h, 0)[..., None])[..., 0], 0)
    for got, want in zip(mine, torch.autograd.grad(direct.square().sum(), (h, J)), strict=True):
        assert torch.allclose(got, want)
