"""Grouping of a batch into problems that share couplings and visible spins.

An attention batch has few distinct J (one per head) and few visibility patterns (one per position), but many
problems.  Backends solve each group at once.  Groups of similar size form a *tier*: they are padded to a common
number of spins with *phantom* spins, which have no field and no coupling.  Phantoms are independent of all other
spins; each multiplies the partition function by 2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from diabat.ising import Ising, flat_index

_CACHED_MASK_ELEMENTS = 1 << 16
_CODE_BITS = 62

Cost = Callable[[int, int, int], float]
"""Cost of a tier as a function of (groups, problems per group, spins)."""


def enumeration_cost(groups: int, problems: int, spins: int) -> float:
    """Multiply-adds of exact enumeration, plus a constant for starting the kernels of one tier."""
    return 8e6 + groups * 2.0**spins * (2 * problems + 16)


def unpadded_cost(groups: int, problems: int, spins: int) -> float:
    """Cost that gives every number of spins a separate tier, for engines that should not work on padding."""
    return groups * 2.0 ** (2 * spins)


class Places(NamedTuple):
    """The P problems of some groups without their padding, int64 on the CPU."""

    groups: Tensor  # [P], group of the tier
    slots: Tensor  # [P], place in the group
    rows: Tensor  # [P], row in the flat batch
    spins: Tensor  # [P, m], spin of the problem, n on phantom spins
    couplings: Tensor  # [P], index into the C distinct couplings
    cells: Tensor  # [P, m], index into the flat fields [N·n + 1]


@dataclass(frozen=True, eq=False)
class Tier:
    """Groups padded to m spins and Q problems, as indices into the flat batch of N problems.

    The last slot of every flat array (index N·n, N, C·n²) is a dump: padding reads zero from it and writes to it.
    Thus one index tensor serves to gather and to scatter.
    """

    sizes: tuple[int, int, int]  # N, C and n of the whole batch
    problems: Tensor  # int64 [G, Q], row of each problem in the batch, N on padding
    spins: Tensor  # int64 [G, m], spin of the problem, n on phantom spins
    coupling: Tensor  # int64 [G], index into the C distinct couplings

    @cached_property
    def cells(self) -> Tensor:
        """int64 [G, Q, m], index into the flat fields [N·n + 1]."""
        return self.index(self.problems, self.sizes[0], 1)

    @cached_property
    def pair_cells(self) -> Tensor:
        """int64 [G, m, m], index into the flat couplings [C·n² + 1]."""
        return self.index(self.coupling, self.sizes[1], 2)

    def index(self, owners: Tensor, count: int, order: int) -> Tensor:
        """Index of the entries of owners [G, ...] for the spins of the tier into flat values [count·n^order + 1]."""
        n, (groups, m) = self.sizes[2], self.spins.shape
        cells = owners.reshape(*owners.shape, *(1,) * order)
        valid = cells < count
        for axis in range(order):
            sides = (m if a == axis else 1 for a in range(order))
            along = self.spins.reshape(groups, *(1,) * (owners.ndim - 1), *sides)
            cells, valid = cells * n + along, valid & (along < n)
        return torch.where(valid, cells, count * n**order)

    @cached_property
    def phantoms(self) -> Tensor:
        """int64 [G], number of phantom spins."""
        return (self.spins == self.sizes[2]).sum(1)

    @cached_property
    def whole(self) -> bool:
        """Whether the tier is the whole batch without padding or reordering: a reshape gathers and scatters."""
        total, distinct, n = self.sizes
        return all(
            torch.equal(index.reshape(-1), torch.arange(size, device=index.device))
            for index, size in ((self.cells, total * n), (self.coupling, distinct))
        )

    @cached_property
    def places(self) -> Places:
        """The problems of the tier without padding, group after group."""
        problems, spins, coupling = self.problems.cpu(), self.spins.cpu(), self.coupling.cpu()
        group, slot = (problems < self.sizes[0]).nonzero(as_tuple=True)
        cells = self.cells.cpu()[group, slot]
        return Places(group, slot, problems[group, slot], spins[group], coupling[group], cells)

    @cached_property
    def places_by_group(self) -> list[Places]:
        """The problems of each group without padding."""
        counts = (self.problems.cpu() < self.sizes[0]).sum(1).tolist()
        return [Places(*some) for some in zip(*(t.split(counts) for t in self.places), strict=True)]

    def padded(self, values: Tensor) -> Tensor:
        """Values of its problems [P, ...] in the slots of the tier, [G, Q, ...]; zero on padding, else a view."""
        if len(values) == self.problems.numel():
            return values.reshape(*self.problems.shape, *values.shape[1:])
        out = values.new_zeros(*self.problems.shape, *values.shape[1:])
        out[self.places[:2]] = values
        return out

    def gather(self, fields: Tensor, couplings: Tensor | None, three_body: Tensor | None) -> Group:
        """Gather the groups from flat h [N·n + 1], J [C·n² + 1] and K [C·n³ + 1], each with a zero at the end."""
        J = None if couplings is None else couplings[self.pair_cells]
        K = None if three_body is None else three_body[self.index(self.coupling, self.sizes[1], 3)]
        return Group(self, fields[self.cells], J, K)


@dataclass(frozen=True, eq=False)
class Group:
    """One gathered tier: the input of a kernel, without visibility or broadcasting."""

    tier: Tier
    fields: Tensor  # [G, Q, m]
    couplings: Tensor | None  # [G, m, m]
    three_body: Tensor | None  # [G, m, m, m]


@dataclass(frozen=True, eq=False)
class Tiers:
    """The tiers of a batch: they gather its problems, and put results of all tiers back into its shape.

    Problems without a visible spin are in no tier.
    """

    shape: torch.Size  # of the fields, [*batch, n]
    tiers: tuple[Tier, ...]

    @property
    def whole(self) -> bool:
        """Whether the only tier is the whole batch without padding or reordering."""
        return len(self.tiers) == 1 and self.tiers[0].whole

    def gather(self, ising: Ising) -> list[Group]:
        """Copy the fields and interactions of each tier; differentiable in h, J and K."""
        h, J, K = ising.fields, ising.couplings, ising.three_body
        if J is not None and K is not None:
            lead = ising.lead
            J, K = J.expand(*lead, *J.shape[-2:]), K.expand(*lead, *K.shape[-3:])
        if self.whole:
            (tier,) = self.tiers
            groups, m = tier.spins.shape
            J = None if J is None else J.reshape(groups, m, m).clone()
            K = None if K is None else K.reshape(groups, m, m, m).clone()
            return [Group(tier, h.reshape(tier.cells.shape).clone(), J, K)]
        # Flat, with the dump at the end.
        h = torch.constant_pad_nd(h.reshape(-1), (0, 1))
        J, K = (None if t is None else torch.constant_pad_nd(t.reshape(-1), (0, 1)) for t in (J, K))
        return [tier.gather(h, J, K) for tier in self.tiers]

    def per_spin(self, values: Sequence[Tensor], fill: float = 0.0) -> Tensor:
        """Results per spin, [G, Q, m] of each tier, as [*batch, n]; differentiable."""
        return self._assembled(self._cells, values, self.shape, fill)

    def per_problem(self, values: Sequence[Tensor], fill: float = 0.0) -> Tensor:
        """Results per problem, [G, Q] of each tier, as [*batch]; differentiable."""
        return self._assembled(self._problems, values, self.shape[:-1], fill)

    def per_pair(self, values: Sequence[Tensor]) -> Tensor:
        """Results per pair, [G, Q, m, m] of each tier, as [*batch, n, n]; zero for invisible spins."""
        index = _joined([tier.index(tier.problems, tier.sizes[0], 2) for tier in self.tiers])
        return self._assembled(index, values, torch.Size((*self.shape, self.shape[-1])), 0.0)

    def _assembled(self, index: Tensor, parts: Sequence[Tensor], shape: torch.Size, fill: float) -> Tensor:
        """Scatter results by an index whose largest value is the dump."""
        if self.whole:
            return parts[0].reshape(shape).clone()
        size, values = shape.numel(), _joined(parts)
        out = torch.full((size + 1,), fill, dtype=values.dtype, device=values.device)
        return out.scatter(0, index, values)[:size].reshape(shape)

    @cached_property
    def _cells(self) -> Tensor:
        return _joined([tier.cells for tier in self.tiers])

    @cached_property
    def _problems(self) -> Tensor:
        return _joined([tier.problems for tier in self.tiers])


def tiers(ising: Ising, cost: Cost = enumeration_cost) -> Tiers:
    """Divide a batch into tiers of least total cost."""
    visible = None if ising.visible is None else ising.visible.cpu()
    facts = ising.fields.shape, ising.lead, cost, ising.fields.device
    if visible is None or visible.numel() <= _CACHED_MASK_ELEMENTS:
        # The key is the content: attention masks are small and the same at every step.
        key = None if visible is None else (visible.numpy().tobytes(), visible.shape)
        return _cached_tiers(key, *facts)
    return _build_tiers(visible, *facts)


def undivided(ising: Ising) -> Tiers:
    """One tier of all problems with a visible spin, in which invisible spins are phantoms at their places.

    For engines whose work on a phantom is small.  Every problem is a group, as if it had its own couplings.
    """
    total, n, device = ising.num_problems, ising.num_spins, ising.fields.device
    rows, spins = torch.arange(total, device=device), torch.arange(n, device=device).expand(total, n)
    if ising.visible is not None:
        seen = ising.visible_mask.reshape(total, n)
        rows = seen.any(1).nonzero()[:, 0]
        spins = torch.where(seen, spins, n)[rows]
    tier = Tier((total, total, n), rows[:, None], spins, rows)
    return Tiers(ising.fields.shape, (tier,) if len(rows) else ())


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Flatten and concatenate all parts."""
    return parts[0].reshape(-1) if len(parts) == 1 else torch.cat([part.reshape(-1) for part in parts])


