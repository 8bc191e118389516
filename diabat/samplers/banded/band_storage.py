"""Conversion of a batch of Ising problems to flat problems with couplings in a band, and back.

A problem whose first L spins are visible, as in a causal window, is a prefix: its couplings are the first rows of a
band that all prefixes share.  Any other pattern of visible spins is compacted: spins move closer together (a band
stays a band), and the pattern gets a separate band.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from diabat.ising import Ising


@dataclass(frozen=True, eq=False)
class Layout:
    """Flat problems, N of them with up to n spins.

    Attributes:
        fields: h of the visible spins in order, then zeros, [N, n]; differentiable.
        bands: J_{t,t-1-d} at [k, t, d], [K, n, w]; differentiable.
        tables: int64 [N], index of each problem's couplings among the K.
        lengths: int64 [N], number of visible spins.
        places: int64 [N, n], spin at each place of the order; None if all problems are prefixes.
        live: True for places with a spin, bool [N, n].
    """

    fields: Tensor
    bands: Tensor
    tables: Tensor
    lengths: Tensor
    places: Tensor | None
    live: Tensor

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
    n, total = ising.num_spins, ising.num_problems
    device = ising.fields.device
    w = max(1, min(width, n - 1))
    lengths, pattern, orders = _patterns(ising)
    J = ising.couplings
    which = ising.coupling_index().to(device)
    if len(orders) == 1:
        keys, tables = torch.arange(ising.num_couplings, device=device), which
    else:
        keys, tables = torch.unique(which * len(orders) + pattern, return_inverse=True)
    if J is None:
        bands = ising.fields.new_zeros(len(keys), n, w)
    else:
        bands = _bands(J.reshape(-1, n, n), keys // len(orders), orders[keys % len(orders)], w, width)
    live = torch.arange(n, device=device) < lengths[:, None]
    places = None if len(orders) == 1 else orders[pattern]
    flat = ising.fields.reshape(total, n)
    ordered = flat if places is None else flat.gather(1, places)
    return Layout(torch.where(live, ordered, 0), bands, tables, lengths, places, live)


def bandwidth_of(couplings: Tensor | None) -> int:
    """Largest |j - k| with J_jk != 0; 0 without couplings."""
    if couplings is None:
        return 0
    used = (couplings != 0).flatten(0, -3).any(0) if couplings.ndim > 2 else couplings != 0
    j, k = used.nonzero(as_tuple=True)
    return int((j - k).abs().max()) if len(j) else 0


def beyond_band(couplings: Tensor, width: int) -> tuple[int, int] | None:
    """First pair j < k with k - j > width and J_jk != 0; None if there is none."""
    n = couplings.shape[-1]
    if width >= n - 1:
        return None
    used = couplings.detach().triu(width + 1) != 0
    used = used.flatten(0, -3).any(0) if used.ndim > 2 else used
    if not bool(used.any()):
        return None
    j, k = used.nonzero()[0].tolist()
    return j, k


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


def _bands(J: Tensor, which: Tensor, orders: Tensor, w: int, width: int) -> Tensor:
    """J_{o(t), o(t-1-d)} through the symmetric part of J, so that the gradient of a symmetric J is symmetric."""
    n = orders.shape[1]
    t = torch.arange(n, device=J.device)
    earlier = t[:, None] - 1 - torch.arange(w, device=J.device)  # [n, w]
    j = orders[:, :, None].expand(-1, -1, w)
    k = orders[:, earlier.clamp(min=0)]
    c = which[:, None, None]
    # Compaction can move spins from outside the band into it: they have no coupling.
    inside = (earlier >= 0) & ((j - k).abs() <= width)
    return torch.where(inside, (J[c, j, k] + J[c, k, j]) / 2, 0)
