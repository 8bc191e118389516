"""Conversion of a batch of Ising problems to flat problems with couplings in a band, and back.

A problem whose first L spins are visible, as in a causal window, is a prefix: its couplings are the first rows of a
band that all prefixes share.  Any other pattern of visible spins is compacted: spins move closer together (a band
stays a band), and the pattern gets a separate band.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from diabat.edges import Edges, no_edges
from diabat.ising import Ising, flat_index, pair_indices
from diabat.samplers.banded.native import BandProblems
from diabat.samplers.capabilities import UnsupportedError


@dataclass(frozen=True, eq=False)
class Layout:
    """Flat problems, N of them with up to n spins."""

    problems: BandProblems  # the visible spins in order, as tensors; fields and bands are differentiable
    places: Tensor | None  # int64 [N, n], spin at each place of the order; None if all problems are prefixes
    live: Tensor  # True for places with a spin, bool [N, n]

    def per_spin(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """Convert values by place [..., N, n] to values per spin, ``fill`` for invisible ones; differentiable."""
        kept = values.masked_fill(~self.live, fill)
        if self.places is None:
            return kept
        return torch.full_like(kept, fill).scatter(-1, self.places.expand(kept.shape), kept)

    def per_pair(self, values: Tensor) -> Tensor:
        """Convert values by pair of places [N, n, n] to values per pair of spins, 0 for invisible ones."""
        if self.places is None:
            return values
        rows = self.places[:, :, None].expand_as(values)
        moved = torch.zeros_like(values).scatter(1, rows, values)
        return torch.zeros_like(values).scatter(2, rows.mT, moved)


def band_layout(ising: Ising, width: int) -> Layout:
    """Lay out a batch with bandwidth ``width``; couplings outside the band are ignored."""
    n, w, device = ising.num_spins, max(1, width), ising.fields.device
    edges = _edges_within(ising, width)
    lengths, pattern, orders = _patterns(ising)
    tables = flat_index(edges.lead, ising.batch_shape).to(device)
    keys = torch.arange(edges.lead.numel(), device=device)
    if len(orders) > 1:
        keys, tables = torch.unique(tables * len(orders) + pattern, return_inverse=True)
    at, values = edges.index.T, edges.values.reshape(edges.lead.numel(), edges.count)
    if len(orders) > 1:
        at, values = orders.argsort(1)[keys % len(orders)].T[at].mT, values[keys // len(orders)]
    j, k = at  # places of the spins, [E] or [K, E]
    behind = (j - k).abs()
    # Invisible spins move apart, and may leave the band; nothing is before the first spin: J is 0 at [0, 0].
    inside = behind <= w
    flat = torch.where(inside, torch.maximum(j, k) * w + behind - 1, 0).expand_as(values)
    bands = values.new_zeros(len(keys), n * w).scatter(1, flat, torch.where(inside, values, 0))
    live = torch.arange(n, device=device) < lengths[:, None]
    places = None if len(orders) == 1 else orders[pattern]
    h = ising.fields.reshape(-1, n)
    ordered = h if places is None else h.gather(1, places)
    fields = torch.where(live, ordered, 0)
    return Layout(BandProblems(fields, bands.reshape(-1, n, w), tables, lengths), places, live)


def band_width(ising: Ising, bandwidth: int | None) -> int:
    """The given bandwidth, or the largest distance of two coupled spins.

    Couplings that are differentiated count as coupled even if they are 0: the edges, or all pairs of a matrix.

    Raises:
        UnsupportedError: If there is a coupling outside a given bandwidth.
    """
    n, J = ising.num_spins, ising.held_couplings
    if J is None or (bandwidth is not None and bandwidth >= n - 1):
        return min(bandwidth or 0, n - 1)
    if bandwidth is None and torch.is_grad_enabled() and _values(J).requires_grad:
        return J.bandwidth if isinstance(J, Edges) else n - 1
    coupled = _coupled(J)
    if bandwidth is None:
        return int(_distance(coupled).max()) if len(coupled) else 0
    far = coupled[_distance(coupled) > bandwidth].sort(1).values
    if len(far):
        j, k = far[(far[:, 0] * n + far[:, 1]).argmin()].tolist()
        raise UnsupportedError(
            "couplings",
            f"sampler 'banded' expects J_jk = 0 for |j - k| > bandwidth = {bandwidth}, "
            f"got a coupling of spins {j} and {k}.",
        )
    return bandwidth


def _edges_within(ising: Ising, width: int) -> Edges:
    """The couplings at distances of at most ``width``, as edges."""
    J = ising.held_couplings
    if J is None:
        return no_edges(ising.fields)
    if isinstance(J, Edges):
        near = _distance(J.index) <= width
        return J if bool(near.all()) else Edges(J.index[near], J.values[..., near])
    index, both = _pairs(ising.num_spins, width, J.device)
    # The mean of both entries, so that the gradient of a symmetric J is symmetric.
    upper, lower = J[..., both[:, 0], both[:, 1]].chunk(2, -1)
    return Edges(index, (upper + lower) / 2)


@lru_cache(maxsize=8)
def _pairs(n: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pairs j < k in the band, [E, 2], and the same in both orders, [2E, 2]."""
    index = torch.stack(pair_indices(n, width, device), 1)
    return index, torch.cat((index, index.flip(1)))


def _values(J: Tensor | Edges) -> Tensor:
    return J.values if isinstance(J, Edges) else J


def _coupled(J: Tensor | Edges) -> Tensor:
    """Pairs of spins with J_jk != 0 for any of the leading dimensions, int64 [E, 2]."""
    if isinstance(J, Edges):
        return J.index[(J.values.detach() != 0).reshape(J.lead.numel(), J.count).any(0)]
    return (J.detach().flatten(0, -3).any(0) if J.ndim > 2 else J.detach()).nonzero()


def _distance(pairs: Tensor) -> Tensor:
    return (pairs[:, 0] - pairs[:, 1]).abs()


def _patterns(ising: Ising) -> tuple[Tensor, Tensor, Tensor]:
    """Visible spins of each problem [N], its pattern [N], and the order of the spins of each pattern [P, n].

    All prefixes have pattern 0.
    """
    n, device = ising.num_spins, ising.fields.device
    identity = torch.arange(n, device=device)[None]
    batch = ising.batch_shape
    if ising.visible is None:
        lengths = torch.full((ising.num_problems,), n, device=device)
        return lengths, torch.zeros_like(lengths), identity
    visible = ising.visible.expand(*ising.visible.shape[:-1], n)
    lengths = visible.sum(-1)
    other = (visible != (identity[0] < lengths[..., None])).any(-1)
    pattern = torch.zeros_like(lengths)
    orders = identity
    if bool(other.any()):
        masks, inverse = torch.unique(visible[other], dim=0, return_inverse=True)
        pattern[other] = inverse + 1
        # Visible spins first, in order.
        orders = torch.cat((identity, torch.argsort((~masks).to(torch.uint8), dim=1, stable=True)))
    flat = [t.expand(batch).reshape(-1) for t in (lengths, pattern)]
    return flat[0], flat[1], orders