@lru_cache(maxsize=64)
def _cached_tiers(mask: tuple[bytes, torch.Size] | None, *facts: Any) -> Tiers:
    if mask is None:
        return _build_tiers(torch.ones(facts[0][-1], dtype=torch.bool), *facts)
    return _build_tiers(torch.frombuffer(bytearray(mask[0]), dtype=torch.bool).reshape(mask[1]), *facts)


def _build_tiers(
    visible: Tensor, shape: torch.Size, lead: torch.Size, cost: Cost, device: torch.device
) -> Tiers:
    n, batch, sizes = shape[-1], shape[:-1], (shape[:-1].numel(), lead.numel(), shape[-1])
    patterns, inverse = _distinct_rows(visible.expand(*visible.shape[:-1], n).reshape(-1, n))
    pattern = inverse.reshape(visible.shape[:-1]).expand(batch).reshape(-1)
    keys, group = torch.unique(flat_index(lead, batch) * len(patterns) + pattern, return_inverse=True)
    counts = torch.bincount(group).tolist()
    members = torch.argsort(group, stable=True).split(counts)
    which, seen = keys // len(patterns), patterns[keys % len(patterns)]
    buckets: dict[int, list[int]] = defaultdict(list)
    for g, (size, count) in enumerate(zip(seen.sum(1).tolist(), counts, strict=True)):
        if size:
            # Groups of very different numbers of problems do not share a tier: padding would dominate.
            buckets[(count - 1).bit_length()].append(g)
    built = []
    for bucket in buckets.values():
        for part in _partition(bucket, seen.sum(1).tolist(), max(counts[g] for g in bucket), cost):
            rows = pad_sequence([members[g] for g in part], batch_first=True, padding_value=sizes[0])
            spins = pad_sequence([seen[g].nonzero()[:, 0] for g in part], batch_first=True, padding_value=n)
            built.append(Tier(sizes, rows.to(device), spins.to(device), which[part].to(device)))
    return Tiers(shape, tuple(built))


