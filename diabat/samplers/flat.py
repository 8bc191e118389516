"""The one batch: its problems in flat order, the couplings and the visible spins of each, and results in its shape.

An attention batch has many problems, but few distinct J (one per head) and few sets of visible spins (one per
position).  Problems that share both form a *group*, which a backend can solve at once.  A *bucket* has groups of
similar size, padded to a common number of spins with *padding spins*, which have no field and no coupling: they are
independent of all other spins, and each multiplies the partition function by 2.

Values of a bucket are arrays or tensors with a row for each of its P problems, group after group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers.kept import kept

Array = NDArray[Any]
Integers = NDArray[np.int64]
Values = TypeVar("Values", Array, Tensor)
Cost = Callable[[int, int, int], float]
"""Cost of a bucket as a function of (groups, problems of a group, spins)."""

_CACHED_MASK_ELEMENTS = 1 << 16
ZEROS: dict[torch.dtype, Any] = {torch.float32: np.float32(0), torch.float64: np.float64(0)}
"""0 in each precision, as compiled code takes it."""


def enumeration_cost(groups: int, problems: int, spins: int) -> float:
    """Multiply-adds of exact enumeration, plus a constant for starting the kernels of a bucket."""
    return 8e6 + groups * 2.0**spins * (2 * problems + 16)


@dataclass(frozen=True, eq=False)
class Bucket:
    """Groups of problems, padded to m spins.

    Attributes:
        n: Number of spins of a problem in the batch; it also stands for a padding spin.
        rows: Row of each problem in the flat batch, int64 [P].
        starts: First problem of each group in ``rows``, and P, int64 [G + 1].
        couplings: Index of each group into the distinct couplings, int64 [G].
        spins: Visible spins of each group in order, then n, int64 [G, m].
        in_order: Whether it is the whole batch in its order, and all its spins are visible.
    """

    n: int
    rows: Integers
    starts: Integers
    couplings: Integers
    spins: Integers
    in_order: bool

    @property
    def num_spins(self) -> int:
        """Number m of spins of its problems, with padding."""
        return self.spins.shape[1]

    @cached_property
    def groups(self) -> Integers:
        """Group of each problem, int64 [P]."""
        return np.repeat(np.arange(len(self.couplings)), np.diff(self.starts))

    @cached_property
    def members(self) -> Integers:
        """Spins of each problem, int64 [P, m]."""
        return self.spins[self.groups]

    @cached_property
    def largest(self) -> int:
        """Number Q of problems of the largest group."""
        return int(np.diff(self.starts).max())

    @cached_property
    def slots(self) -> Integers:
        """Place of each problem in its group, int64 [P]."""
        return np.arange(len(self.rows)) - self.starts[self.groups]

    @cached_property
    def by_group(self) -> tuple[Bucket, ...]:
        """A bucket for each group."""
        if len(self.couplings) == 1:
            return (self,)
        buckets = []
        for g, (start, stop) in enumerate(zip(self.starts, self.starts[1:], strict=False)):
            rows, first, own = self.rows[start:stop], np.array([0, stop - start]), slice(g, g + 1)
            buckets.append(Bucket(self.n, rows, first, self.couplings[own], self.spins[own], False))
        return tuple(buckets)

    def gather(self, fields: Values) -> Values:
        """Values per spin of its problems, [P, m], from those of the batch [N, n]; 0 for padding spins."""
        if self.in_order:
            return fields
        rows, members = self._rows_and_members(fields)
        return fields[rows] if members is None else _with_zeros(fields, 1)[rows, members]

    def interactions(self, values: Values, order: int) -> Values:
        """J (order 2) or K (3) of its groups, [G, m, ...], from the distinct ones [C, n, ...]; 0 for padding spins."""
        if self.in_order:
            return values
        couplings, spins = _like(self.couplings, values), _like(self.spins, values)
        if self._all_spins:
            return values[couplings]
        index: list[Any] = [couplings.reshape([-1] + [1] * order)]
        for axis in range(order):
            index.append(spins.reshape([len(spins)] + [1] * axis + [-1] + [1] * (order - axis - 1)))
        return _with_zeros(values, order)[tuple(index)]

    def in_slots(self, values: Tensor) -> Tensor:
        """Values [P, ...] by group and place in the group, [G, Q, ...]; 0 on empty places."""
        shape = (len(self.couplings), self.largest, *values.shape[1:])
        if shape[0] * shape[1] == len(values):
            return values.reshape(shape)
        return values.new_zeros(shape).index_put(self._slot_index(values.device), values)

    def from_slots(self, values: Tensor) -> Tensor:
        """The inverse of `in_slots`."""
        if values.shape[0] * values.shape[1] == len(self.rows):
            return values.flatten(0, 1)
        return values[self._slot_index(values.device)]

    @cached_property
    def _all_spins(self) -> bool:
        """Whether the spins of every group are all spins of the batch."""
        return bool((self.spins == np.arange(self.num_spins)).all()) and self.num_spins == self.n

    def _slot_index(self, device: torch.device) -> tuple[Tensor, ...]:
        return tuple(torch.from_numpy(index).to(device) for index in (self.groups, self.slots))

    def _rows_and_members(self, like: Values) -> tuple[Any, Any]:
        """Indices of its values per spin: rows, and spins [P, m], or None for all."""
        if self._all_spins:
            return _like(self.rows, like), None
        return _like(self.rows[:, None], like), _like(self.members, like)


@dataclass(frozen=True, eq=False)
class Flat:
    """The N problems of a batch, as far as the shapes and the mask determine them.

    Attributes:
        shape: Of the fields, [*batch, n].
        couplings: Index of each problem into the C distinct (J, K), int64 [N].
        pattern: Index of each problem into the K distinct sets of visible spins, int64 [N].
        orders: The spins of each pattern, visible ones first, int64 [K, n].
        counts: Number of visible spins of each pattern, int64 [K].
    """

    shape: torch.Size
    couplings: Integers
    pattern: Integers
    orders: Integers
    counts: Integers
    _buckets: dict[Cost | None, tuple[Bucket, ...]] = field(default_factory=dict, repr=False)

    @cached_property
    def num_visible(self) -> Integers:
        """Number of visible spins of each problem, int64 [N]."""
        return self.counts[self.pattern]

    @cached_property
    def total_visible(self) -> int:
        """Number of visible spins of all problems."""
        return int(self.num_visible.sum())

    @cached_property
    def spins(self) -> Integers:
        """Visible spins of each pattern, then n, int64 [K, n]."""
        n = self.shape[-1]
        return np.where(np.arange(n) < self.counts[:, None], self.orders, n)

    def buckets(self, cost: Cost | None = None) -> tuple[Bucket, ...]:
        """The problems with a visible spin in buckets of least total cost; without a cost nothing is padded."""
        if cost not in self._buckets:
            self._buckets[cost] = self.buckets_of(np.flatnonzero(self.num_visible), cost)
        return self._buckets[cost]

    @cached_property
    def unpadded(self) -> tuple[Bucket, ...]:
        """Buckets without padding: one for each group of several problems, one for groups of one problem each."""
        divided = [(b,) if b.largest == 1 else b.by_group for b in self.buckets()]
        return tuple([group for groups in divided for group in groups])

    @cached_property
    def cells(self) -> Integers | None:
        """Visible spins of `unpadded` as indices into the flat fields, int64 [M]; None for all in their order."""
        if _in_order(self.buckets()):
            return None
        n, none = self.shape[-1], np.zeros(0, np.int64)
        return np.concatenate([none, *((b.rows[:, None] * n + b.members).reshape(-1) for b in self.unpadded)])

    def visible_values(self, values: Array) -> Array:
        """Values of the visible spins, [M] in the order of `cells`, from those of the batch [N, n]."""
        row = values.reshape(-1)
        return row if self.cells is None else row[self.cells]

    def unpadded_values(self, row: Array) -> list[Array]:
        """Values of the visible spins, [M], of each of these buckets, [P, m]."""
        parts, start = [], 0
        for group in self.unpadded:
            shape = len(group.rows), group.spins.shape[1]
            stop = start + shape[0] * shape[1]
            parts.append(row[start:stop].reshape(shape))
            start = stop
        return parts

    def from_visible(self, parts: Sequence[Array]) -> Tensor:
        """The inverse of both: from the values of each bucket, [P, m], float64 [*batch, n]; 0 for invisible spins."""
        row = np.concatenate([np.zeros(0), *map(np.ravel, parts)])
        if self.cells is not None:
            out = np.zeros(self.shape.numel())
            out[self.cells] = row
            row = out
        return torch.from_numpy(row).reshape(self.shape)

    def buckets_of(self, rows: Integers, cost: Cost | None = None) -> tuple[Bucket, ...]:
        """The same of some problems with a visible spin, in ascending order."""
        members, couplings, pattern = self._groups(rows)
        sizes, spins = [len(own) for own in members], self.counts[pattern].tolist()
        by_magnitude: dict[int, list[int]] = defaultdict(list)
        for g, count in enumerate(sizes):
            # Groups of very different numbers of problems do not share a bucket: padding would dominate.
            by_magnitude[(count - 1).bit_length()].append(g)
        return tuple(
            self._bucket([members[g] for g in part], couplings[part], pattern[part])
            for groups in by_magnitude.values()
            for part in _partition(groups, spins, max(sizes[g] for g in groups), cost)
        )

    @cached_property
    def undivided(self) -> Bucket:
        """The problems with a visible spin in one bucket, whose padding spins are the invisible ones, in their places.

        For couplings held as edges, which name spins by their number in the problem.
        """
        members, couplings, pattern = self._groups(np.flatnonzero(self.num_visible))
        n, rows = self.shape[-1], np.concatenate([np.zeros(0, np.int64), *members])
        visible = np.zeros((len(self.counts), n + 1), np.bool_)
        np.put_along_axis(visible, self.spins, True, axis=1)
        spins, starts = np.where(visible[:, :n], np.arange(n), n), np.cumsum([0, *map(len, members)])
        in_order = bool((self.counts == n).all()) and np.array_equal(rows, np.arange(len(self.pattern)))
        return Bucket(n, rows, starts, couplings, spins[pattern], in_order)

    def _groups(self, rows: Integers) -> tuple[list[Integers], Integers, Integers]:
        """Members of the groups of some problems, and the couplings and the pattern of each group."""
        kinds = len(self.counts)
        keys, group = np.unique(self.couplings[rows] * kinds + self.pattern[rows], return_inverse=True)
        ends = np.cumsum(np.bincount(group))
        members = np.split(rows[np.argsort(group, kind="stable")], ends[:-1])[: len(keys)]
        return members, keys // kinds, keys % kinds

    def _bucket(self, members: list[Integers], couplings: Integers, pattern: Integers) -> Bucket:
        """The bucket of these groups."""
        rows, n, m = np.concatenate(members), self.shape[-1], int(self.counts[pattern].max())
        in_order = len(self.counts) == 1 and m == n and np.array_equal(rows, np.arange(len(self.pattern)))
        starts = np.cumsum([0, *map(len, members)])
        return Bucket(n, rows, starts, couplings, self.spins[pattern, :m], in_order)

    def per_problem(self, buckets: Sequence[Bucket], values: Sequence[Any], fill: float = 0.0) -> Tensor:
        """Results per problem, [P, ...] of each bucket, as [*batch, ...]; differentiable."""
        parts, batch = _tensors(values), self.shape[:-1]
        if _in_order(buckets):
            return parts[0].reshape((*batch, *parts[0].shape[1:]))
        out = parts[0].new_full((len(self.pattern), *parts[0].shape[1:]), fill)
        for bucket, part in zip(buckets, parts, strict=False):
            out[_like(bucket.rows, out)] = part
        return out.reshape((*batch, *out.shape[1:]))

    def per_spin(self, buckets: Sequence[Bucket], values: Sequence[Any], fill: float = 0.0) -> Tensor:
        """Results per spin, [P, m] of each bucket, as [*batch, n]; differentiable."""
        parts = _tensors(values)
        if _in_order(buckets):
            return parts[0].reshape(self.shape)
        n = self.shape[-1]
        out = parts[0].new_full((len(self.pattern), n + 1), fill)
        for bucket, part in zip(buckets, parts, strict=False):
            out[_like(bucket.rows[:, None], out), _like(bucket.members, out)] = part
        return out[:, :n].reshape(self.shape)

    def per_pair(self, buckets: Sequence[Bucket], values: Sequence[Any]) -> Tensor:
        """Results per pair of spins, [P, m, m] of each bucket, as [*batch, n, n]; 0 for invisible spins."""
        parts, n = _tensors(values), self.shape[-1]
        if _in_order(buckets):
            return parts[0].reshape(*self.shape, n)
        out = parts[0].new_zeros(len(self.pattern), n + 1, n + 1)
        for bucket, part in zip(buckets, parts, strict=False):
            rows, members = _like(bucket.rows, out), _like(bucket.members, out)
            out[rows[:, None, None], members[:, :, None], members[:, None]] = part
        return out[:, :n, :n].reshape(*self.shape, n)

    def per_coupling(self, buckets: Sequence[Bucket], shares: Sequence[Array], J: Tensor) -> Tensor:
        """Derivatives by J, [G, m, m] summed over groups or [P, m, m] of each bucket, as float64 in the shape of J."""
        n, count = J.shape[-1], J.shape[:-2].numel()
        if _in_order(buckets) and len(shares[0]) == count:
            return torch.from_numpy(shares[0]).reshape(J.shape)
        out = np.zeros((count, n + 1, n + 1))
        for bucket, share in zip(buckets, shares, strict=True):
            group = slice(None) if len(share) == len(bucket.couplings) else bucket.groups
            spins, owners = bucket.spins[group], bucket.couplings[group]
            np.add.at(out, (owners[:, None, None], spins[:, :, None], spins[:, None]), share)
        return torch.from_numpy(out[:, :n, :n].copy()).reshape(J.shape)

    def reads(self, buckets: Sequence[Bucket], values: Sequence[Array], num_reads: int) -> Tensor:
        """Reads, int8 [R, P, m] of each bucket, as [R, *batch, n]; -1 for invisible spins."""
        if _in_order(buckets):
            return torch.from_numpy(values[0]).reshape(num_reads, *self.shape)
        n = self.shape[-1]
        out = np.full((num_reads, len(self.pattern), n + 1), -1, np.int8)
        for bucket, spins in zip(buckets, values, strict=True):
            out[:, bucket.rows[:, None], bucket.members] = spins
        return torch.from_numpy(out[..., :n].copy()).reshape(num_reads, *self.shape)


def flat(ising: Ising) -> Flat:
    """The problems of a batch; kept for the shapes and masks of recent batches."""
    shape, lead, visible = ising.fields.shape, ising.lead, ising.visible
    if visible is None:
        return _shared(None, None, shape, lead)
    mask = visible.cpu()
    if mask.numel() <= _CACHED_MASK_ELEMENTS:
        # The key is the content: attention masks are small and the same at every step.
        return _shared(mask.numpy().tobytes(), mask.shape, shape, lead)
    return _built(mask.numpy(), shape, lead)


def flat_fields(ising: Ising) -> Tensor:
    """Fields h of the flat batch, [N, n]."""
    return ising.fields.reshape(-1, ising.fields.shape[-1])


def flat_interactions(ising: Ising) -> tuple[Tensor | None, Tensor | None]:
    """The distinct J [C, n, n] and K [C, n, n, n]."""
    J, K, n = ising.couplings, ising.three_body, ising.num_spins
    if J is not None and K is not None:
        lead = ising.lead
        J, K = J.expand(*lead, n, n), K.expand(*lead, n, n, n)
    return None if J is None else J.reshape(-1, n, n), None if K is None else K.reshape(-1, n, n, n)


def in_memory(values: Tensor, dtype: torch.dtype) -> Tensor:
    """A contiguous tensor in this precision, whose numbers stand in memory as they are."""
    if values.dtype == dtype and values.is_contiguous() and not values.is_neg():
        return values
    return values.detach().to(dtype).contiguous().resolve_neg()


@kept(lambda mask, mask_shape, shape, lead: 8 * shape[:-1].numel() * (8 + shape[-1]))
def _shared(mask: bytes | None, mask_shape: torch.Size | None, shape: torch.Size, lead: torch.Size) -> Flat:
    if mask is None or mask_shape is None:
        return _built(np.ones(shape[-1], np.bool_), shape, lead)
    return _built(np.frombuffer(mask, np.bool_).reshape(mask_shape), shape, lead)


def _built(visible: Array, shape: torch.Size, lead: torch.Size) -> Flat:
    n, batch = shape[-1], tuple(shape[:-1])
    visible = np.broadcast_to(visible, (*visible.shape[:-1], n))
    masks, own = _distinct_rows(visible.reshape(-1, n))
    couplings, pattern = (
        np.ascontiguousarray(np.broadcast_to(index, batch)).reshape(-1)
        for index in (np.arange(lead.numel()).reshape(lead), own.reshape(visible.shape[:-1]))
    )
    orders = np.argsort(~masks, axis=1, kind="stable")
    return Flat(shape, couplings, pattern, orders, masks.sum(1))


def _distinct_rows(rows: Array) -> tuple[Array, Integers]:
    """Distinct rows of a bool matrix [N, n], sorted with the first spin as the highest bit; index of each row [N]."""
    if len(rows) == 1:
        return rows, np.zeros(1, np.int64)
    packed = np.ascontiguousarray(np.packbits(rows, axis=1))
    kinds = packed.view(f"V{packed.shape[1]}")[:, 0]
    _, first, index = np.unique(kinds, return_index=True, return_inverse=True)
    return rows[first], index.reshape(-1)


def _partition(groups: list[int], sizes: list[int], problems: int, cost: Cost | None) -> list[list[int]]:
    """Split groups into buckets of least total cost (dynamic programme over the distinct sizes), large sizes first."""
    by_size: dict[int, list[int]] = defaultdict(list)
    for g in groups:
        by_size[sizes[g]].append(g)
    order = sorted(by_size)
    if cost is None:
        return [by_size[size] for size in reversed(order)]
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


def _in_order(buckets: Sequence[Bucket]) -> bool:
    """Whether the results of the only bucket are those of the batch in its order."""
    return len(buckets) == 1 and buckets[0].in_order


def _with_zeros(values: Values, axes: int) -> Values:
    """One zero more at the end of each of the last axes, which padding spins read."""
    if isinstance(values, Tensor):
        return torch.constant_pad_nd(values, (0, 1) * axes)
    out = np.zeros((*values.shape[:-axes], *np.add(values.shape[-axes:], 1)), values.dtype)
    inside: tuple[Any, ...] = (..., *[slice(-1)] * axes)
    out[inside] = values
    return out


def _like(index: Integers, values: Any) -> Any:
    """An index for an array or for a tensor on its device."""
    return torch.from_numpy(index).to(values.device) if isinstance(values, Tensor) else index


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    """Arrays as tensors; without values one without problems."""
    tensors = [value if isinstance(value, Tensor) else torch.from_numpy(value) for value in values]
    return tensors or [torch.empty(0, dtype=torch.float64)]
