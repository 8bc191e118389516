"""Exact enumeration by operations that autograd can differentiate again and again (kernel).

The sums of :mod:`diabat.samplers.exact.half_split` in float64, with all of W in memory.  Its compiled pass and
analytic backward support one derivative; this file provides second derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from diabat.compute.memory import require_memory
from diabat.samplers.exact.half_energies import HalfEnergies, half_tables, own_weights, without

# W, its exponent, and their cotangents of first and second order.
_COPIES = 8
# Second derivatives divide by Z³.
_MIN_Z = 1e-90


def smooth_probabilities(fields: Tensor, e: HalfEnergies) -> tuple[Tensor, Tensor]:
    """P(s_j = +1) [G, Q, m] and log Z [G, Q] in float64, of fields [G, Q, m].

    Raises:
        ValueError: If W and its first and second derivatives do not fit in memory.
    """
    h = fields.double()
    p, log_z, total = _sums(h, e)
    lost = ~(total >= _MIN_Z)
    if not bool(lost.any()):
        return p, log_z
    # As for the first derivative: lost queries are solved with separate weights.
    p, log_z, _ = _sums(*without(h, e, lost))
    group, query = lost.nonzero(as_tuple=True)
    part = (group, query)
    own, own_z, _ = _sums(*own_weights(h, e, part))
    return p.index_put(part, own[:, 0]), log_z.index_put(part, own_z[:, 0])


def smooth_log_odds(fields: Tensor, e: HalfEnergies) -> tuple[Tensor, Tensor]:
    """Log P(s_j = +1) - log P(s_j = -1) [G, Q, m] and log Z [G, Q], likewise.

    P(s_j = -1) is P(s_j = +1) of the problem with all spins flipped.
    """
    p, log_z = smooth_probabilities(fields, e)
    return p.log() - smooth_probabilities(-fields, e)[0].log(), log_z


def smooth_gradient(
    terms: Sequence[Tensor | None],
    solve: Callable[..., tuple[Tensor, Tensor]],
    wanted: Sequence[bool],
    v: Tensor,
    u: Tensor,
) -> list[Tensor | None]:
    """Gradient of Σ v P + Σ u log Z by differentiable operations.

    Args:
        terms: The tensors that P and log Z depend on.
        solve: Computes P and log Z from the terms.
        wanted: For each term, whether its gradient is requested.
        v: Cotangent of P.
        u: Cotangent of log Z.
    """
    # Separate leaves: v may also depend on the terms, but is held fixed here.
    terms = [None if t is None else t.view_as(t) for t in terms]
    p, log_z = solve(*terms)
    asked = [t is not None and want for t, want in zip(terms, wanted, strict=False)]
    chosen = [t for t, ask in zip(terms, asked, strict=True) if t is not None and ask]
    loss = (p * v).sum() + (log_z * u).sum()
    found = iter(torch.autograd.grad(loss, chosen, create_graph=True, materialize_grads=True))
    return [next(found) if ask else None for ask in asked]


def _sums(h: Tensor, e: HalfEnergies) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities, log Z and scaled Z."""
    groups, queries, m = h.shape
    a = m // 2
    needed = 8 * _COPIES * groups * (2**m + 2 * queries * 2 ** (m - a))
    require_memory(needed, f"second derivatives of {groups} x {queries} problems of {m} spins")
    L, R = half_tables(a, h.device), half_tables(m - a, h.device)
    cut = L.features(e.three_body) @ e.cross @ R.features(e.three_body).T
    W, row_scale = _scaled(e.left[..., None] + e.right[:, None] + cut)
    A, left_scale = _scaled(h[..., :a] @ L.signs.T + row_scale[:, None])
    C, right_scale = _scaled(h[..., a:] @ R.signs.T)
    left = (A * (C @ W.mT)) @ L.bits_and_one
    right = ((A @ W) * C) @ R.bits_and_one
    total = right[..., -1]
    p = torch.cat((left[..., :-1] / left[..., -1:], right[..., :-1] / right[..., -1:]), -1)
    return p, total.log() + left_scale + right_scale, total.detach()


def _scaled(exponent: Tensor) -> tuple[Tensor, Tensor]:
    """exp(exponent - scale) and the scale of each row, its largest exponent, which cancels from every derivative."""
    scale = exponent.detach().amax(-1)
    return (exponent - scale[..., None]).exp(), scale
