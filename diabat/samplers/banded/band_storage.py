"""Couplings of a batch in a band, and the visible spins of each problem in order.

A problem whose first L spins are visible, as in a causal window, is a prefix: its couplings are the first rows of a
band that all prefixes share.  Any other pattern of visible spins is compacted: spins move closer together (a band
stays a band), and the pattern gets a separate band.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diabat.ising import Ising, pair_indices
from diabat.ising.edges import Edges
from diabat.samplers.banded.native import BandProblems, Rows
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.flat import Flat, Integers, flat, flat_fields
from diabat.samplers.kept import kept


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the fields and couplings of N problems with up to n visible spins are; tensors are on their device.

    Attributes:
        width: Largest distance of coupled spins.
        rows: Table of couplings and number of visible spins of each problem.
        live: Which places have a spin, bool [N, n]; None for all.
        order: Spin at each place, visible ones first, int64 [N, n]; None if all problems are prefixes.
        place: Place of each spin, likewise.
        inside: Whether there is a coupling J_{t,t-1-d} in each table, bool [K, n, w].
        numbers: Numbers of the flat J whose mean it is, int64 [K, n, w]: J_jk and J_kj of a matrix, so that the
            gradient of a symmetric J is symmetric, or one value of edges.
    """

    width: int
    rows: Rows
    live: Tensor | None
    order: Tensor | None
    place: Tensor | None
    inside: Tensor
    numbers: tuple[Tensor, ...]

    def problems(self, ising: Ising) -> BandProblems:
        """The fields of visible spins in order, zero behind them, and couplings in the band; differentiable."""
        h, (_, J, _) = self.by_place(flat_fields(ising)), ising.terms
        if self.live is not None:
            h = torch.where(self.live, h, 0)
        if J is None or not J.numel():
            return BandProblems(h, h.new_zeros(self.inside.shape), self.rows)
        flat_J, (first, *others) = J.reshape(-1), self.numbers
        bands = flat_J[first]
        for index in others:
            bands = bands + flat_J[index]
        return BandProblems(h, bands * self.inside / len(self.numbers), self.rows)

    def of_couplings(self, gradient: Tensor, J: Tensor) -> Tensor:
        """The derivative by J as it is held, from that by the bands [K, n, w]."""
        out, share = gradient.new_zeros(J.numel()), gradient * self.inside / len(self.numbers)
        for index in self.numbers if len(out) else ():
            out.index_put_((index,), share, accumulate=True)
        return out.reshape(J.shape)

    def by_place(self, values: Tensor) -> Tensor:
        """Values by place from those per spin of the batch, both [N, n]."""
        return values if self.order is None else values.gather(1, self.order)

    def per_spin(self, values: Tensor) -> Tensor:
        """The inverse, also for [..., N, n]; differentiable."""
        return values if self.place is None else values.gather(-1, self.place.expand(values.shape))

    def per_pair(self, values: Tensor) -> Tensor:
        """Values per pair of spins from those by pair of places, symmetric, both [N, n, n]."""
        if self.place is None:
            return values
        index = self.place[:, None].expand(values.shape)
        return values.gather(2, index).mT.gather(2, index)


def band_layout(ising: Ising, width: int, count: int) -> Layout:
    """The layout of a batch with ``count`` different J; couplings at distances above ``width`` are ignored."""
    edges = None if ising.edges is None else np.ascontiguousarray(ising.edges.index.numpy(force=True))
    device = ising.fields.device
    return _shared(flat(ising), count, width, device, None if edges is None else edges.tobytes())


def _bytes(problems: Flat, count: int, width: int, device: torch.device, edges: bytes | None) -> int:
    spins, kinds = problems.shape.numel(), count * len(problems.counts)
    return 40 * spins + 17 * kinds * problems.shape[-1] * max(1, width) + len(edges or b"")


@kept(_bytes)
def _shared(problems: Flat, count: int, width: int, device: torch.device, edges: bytes | None) -> Layout:
    index = None if edges is None else np.frombuffer(edges, np.int64).reshape(-1, 2)
    return _layout(problems, count, width, device, index)


def _layout(problems: Flat, count: int, width: int, device: torch.device, edges: Integers | None) -> Layout:
    """The layout for ``count`` matrices, or sets of values of edges [E, 2]."""
    n, w = problems.shape[-1], max(1, width)
    if edges is None:
        edges = np.stack(pair_indices(n, width), 1)
        size, numbers = n * n, [edges @ (n, 1), edges @ (1, n)]
    else:
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
    slots, inside = (
        (of_order, last[of_order, pair], behind[of_order, pair] - 1),
        np.zeros((len(orders), n, w), bool),
    )
    inside[slots] = True
    table, kind = np.divmod(keys, len(orders))
    index = []
    for number in numbers:
        at = np.zeros(inside.shape, np.int64)
        at[slots] = number[pair]
        index.append(at[kind] + (table * size)[:, None, None])
    rows = Rows(tables, problems.num_visible, len(keys), n)
    moved = orders[of_problem] if len(orders) > 1 else None
    given = rows.live, moved, None if moved is None else moved.argsort(1), inside[kind], *index
    found: list[Any] = [None if one is None else torch.from_numpy(one).to(device) for one in given]
    live, order, place, mask, *places = found
    return Layout(width, rows, live, order, place, mask, tuple(places))


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
    values = J.values if isinstance(J, Edges) else J
    if bandwidth is None and (learned or (torch.is_grad_enabled() and values.requires_grad)):
        return J.bandwidth if isinstance(J, Edges) else n - 1
    values = values.detach()
    if isinstance(J, Edges):
        pairs = J.index[(values != 0).reshape(J.lead.numel(), J.count).any(0)]
    else:
        pairs = (values.flatten(0, -3).any(0) if values.ndim > 2 else values).nonzero()
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
