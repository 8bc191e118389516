"""Grouping of a batch into problems that share couplings and visible spins.

An attention batch has few distinct J (one per head) and few visibility patterns (one per position), but many
problems.  Backends solve each group at once.  Groups of similar size are padded to a common number of spins
with *phantom* spins: no field, no coupling, hence independent of all others and harmless; each multiplies the
partition function by 2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.ising import Ising, broadcast_shape

_CACHED_MASK_ELEMENTS = 1 << 16

Cost = Callable[[int, int, int], float]
"""Cost of a tier as a function of (groups, problems per group, spins)."""


def enumeration_cost(groups: int, problems: int, spins: int) -> float:
    """Multiply-adds of exact enumeration, plus a constant for launching one tier's kernels."""
    return 8e6 + groups * 2.0**spins * (2 * problems + 16)


def unpadded_cost(groups: int, problems: int, spins: int) -> float:
    """Cost that gives every number of spins a tier of its own (engines whose work is not padded away)."""
    return groups * 2.0 ** (2 * spins)


@dataclass(frozen=True, eq=False)
class Tier:
    """Groups padded to m spins and Q problems, as indices into the flat batch of N problems.

    The last slot of every flat array (index N·n, N, C·n²) is a dump: padding reads zero from it and writes to
    it, so that one index tensor both gathers and scatters.

    Attributes:
        problems: int64 [G, Q], row of each problem in the batch, N on padding.
        spins: int64 [G, m], spin of the problem, n on phantom spins.
        coupling: int64 [G], index into the C distinct couplings.
        cells: int64 [G, Q, m], index into the flat fields [N·n + 1].
        phantoms: int64 [G], number of phantom spins.
        pair_cells: int64 [G, m, m], index into the flat couplings [C·n² + 1].
        whole: The batch as it is, nothing padded or moved: a reshape gathers and scatters.
    """

    problems: Tensor
    spins: Tensor
    coupling: Tensor
    cells: Tensor
    phantoms: Tensor
    pair_cells: Tensor
    whole: bool


@dataclass(frozen=True, eq=False)
class Group:
    """One tier gathered: all that a kernel needs, which knows neither visibility nor broadcasting.

    Attributes:
        tier: Where the rows came from.
        fields: [G, Q, m].
        couplings: [G, m, m] or None.
        three_body: [G, m, m, m] or None.
    """

    tier: Tier
    fields: Tensor
    couplings: Tensor | None
    three_body: Tensor | None


def grouped(ising: Ising, cost: Cost = enumeration_cost) -> list[Group]:
    """Split a batch into tiers and gather h, J and K; differentiable in all three."""
    n, lead = ising.num_spins, common_lead(ising)
    found = tiers(ising, cost)
    terms = ((ising.couplings, 2), (ising.three_body, 3))
    J, K = (None if t is None else t.expand(*lead, *t.shape[-order:]) for t, order in terms)
    if len(found) == 1 and found[0].whole:
        return [_whole(found[0], ising.fields, J, K)]
    fields = _with_dump(ising.fields.reshape(-1))
    J, K = (None if t is None else _with_dump(t.reshape(-1)) for t in (J, K))
    return [
        Group(
            tier,
            fields[tier.cells],
            None if J is None else J[tier.pair_cells],
            None if K is None else K[_interaction_cells(tier.spins, tier.coupling, n, 3, K.numel() - 1)],
        )
        for tier in found
    ]


def _whole(tier: Tier, fields: Tensor, J: Tensor | None, K: Tensor | None) -> Group:
    """The batch as one group, copied, so that it aliases no more than a gathered one."""
    groups, queries, m = tier.cells.shape

    def copied(t: Tensor | None, order: int) -> Tensor | None:
        return None if t is None else t.reshape(groups, *(m,) * order).clone()

    return Group(tier, fields.reshape(groups, queries, m).clone(), copied(J, 2), copied(K, 3))


def tiers(ising: Ising, cost: Cost = enumeration_cost) -> tuple[Tier, ...]:
    """Tiers of a batch.  Problems without a visible spin are in none of them."""
    lead, device = common_lead(ising), ising.fields.device
    shape = tuple(ising.fields.shape)
    if ising.visible is None:
        return _cached_tiers(None, (), shape, lead, cost, device)
    visible = ising.visible.cpu()
    if visible.numel() > _CACHED_MASK_ELEMENTS:
        return _build_tiers(visible, shape, lead, cost, device)
    # The cache is keyed by content: masks of attention are small and the same at every step.
    return _cached_tiers(visible.numpy().tobytes(), tuple(visible.shape), shape, lead, cost, device)


def scatter(parts: Iterable[tuple[Tier, Tensor]], ising: Ising, fill: float = 0.0) -> Tensor:
    """Assemble per-spin results [G, Q, m] of all tiers into [*batch, n]; differentiable."""
    found = list(parts)
    if found and found[0][0].whole:
        return found[0][1].reshape(ising.fields.shape).clone()
    return _assemble([(t.cells, v) for t, v in found], ising.fields.shape, fill)


def scatter_problems(parts: Iterable[tuple[Tier, Tensor]], ising: Ising, fill: float = 0.0) -> Tensor:
    """Assemble per-problem results [G, Q] of all tiers into [*batch]; differentiable."""
    found = list(parts)
    if found and found[0][0].whole:
        return found[0][1].reshape(ising.batch_shape).clone()
    return _assemble([(t.problems, v) for t, v in found], ising.batch_shape, fill)


