"""Couplings of a batch in a band, and the visible spins of each problem in order.

A problem whose first L spins are visible, as in a causal window, is a prefix: its couplings are the first rows of a
band that all prefixes share.  Any other pattern of visible spins is compacted: spins move closer together (a band
stays a band), and the pattern gets a separate band.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from diabat.compute.loading import loaded
from diabat.ising import Ising, pair_indices
from diabat.ising.edges import Edges
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.flat import ZEROS, Flat, Integers, flat, in_memory
from diabat.samplers.kept import kept

_KERNEL = "diabat.samplers.banded.kernel"


class BandProblems(NamedTuple):
    """Problems with couplings to the w previous spins, by place, in float64."""

    fields: Tensor  # h, [Q, n], zero from the length of a problem on
    bands: Tensor  # J_{t,t-1-d} at [k, t, d], [K, n, w] with w >= 1, zero where t-1-d < 0
    tables: Tensor  # table of couplings of each problem, int64 [Q]
    live: Tensor | None  # which places have a spin, bool [Q, n]; None for all


class Blocks(NamedTuple):
    """Problems in blocks of lanes."""

    own: bool  # whether the lanes of a block have different couplings
    members: Integers  # problem of each lane, -1 for an empty one, [blocks, lanes]
    work: Integers  # of each block, [blocks]
    table: Integers  # what kernels read, see `kernel.opened`


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the fields and couplings of N problems with up to n visible spins are.

    Attributes:
        width: Largest distance of coupled spins.
        orders: Spin at each place, visible ones first, int64 [N, n].
        lengths: Number of visible spins of each problem, int64 [N].
        tables: Table of couplings of each problem, int64 [N], on the device of the problems, as those below.
        live: Which places have a spin, bool [N, n]; None for all.
        order: As ``orders``; None if all problems are prefixes.
        place: Place of each spin, likewise.
        numbers: Numbers of the flat J whose mean J_{t,t-1-d} of each table is, int64 [.., K, n, w], -1 for none: J_jk
            and J_kj of a matrix, so that the gradient of a symmetric J is symmetric, or one value of edges.
    """

    width: int
    orders: Integers
    lengths: Integers
    tables: Tensor
    live: Tensor | None
    order: Tensor | None
    place: Tensor | None
    numbers: Tensor
    _blocks: dict[int, Blocks] = field(default_factory=dict, repr=False)

    def blocks(self, lanes: int) -> Blocks:
        """Blocks of problems with similar lengths and, unless lanes have different ones, equal couplings."""
        if lanes not in self._blocks:
            (rows, n), lengths, numbers = self.orders.shape, self.lengths, self.numbers.numpy()
            parts, count, _, width = numbers.shape
            # If a quarter of the lanes share a table, this saves more than idle lanes cost.
            own, tables = 4 * rows < lanes * count, self.tables.numpy()
            key = np.zeros_like(tables) if own else tables
            order, counts = np.lexsort((lengths, key)), np.bincount(key)
            first_block = np.concatenate(([0], np.cumsum(-(-counts // lanes))))
            place = np.arange(rows) - np.repeat(np.cumsum(counts) - counts, counts)
            members = np.full((first_block[-1], lanes), -1, np.int64)
            members[first_block[key[order]] + place // lanes, place % lanes] = order
            work = 1 + np.where(members >= 0, lengths[members], 0).max(1)
            cells, header = self.orders + np.arange(rows)[:, None] * n, (n, width, count, parts, rows, own)
            arrays: tuple[Any, ...] = header, cells, lengths, tables, numbers
            table = np.concatenate([np.ravel(t).astype(np.int64, copy=False) for t in arrays])
            self._blocks[lanes] = Blocks(own, members, work, table)
        return self._blocks[lanes]

    def problems(self, fields: Tensor, J: Tensor | None, rows: Any = slice(None)) -> BandProblems:
        """Some problems with the fields [*batch, n] and J as it is held; differentiable, in float64."""
        order, live = (None if t is None else t[rows] for t in (self.order, self.live))
        h = fields.reshape(-1, fields.shape[-1])[rows].double()
        h = h if order is None else h.gather(1, order)
        h = h if live is None else torch.where(live, h, 0)
        bands = h.new_zeros(self.numbers.shape[1:])
        if J is not None and J.numel():
            bands = torch.where(self.numbers >= 0, J.double().reshape(-1)[self.numbers], 0).mean(0)
        return BandProblems(h, bands, self.tables[rows], live)

    def per_spin(self, values: Tensor, rows: Any = slice(None)) -> Tensor:
        """Values per spin from those by place of some problems, also [..., N, n]; differentiable."""
        return values if self.place is None else values.gather(-1, self.place[rows].expand(values.shape))

    def per_pair(self, values: Tensor, rows: Any = slice(None)) -> Tensor:
        """Values per pair of spins from those by pair of places, symmetric, both [N, n, n]."""
        if self.place is None:
            return values
        index = self.place[rows][:, None].expand(values.shape)
        return values.gather(2, index).mT.gather(2, index)


def band_layout(ising: Ising, width: int, count: int) -> Layout:
    """The layout of a batch with ``count`` different J; couplings at distances above ``width`` are ignored."""
    edges = None if ising.edges is None else np.ascontiguousarray(ising.edges.index.numpy(force=True))
    device = ising.fields.device
    return _layout(flat(ising), count, width, device, None if edges is None else edges.tobytes())


def _bytes(problems: Flat, count: int, width: int, device: torch.device, held: bytes | None) -> int:
    spins, kinds = problems.shape.numel(), count * len(problems.counts)
    return 64 * spins + 48 * kinds * problems.shape[-1] * max(1, width) + len(held or b"")


@kept(_bytes)
def _layout(problems: Flat, count: int, width: int, device: torch.device, held: bytes | None) -> Layout:
    """The layout for ``count`` matrices, or sets of values of edges [E, 2]."""
    n, w = problems.shape[-1], max(1, width)
    numbers: list[Any]
    if held is None:
        edges = np.stack(pair_indices(n, width), 1)
        size, numbers = n * n, [edges @ (n, 1), edges @ (1, n)]
    else:
        edges = np.frombuffer(held, np.int64).reshape(-1, 2)
        size, numbers = len(edges), [np.arange(len(edges))]
    # All prefixes have order 0.
    others = np.flatnonzero((problems.orders != np.arange(n)).any(1))
    orders, of_pattern = (
        np.vstack((np.arange(n), problems.orders[others])),
        np.zeros(len(problems.counts), int),
    )
    of_pattern[others] = np.arange(1, len(orders))
    of_problem = of_pattern[problems.pattern]
    keys, tables = np.unique(problems.couplings * len(orders) + of_problem, return_inverse=True)
    one, other = orders.argsort(1)[:, edges.T].swapaxes(0, 1)  # places of the spins of each pair, [orders, E]
    last, behind = np.maximum(one, other), np.abs(one - other)
    # Invisible spins move apart, and may leave the band.
    of_order, pair = np.nonzero((behind <= w) & (np.abs(edges[:, 0] - edges[:, 1]) <= width))
    at = np.full((len(numbers), len(orders), n, w), -1)
    at[:, of_order, last[of_order, pair], behind[of_order, pair] - 1] = np.stack(numbers)[:, pair]
    table, kind = np.divmod(keys, len(orders))
    at = np.where(at[:, kind] < 0, -1, at[:, kind] + (table * size)[:, None, None])
    spins, lengths = orders[of_problem], problems.num_visible
    live = None if (lengths == n).all() else np.arange(n) < lengths[:, None]
    order, place = (spins, spins.argsort(1)) if len(others) else (None, None)
    given: tuple[Any, ...] = tables, live, order, place, at
    found: list[Any] = [None if one is None else torch.from_numpy(one).to(device) for one in given]
    return Layout(width, spins, lengths, *found)


def band_width(ising: Ising, bandwidth: int | None, learned: bool) -> int:
    """The given bandwidth, or the largest distance of two coupled spins.

    Couplings that are ``learned``, or differentiated by autograd, count as coupled even if they are 0: the edges, or
    all pairs of a matrix.

    Raises:
        UnsupportedError: If there is a coupling outside a given bandwidth.
    """
    n, J = ising.num_spins, ising.held_couplings
    if J is None or (bandwidth is not None and bandwidth >= n - 1):
        return min(bandwidth or 0, n - 1)
    edges, values = (J, J.values) if isinstance(J, Edges) else (None, J)
    if bandwidth is None and (learned or (values.requires_grad and torch.is_grad_enabled())):
        return n - 1 if edges is None else edges.bandwidth
    if edges is None and values.is_cpu:
        held, count = in_memory(values, values.dtype), values.shape[:-2].numel()
        found: int = loaded(_KERNEL).reach(ZEROS[held.dtype], held.data_ptr(), count, n, bandwidth or 0)
        if bandwidth is None or found <= bandwidth:
            return found
    used = values.detach() != 0
    if edges is not None:
        pairs = edges.index[used.reshape(edges.lead.numel(), edges.count).any(0)]
    else:
        pairs = (used.flatten(0, -3).any(0) if used.ndim > 2 else used).nonzero()
    distance = pairs.diff().abs()[:, 0]
    if bandwidth is None:
        return int(distance.max()) if len(pairs) else 0
    far = pairs[distance > bandwidth]
    if len(far):
        far = far.sort(1).values
        j, k = far[(far[:, 0] * n + far[:, 1]).argmin()].tolist()
        raise UnsupportedError(
            "couplings",
            f"sampler 'banded' expects J_jk = 0 for |j - k| > bandwidth = {bandwidth}, "
            f"got a coupling of spins {j} and {k}.",
        )
    return bandwidth
