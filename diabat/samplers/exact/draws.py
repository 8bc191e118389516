"""Independent draws from exact probabilities: from one sum over all states, or half of the spins given the others."""

from __future__ import annotations

import torch
from torch import Tensor

from diabat.samplers.exact.batches import Groups
from diabat.samplers.exact.halves import LEAST, halves
from diabat.samplers.exact.operators import all_states, prepared, problems_within
from diabat.samplers.exact.parts import energies, part

MOST_ENUMERATED = 18
"""Up to so many spins reads come from the sum over all states of a problem."""
_CACHED_BYTES = 1 << 24  # of the states of some problems, which stay in a cache


def draw(groups: Groups, uniforms: Tensor, budget: int) -> Tensor:
    """Reads of groups of problems, int8 ±1 [G, Q, reads, m].

    Args:
        groups: The problems, m spins each.
        uniforms: Numbers in [0, 1), float64 [2, G, Q, reads]; the second half of them for more than 18 spins only.
        budget: Bytes of working memory.
    """
    m = groups.fields.shape[-1]
    if m > MOST_ENUMERATED:
        by_halves = _draw_by_halves(groups, uniforms, budget)
        if by_halves is not None:
            return _spins_of(by_halves, m)
    out = torch.empty(uniforms.shape[1:], dtype=torch.int64, device=uniforms.device)
    for row in groups.pieces(problems_within(min(budget, _CACHED_BYTES), m)):
        for at in row:
            out[at] = inverse_transform(all_states(groups.some(*at)), uniforms[0][at])
    return _spins_of(out, m)


def _draw_by_halves(groups: Groups, uniforms: Tensor, budget: int) -> Tensor | None:
    """The right part from its marginal, and the left part given it, as indices of states; None beyond the range."""
    h, e = prepared(groups, torch.float64).fields, energies(groups, groups.fields.shape[-1] // 2)
    (number, queries, reads), (a, b) = uniforms.shape[1:], e.spins
    t, like = halves(h, e, torch.float64), h.device
    weights = t.U * t.C
    if not bool((weights.sum(-1) >= LEAST[torch.float64]).all()):
        return None
    right = inverse_transform(weights, uniforms[0])
    base = (h[..., :a] @ part(a, like).signs.T + e.left[:, None])[:, :, None]  # [G, Q, 1, 2^a]
    left = torch.empty_like(right)
    F_L, F_R = part(a, like).features(e.three_body), part(b, like).features(e.three_body)
    step = max(1, budget // (8 * number * queries * base.shape[-1]))
    for start in range(0, reads, step):
        some = slice(start, start + step)
        coupling = F_R[right[..., some]] @ e.cross.mT[:, None]  # [G, Q, r, f_L]
        weights = torch.softmax(base + coupling @ F_L.T, dim=-1)
        left[..., some] = inverse_transform(weights, uniforms[1, ..., some, None])[..., 0]
    return left + (right << a)


def inverse_transform(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Index of the state at which the cumulative weight [..., states] passes uniform·total, for uniforms [..., k]."""
    cumulative = weights.cumsum(-1)
    targets = (uniforms * cumulative[..., -1:]).contiguous()
    return torch.searchsorted(cumulative, targets, right=True).clamp_(max=weights.shape[-1] - 1)


def _spins_of(states: Tensor, m: int) -> Tensor:
    """Spins of states by their index, bit j for spin j."""
    bits = states[..., None] >> torch.arange(m, device=states.device) & 1
    return bits.to(torch.int8).mul_(2).sub_(1)