def scatter_pairs(parts: Iterable[tuple[Tier, Tensor]], ising: Ising) -> Tensor:
    """Assemble pair results [G, Q, m, m] of all tiers into [*batch, n, n], zero for invisible spins."""
    n = ising.num_spins
    shape = torch.Size((*ising.batch_shape, n, n))
    dump = shape.numel()
    indexed = []
    for tier, values in parts:
        a, b = tier.spins[:, None, :, None], tier.spins[:, None, None, :]
        cells = (tier.problems[:, :, None, None] * n + a) * n + b
        valid = (tier.problems < ising.num_problems)[:, :, None, None] & (a < n) & (b < n)
        indexed.append((torch.where(valid, cells, dump), values))
    return _assemble(indexed, shape, 0.0)


def _assemble(pairs: list[tuple[Tensor, Tensor]], shape: torch.Size, fill: float) -> Tensor:
    size = shape.numel()
    if not pairs:
        raise ArgumentError("parts", "expected at least one tier, got none.")
    index = torch.cat([i.reshape(-1) for i, _ in pairs])
    values = torch.cat([v.reshape(-1) for _, v in pairs])
    return (
        torch.full((size + 1,), fill, dtype=values.dtype, device=values.device)
        .scatter(0, index, values)[:size]
        .reshape(shape)
    )


def _with_dump(flat: Tensor) -> Tensor:
    return torch.cat((flat, flat.new_zeros(1)))


def _interaction_cells(spins: Tensor, coupling: Tensor, n: int, order: int, dump: int) -> Tensor:
    """Flat index [G, m, ..., m] of every interaction of each group, ``dump`` where a phantom takes part."""
    groups, m = spins.shape
    cells = coupling.reshape(groups, *(1,) * order)
    valid = torch.ones_like(cells, dtype=torch.bool)
    for axis in range(order):
        along = spins.reshape(groups, *(m if a == axis else 1 for a in range(order)))
        cells = cells * n + along
        valid = valid & (along < n)
    return torch.where(valid, cells, dump)


def common_lead(ising: Ising) -> torch.Size:
    """Leading shape shared by J and K, padded with ones to the batch's number of dimensions."""
    J, K = ising.couplings, ising.three_body
    lead: torch.Size | None = torch.Size(()) if J is None else J.shape[:-2]
    if K is not None:
        lead = K.shape[:-3] if J is None else broadcast_shape(J.shape[:-2], K.shape[:-3])
    assert lead is not None  # a problem whose terms do not fit together was refused
    return torch.Size((1,) * (len(ising.batch_shape) - len(lead)) + tuple(lead))


@lru_cache(maxsize=64)
def _cached_tiers(
    mask: bytes | None,
    mask_shape: tuple[int, ...],
    shape: tuple[int, ...],
    lead: torch.Size,
    cost: Cost,
    device: torch.device,
) -> tuple[Tier, ...]:
    if mask is None:
        visible = torch.ones(shape[-1], dtype=torch.bool)
    else:
        visible = torch.frombuffer(bytearray(mask), dtype=torch.bool).reshape(mask_shape)
    return _build_tiers(visible, shape, lead, cost, device)


def _build_tiers(
    visible: Tensor, shape: tuple[int, ...], lead: torch.Size, cost: Cost, device: torch.device
) -> tuple[Tier, ...]:
    n, batch = shape[-1], shape[:-1]
    patterns, inverse = torch.unique(
        visible.expand(*visible.shape[:-1], n).reshape(-1, n), dim=0, return_inverse=True
    )
    pattern = inverse.reshape(visible.shape[:-1]).expand(batch).reshape(-1)
    coupling = torch.arange(lead.numel()).reshape(lead).expand(batch).reshape(-1)
    keys, group, counts = torch.unique(
        coupling * len(patterns) + pattern, return_inverse=True, return_counts=True
    )
    members = torch.argsort(group, stable=True).split(counts.tolist())
    sizes = patterns.sum(1)[keys % len(patterns)].tolist()
    buckets: dict[int, list[int]] = defaultdict(list)
    for g, (size, count) in enumerate(zip(sizes, counts.tolist(), strict=True)):
        if size:
            # Groups of very different numbers of problems do not share a tier: padding would dominate.
            buckets[(count - 1).bit_length()].append(g)
    built = []
    for bucket in buckets.values():
        for part in _partition(bucket, sizes, max(len(members[g]) for g in bucket), cost):
            visible_spins = [patterns[keys[g] % len(patterns)].nonzero()[:, 0] for g in part]
            rows = [members[g] for g in part]
            distinct = lead.numel()
            which = keys[part] // len(patterns)
            built.append(_make_tier(rows, visible_spins, which, (len(group), distinct, n), device))
    return tuple(built)


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


def _make_tier(
    rows: list[Tensor],
    spins: list[Tensor],
    coupling: Tensor,
    sizes: tuple[int, int, int],
    device: torch.device,
) -> Tier:
    """Pad one tier; ``sizes`` are the numbers of problems, distinct couplings and spins of the whole batch."""
    total, distinct, n = sizes

    def pad(parts: list[Tensor], value: int) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=value)

    problems, padded = pad(rows, total), pad(spins, n)
    cells = problems[:, :, None] * n + padded[:, None, :]
    valid = (problems < total)[:, :, None] & (padded < n)[:, None, :]
    cells = torch.where(valid, cells, total * n)
    phantoms = (padded == n).sum(1)
    pair_cells = _interaction_cells(padded, coupling, n, 2, distinct * n * n)
    # Every cell in its place: as many cells as fields, hence neither padding nor an invisible spin.
    whole = all(
        torch.equal(index.reshape(-1), torch.arange(size))
        for index, size in ((cells, total * n), (pair_cells, distinct * n * n))
    )
    return Tier(
        problems=problems.to(device),
        spins=padded.to(device),
        coupling=coupling.to(device),
        cells=cells.to(device),
        phantoms=phantoms.to(device),
        pair_cells=pair_cells.to(device),
        whole=whole,
    )