def _distinct_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct rows of a bool matrix [N, n], sorted, and the index of each row in them, int64 [N]."""
    n = rows.shape[1]
    if n > _CODE_BITS:
        return torch.unique(rows, dim=0, return_inverse=True)
    # Sorting numbers is several times as fast as sorting rows; the first spin is the highest bit for the same order.
    bits = torch.arange(n - 1, -1, -1)
    codes, inverse = torch.unique((rows.long() << bits).sum(1), return_inverse=True)
    return (codes[:, None] >> bits & 1).bool(), inverse


def _partition(groups: list[int], sizes: list[int], problems: int, cost: Cost) -> list[list[int]]:
    """Split groups into tiers of least total cost (dynamic programme over the distinct sizes)."""
    by_size: dict[int, list[int]] = defaultdict(list)
    for g in groups:
        by_size[sizes[g]].append(g)
    order = sorted(by_size)
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(order) + 1):
        options = []
        for start in range(end):
            count = sum(len(by_size[s]) for s in order[start:end])
            options.append((best[start][0] + cost(count, problems, order[end - 1]), start))
        best.append(min(options))
    parts, end = [], len(order)
    while end:
        start = best[end][1]
        parts.append([g for s in order[start:end] for g in by_size[s]])
        end = start
    return parts
