"""Problems of a batch in groups that share their couplings, as `operators` solves them, and their results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import NamedTuple

import torch
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers.flat import Bucket, enumeration_cost, flat, flat_fields, flat_interactions
from diabat.samplers.folding import is_traced
from diabat.samplers.kept import kept

Join = Callable[[Sequence[Tensor]], Tensor]


class Groups(NamedTuple):
    """G groups of Q problems each.

    Attributes:
        fields: h, [G, Q, m].
        couplings: J, [G, m, m], or None.
        three_body: K, [G, m, m, m], symmetric, or None.
        visible: bool, [G, 1 or Q, m], or None.
    """

    fields: Tensor
    couplings: Tensor | None
    three_body: Tensor | None
    visible: Tensor | None

    def some(self, groups: slice, queries: slice) -> Groups:
        """Some groups, and some problems of each."""
        h, J, K, visible = self
        if visible is not None:
            visible = visible[groups] if visible.shape[1] == 1 else visible[groups, queries]
        return Groups(
            h[groups, queries], None if J is None else J[groups], None if K is None else K[groups], visible
        )

    def pieces(self, size: int) -> list[list[tuple[slice, slice]]]:
        """Which groups, and which of their problems, to take at a time: at most ``size`` problems."""
        number, queries = self.fields.shape[:2]
        several = max(1, size // queries)
        return [
            [(slice(g, g + several), slice(q, q + size)) for q in range(0, queries, size)]
            for g in range(0, number, several)
        ]

    def split(self, size: int) -> list[list[Groups]]:
        """These pieces, whose results `joined` puts together; itself if it is one."""
        pieces = self.pieces(size)
        if len(pieces) == len(pieces[0]) == 1:
            return [[self]]
        return [[self.some(*at) for at in row] for row in pieces]


class Parts(NamedTuple):
    """All problems of a batch with a visible spin, and how values of its parts, [G, Q, ...], become those of the batch.

    Attributes:
        groups: The parts.
        split: From values of the flat batch, [N, ...], to those of each part.
        per_problem: To [*batch, ...].
        per_spin: To [*batch, n], from [G, Q, m].
        per_pair: To [*batch, n, n], from [G, Q, m, m].
        per_read: To [reads, *batch, n], from [G, Q, reads, m]; -1 for invisible spins.
    """

    groups: Sequence[Groups]
    split: Callable[[Tensor], Sequence[Tensor]]
    per_problem: Join
    per_spin: Join
    per_pair: Join
    per_read: Join


def joined(values: Sequence[Sequence[Tensor]]) -> Tensor:
    """Results of the parts of `Groups.split` as [G, Q, ...]."""
    return torch.cat([torch.cat(list(row), 1) for row in values])


def is_readable(ising: Ising) -> bool:
    """Whether numbers of a batch can be read on the host without waiting for a device."""
    return ising.fields.is_cpu and not is_traced()


def parts_of(ising: Ising) -> Parts:
    """A batch by its couplings; on the CPU also by visible spins, without those that are invisible."""
    if ising.visible is None or not is_readable(ising):
        return _whole(ising)
    batch, h, (J, K) = flat(ising), flat_fields(ising), flat_interactions(ising)
    buckets, groups = batch.buckets(enumeration_cost), []
    for bucket in buckets:
        fields, seen = bucket.in_slots(bucket.gather(h)), bucket.spins < bucket.n
        pairs, triples = (None if t is None else bucket.interactions(t, k) for t, k in ((J, 2), (K, 3)))
        visible = None if seen.all() else torch.from_numpy(seen)[:, None]
        groups.append(Groups(fields, pairs, None if triples is None else symmetric(triples), visible))
    rows = [bucket.from_slots for bucket in buckets]

    def in_rows(join: Callable[[Sequence[Bucket], Sequence[Tensor]], Tensor]) -> Join:
        return lambda values: join(buckets, [back(v) for back, v in zip(rows, values, strict=True)])

    def split(values: Tensor) -> list[Tensor]:
        return [b.in_slots(values if b.in_order else values[torch.from_numpy(b.rows)]) for b in buckets]

    def per_read(values: Sequence[Tensor]) -> Tensor:
        spins = [back(v).movedim(1, 0).numpy() for back, v in zip(rows, values, strict=True)]
        return batch.reads(buckets, spins, values[0].shape[2])

    joins = in_rows(batch.per_problem), in_rows(batch.per_spin), in_rows(batch.per_pair)
    return Parts(groups, split, *joins, per_read)


def _whole(ising: Ising) -> Parts:
    """The batch in one part, by a change of the order of its dimensions."""
    h, lead, (J, K) = ising.fields, ising.lead, flat_interactions(ising)
    own = [d for d, size in enumerate(lead) if size > 1]
    order = own + [d for d, size in enumerate(lead) if size == 1]
    batch, n, back = h.shape[:-1], h.shape[-1], [order.index(d) for d in range(len(order))]
    sizes = [batch[d] for d in order]
    shape = math.prod(sizes[: len(own)]), math.prod(sizes[len(own) :])

    def split(values: Tensor) -> list[Tensor]:
        rest = values.shape[1:]
        found = values.reshape([*batch, *rest]).permute([*order, *range(len(order), len(order) + len(rest))])
        return [found.reshape(*shape, *rest)]

    def join(values: Sequence[Tensor]) -> Tensor:
        rest = values[0].shape[2:]
        found = values[0].reshape([*sizes, *rest])
        return found.permute([*back, *range(len(back), len(back) + len(rest))])

    [h] = split(h.reshape(-1, n))
    visible, K = None, None if K is None else symmetric(K)
    if ising.visible is not None:
        [visible] = split(ising.visible.expand(ising.fields.shape).reshape(-1, n))
        J, K = (None if t is None else t.where(_distinct(n, t.ndim - 1, t.device), 0) for t in (J, K))
        if K is not None:  # a hidden spin of a triple is a coupling of the other two, of this problem
            pulls = torch.einsum("gjkl,gqk->gqjl", K.double(), (~visible).double())
            J = (pulls if J is None else J[:, None] + pulls).flatten(0, 1)
            K = K[:, None].expand(*shape, n, n, n).flatten(0, 1)
            h, visible = h.reshape(-1, 1, n), visible.reshape(-1, 1, n)

    def per_read(values: Sequence[Tensor]) -> Tensor:
        spins = join(values)
        if ising.visible is not None:
            spins = spins.masked_fill(~ising.visible[..., None, :], -1)
        return spins.movedim(-2, 0).contiguous()

    return Parts([Groups(h, J, K, visible)], split, join, join, join, per_read)


@kept(lambda n, order, device: n**order)
def _distinct(n: int, order: int, device: torch.device) -> Tensor:
    """Whether all indices of an entry of J (order 2) or K (3) differ; others are no terms, and get no gradient."""
    apart = ~torch.eye(n, dtype=torch.bool, device=device)
    return apart if order == 2 else apart[:, :, None] & apart[:, None] & apart


def symmetric(K: Tensor) -> Tensor:
    """The mean over the orders of the indices, so that the gradient of a symmetric tensor is symmetric."""
    return torch.stack([K.permute(0, *p) for p in permutations((1, 2, 3))]).mean(0)
