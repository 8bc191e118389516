"""The flat batch: buckets of groups, and results in the shape of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from problems import padded_windows

from diabat.ising import Ising
from diabat.samplers.flat import Cost, enumeration_cost, flat, flat_fields, flat_interactions
from diabat.testing.problems import Lead, causal_problem, make_problem

LEADS: tuple[Lead, ...] = ("none", "shared", "heads", "per_problem")


def one_bucket(groups: int, problems: int, spins: int) -> float:
    """Cost that pads all groups of similar numbers of problems to one bucket."""
    return 1.0


COSTS = [None, enumeration_cost, one_bucket]


@pytest.mark.parametrize("lead", LEADS)
def test_a_batch_in_its_own_order_is_taken_as_it_is(lead: Lead) -> None:
    ising = make_problem((2, 3), 5, lead=lead, seed=1, three_body=0.3)
    (bucket,) = flat(ising).buckets()
    h, (J, K) = flat_fields(ising), flat_interactions(ising)
    assert bucket.in_order
    assert bucket.gather(h) is h
    assert J is None or bucket.interactions(J, 2) is J
    assert K is not None
    assert bucket.interactions(K, 3) is K


def test_other_batches_are_gathered() -> None:
    assert not any(bucket.in_order for bucket in flat(causal_problem(5, seed=1)).buckets())
    # Couplings along the second dimension: groups take every other problem.
    J = make_problem((2, 3), 5, lead="heads", seed=1).couplings
    h = make_problem((3, 2), 5, seed=2).fields
    (bucket,) = flat(Ising(h, J.reshape(1, 2, 5, 5))).buckets()
    assert not bucket.in_order
    assert bucket.rows.tolist() == [0, 2, 4, 1, 3, 5]
    assert torch.equal(bucket.gather(h.reshape(6, 5)), h.transpose(0, 1).reshape(6, 5))
    hidden = torch.ones(3, 2, 5, dtype=torch.bool)
    assert [b.in_order for b in flat(Ising(h, J[0], hidden)).buckets()] == [True]
    hidden[..., 2] = False
    assert [b.in_order for b in flat(Ising(h, J[0], hidden)).buckets()] == [False]


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("lead", LEADS)
def test_what_is_gathered_goes_back_where_it_was(lead: Lead, cost: Cost | None) -> None:
    """Round trip of numbers per spin, problem, pair and read, as tensors and arrays, and J and K of every problem."""
    ising = padded_windows(lead, three_body=0.3)
    batch, seen = flat(ising), ising.visible_mask
    buckets, h, (J, K) = batch.buckets(cost), flat_fields(ising), flat_interactions(ising)
    expected = torch.where(seen, ising.fields, -7.0)
    both_kinds: tuple[Any, ...] = (h, h.numpy())
    for fields in both_kinds:
        parts = [bucket.gather(fields) for bucket in buckets]
        assert torch.equal(batch.per_spin(buckets, parts, fill=-7.0), expected)
        sums = batch.per_problem(buckets, [part.sum(-1) for part in parts], fill=-7.0)
        some = seen.any(-1)
        assert torch.allclose(sums, torch.where(some, (ising.fields * seen).sum(-1), -7.0))
    reads = [np.ones((2, *bucket.members.shape), np.int8) for bucket in buckets]
    assert torch.equal(
        batch.reads(buckets, reads, 2), torch.where(seen, 1, -1).to(torch.int8).expand(2, *seen.shape)
    )
    both = seen[..., :, None] & seen[..., None, :]
    if J is not None:
        pairs = [bucket.interactions(J, 2)[bucket.groups] for bucket in buckets]
        assert torch.equal(
            batch.per_pair(buckets, pairs), torch.where(both, ising.couplings.expand(*seen.shape, 4), 0)
        )
    assert K is not None
    slices = [bucket.interactions(K, 3).sum(-1)[bucket.groups] for bucket in buckets]
    inside = torch.where(seen[..., None, None, :], ising.three_body, 0).sum(-1)
    assert torch.allclose(batch.per_pair(buckets, slices), torch.where(both, inside, 0))


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("lead", LEADS)
def test_buckets_have_every_problem_once(lead: Lead, cost: Cost | None) -> None:
    ising = padded_windows(lead, three_body=0.3)
    batch, index, seen = (
        flat(ising),
        ising.coupling_index().numpy(),
        ising.visible_mask.reshape(-1, 4).numpy(),
    )
    rows = np.concatenate([bucket.rows for bucket in batch.buckets(cost)])
    assert sorted(rows.tolist()) == np.flatnonzero(seen.any(1)).tolist()
    for bucket in batch.buckets(cost):
        assert (bucket.couplings[bucket.groups] == index[bucket.rows]).all()
        for row, members in zip(bucket.rows, bucket.members, strict=True):
            assert members[members < 4].tolist() == np.flatnonzero(seen[row]).tolist()
        slots = bucket.in_slots(torch.from_numpy(bucket.rows) + 1)
        assert slots.shape == (len(bucket.couplings), bucket.largest)
        assert torch.equal(bucket.from_slots(slots), torch.from_numpy(bucket.rows) + 1)
        assert int((slots > 0).sum()) == len(bucket.rows)
        parts = bucket.by_group
        assert np.concatenate([part.rows for part in parts]).tolist() == bucket.rows.tolist()
        assert [part.couplings[0] for part in parts] == bucket.couplings.tolist()
    if cost is None:
        assert not any((bucket.members == 4).any() for bucket in batch.buckets())


@pytest.mark.parametrize("lead", ["shared", "heads", "per_problem"])
def test_derivatives_by_couplings_are_summed_over_problems(lead: Lead) -> None:
    ising = padded_windows(lead)
    batch, J, seen = flat(ising), ising.couplings, ising.visible_mask.double()
    whole = torch.einsum("...j,...k->...jk", ising.fields.double() * seen, seen)
    expected = whole.sum_to_size(*ising.lead, 4, 4).reshape(J.shape)
    buckets, h = batch.buckets(), flat_fields(ising).double().numpy()
    own = [bucket.gather(h)[:, :, None] * np.ones(bucket.num_spins) for bucket in buckets]
    assert torch.allclose(batch.per_coupling(buckets, own, J), expected)
    groups = [group for bucket in buckets for group in bucket.by_group]
    sums = [
        (group.gather(h)[:, :, None] * np.ones(group.num_spins)).sum(0, keepdims=True) for group in groups
    ]
    assert torch.allclose(batch.per_coupling(groups, sums, J), expected)


@pytest.mark.parametrize(
    "visible", [None, torch.ones(4, dtype=torch.bool), torch.zeros(2, 3, 4, dtype=torch.bool)]
)
def test_a_batch_without_spins_has_no_bucket(visible: torch.Tensor | None) -> None:
    total = 2 if visible is not None and visible.ndim == 3 else 0
    batch = flat(Ising(torch.zeros(total, 3, 4), torch.zeros(4, 4), visible, check=False))
    assert batch.buckets() == ()
    assert torch.equal(batch.per_spin((), ()), torch.zeros(total, 3, 4, dtype=torch.float64))
    assert batch.per_problem((), (), float("nan")).isnan().all()
    assert batch.total_visible == 0


def test_more_spins_than_an_integer_has_bits() -> None:
    seen = torch.ones(3, 130, dtype=torch.bool)
    seen[1, 128], seen[2, 0] = False, False
    batch = flat(Ising(torch.zeros(3, 130), None, seen))
    assert batch.num_visible.tolist() == [130, 129, 129]
    assert batch.pattern.tolist() == [2, 1, 0]
    assert batch.spins[1].tolist() == [j for j in range(130) if j != 128] + [130]


def test_gradients_flow_through_gather_and_results() -> None:
    ising = padded_windows("heads", three_body=0.3)
    h, J = ising.fields.clone().requires_grad_(), ising.couplings.clone().requires_grad_()
    problem = Ising(h, J, ising.visible)
    batch, (flat_J, _) = flat(problem), flat_interactions(problem)
    buckets, shown = batch.buckets(one_bucket), []
    assert flat_J is not None
    for bucket in buckets:
        fields, couplings = (
            bucket.in_slots(bucket.gather(flat_fields(problem))),
            bucket.interactions(flat_J, 2),
        )
        shown.append(bucket.from_slots((couplings @ fields.mT).mT))
    mine = torch.autograd.grad(batch.per_spin(buckets, shown).square().sum(), (h, J))
    seen = ising.visible_mask
    direct = torch.where(seen, (J @ torch.where(seen, h, 0)[..., None])[..., 0], 0)
    for got, want in zip(mine, torch.autograd.grad(direct.square().sum(), (h, J)), strict=True):
        assert torch.allclose(got, want)
