r"""Attention over chains by operators: on any device, in graphs and transforms, of any order of derivative.

The law is that of :mod:`diabat.attention.chain`.  Queries are taken in blocks, forward and backward, so that memory is
a block times the keys; only weights that are asked for are a matrix of all queries and keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from diabat.attention.head_axis import head_products, repeated
from diabat.attention.readout import masked_softmax, normalised_weights, odds_fields
from diabat.attention.recomputed import recomputed
from diabat.attention.streaming import dropout_factors
from diabat.attention.visible import Visible
from diabat.compute.memory import require_memory
from diabat.samplers.folding import is_traced

FIELDS = {torch.float32: (-80.0, 42.0), torch.float64: (-450.0, 340.0)}
"""Smallest and largest h that change a result, where |J| is that of the first form of the kernel.

exp(2h) must meet all messages within the range of the type.
"""
LARGEST = 1e29
"""Scores beyond it, and infinite ones, count as this large."""
_NUMBERS, _NUMBERS_ELSEWHERE = 1 << 20, 1 << 24
"""Scores of a block, on the CPU and on other devices."""
_FORWARD, _BACKWARD = 12, 40
"""Copies of the fields that `log_odds` needs at once, without and with derivatives."""


class ChainLaw(NamedTuple):
    """How queries attend to a chain of keys.

    Attributes:
        readout: Weights are ``odds`` or ``probability``.
        scale: Factor of q·k.
        causal: Queries, the last Q of S keys, do not see the keys after them.
        dropout: Probability of dropout of the weights.
    """

    readout: str
    scale: float
    causal: bool
    dropout: float = 0.0


def log_odds(fields: Tensor, couplings: Tensor) -> Tensor:
    """Compute log P(s_j = +1) - log P(s_j = -1) by products of matrices, on any device, of any order of derivative.

    Args:
        fields: h, [*, n].
        couplings: J_{j,j+1}, broadcastable to [*, n - 1].

    Raises:
        ArgumentError: What the products need, O(n), does not fit in memory.
    """
    if fields.device.type == "cpu" and not torch.compiler.is_compiling():
        derivatives = torch.is_grad_enabled() and (fields.requires_grad or couplings.requires_grad)
        what = f"operators for weights {list(fields.shape)} of chains, which the kernel does without,"
        require_memory((_BACKWARD if derivatives else _FORWARD) * fields.nbytes, what, "weights")
    couplings = couplings.expand(*fields.shape[:-1], -1)
    left = _messages(2 * fields, couplings)
    right = _messages(2 * fields.flip(-1), couplings.flip(-1)).flip(-1)
    return 2 * fields + left + right


def _messages(y: Tensor, couplings: Tensor) -> Tensor:
    """Log m_j of all messages from the left, of local log-odds y; [*, n]."""
    # The logarithms of 2 x 2 matrices: spin j and edge j take (+, -) to (+, -).
    up = y[..., :-1]
    return _through((up + couplings, -couplings, up - couplings, couplings))


_Matrices = tuple[Tensor, Tensor, Tensor, Tensor]


def _through(matrices: _Matrices) -> Tensor:
    """Log-odds before and after each of n matrices, [*, n + 1], of log-odds 0 at first.

    Products of pairs of matrices lead to every other place, in O(log n) steps and O(n) memory.
    """
    count = matrices[0].shape[-1]
    if count == 0:
        return matrices[0].new_zeros(*matrices[0].shape[:-1], 1)
    even, odd = _every_other(matrices, 0), _every_other(matrices, 1)
    at_even = _through(_product(odd, _every_other(matrices, 0, count - 1)))
    a, b, c, d = even
    before = at_even[..., : a.shape[-1]]
    at_odd = torch.logaddexp(a + before, b) - torch.logaddexp(c + before, d)
    if count % 2 == 0:
        at_odd = F.pad(at_odd, (0, 1))
    return torch.stack((at_even, at_odd), -1).flatten(-2)[..., : count + 1]


def _every_other(matrices: _Matrices, first: int, stop: int | None = None) -> _Matrices:
    a, b, c, d = (t[..., first:stop:2] for t in matrices)
    return a, b, c, d


def _product(after: _Matrices, before: _Matrices) -> _Matrices:
    """Logarithms of a product of matrices ((a, b), (c, d)), whose largest entry is 1."""
    (a, b, c, d), (e, f, g, h) = after, before
    add = torch.logaddexp
    w, x, y, z = add(a + e, b + g), add(a + f, b + h), add(c + e, d + g), add(c + f, d + h)
    top = torch.maximum(torch.maximum(w, x), torch.maximum(y, z)).detach()
    return w - top, x - top, y - top, z - top


def fields_of(readout: str, scores: Tensor, visible: Tensor) -> Tensor:
    """Fields of the visible keys, 0 elsewhere, in the shape of the scores; by ``odds`` or ``probability``.

    An infinite score is the limit of large ones.
    """
    scores = scores.clamp(-LARGEST, LARGEST)
    return odds_fields(scores, visible) if readout == "odds" else scores.masked_fill(~visible, 0)


def weights_of(readout: str, fields: Tensor, couplings: Tensor, visible: Tensor) -> Tensor:
    """Normalised weights by operators, [B, H, Q, S].

    Args:
        readout: ``odds`` or ``probability``.
        fields: [B, H, Q, S].
        couplings: J_{j,j+1}, [B, H, S - 1].
        visible: bool, broadcastable to the scores.
    """
    visible = visible.expand(fields.shape)
    # The logarithms of large fields would round couplings away.
    strongest = couplings.detach().abs().nan_to_num()
    most = 4 * F.pad(strongest, (1, 0)).amax(-1)[..., None, None] - FIELDS[fields.dtype][0]
    fields = fields.clamp(-most, most)
    found = log_odds(fields, torch.where(visible[..., 1:] & visible[..., :-1], couplings[..., None, :], 0))
    if readout == "odds":
        return masked_softmax(found, visible)
    return normalised_weights(torch.sigmoid(found), visible)


Factors = Callable[[slice, int], Tensor]
"""Factors of dropout for a part of the queries and the first n keys, [B, H, R, n]."""


def by_operators(
    law: ChainLaw,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    couplings: Tensor,
    visible: Visible,
    *,
    softcap: float | None = None,
    need_weights: bool = False,
    factors: Factors | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Mixed values [B, H, Q, d], and weights [B, H, Q, S] if they are needed, with dropout applied.

    Values that are NaN reach only the queries that see them.

    Args:
        law: How queries attend; ``visible`` says what they see.
        q: [B, H, Q, E], float32 or float64.
        k: [B, H_kv, S, E], with H a multiple of H_kv.
        v: [B, H_kv, S, d].
        couplings: J_{j,j+1}, [B, H, S - 1]; those of keys that a query does not see have no effect on it.
        visible: What each query sees, and what is added to scores.
        softcap: c; scores become c tanh(s / c) before anything is added.
        need_weights: Also return the weights.
        factors: Those of dropout; else they are drawn.
    """
    values, lost = without_nan(v)
    if law.dropout and factors is None:
        factors = _drawn(law.dropout, q)
    found = []
    for part, end in _parts(q, visible):
        block = partial(_block, law, visible, softcap, part, end, factors, need_weights)
        mixed, *weights = recomputed(block, q, k, values, couplings, visible.bias)
        if lost is not None:
            mixed = mixed.masked_fill(reached(lost, visible, q.shape[1], part), math.nan)
        found.append((mixed, *weights))
    out, *weights = (rows[0] if len(rows) == 1 else torch.cat(rows, -2) for rows in zip(*found, strict=True))
    return out, weights[0] if need_weights else None


def _parts(q: Tensor, visible: Visible) -> Iterator[tuple[slice, int]]:
    """Blocks of queries, and the number of keys up to the last that each sees; one in a graph, for any length."""
    queries, keys = visible.queries, visible.keys
    if torch.compiler.is_compiling():
        yield slice(0, queries), keys
        return
    numbers = _NUMBERS if q.device.type == "cpu" else _NUMBERS_ELSEWHERE
    rows = max(1, numbers // max(1, q.shape[0] * q.shape[1] * keys))
    for start in range(0, max(1, queries), rows):
        stop = min(start + rows, queries)
        yield slice(start, stop), max(1, keys - queries + stop) if visible.causal else keys


def _block(
    law: ChainLaw,
    visible: Visible,
    softcap: float | None,
    part: slice,
    end: int,
    factors: Factors | None,
    need_weights: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    couplings: Tensor,
    bias: Tensor | None,
) -> tuple[Tensor, ...]:
    """What `by_operators` computes, for a part of the queries and the keys before ``end``."""
    seen = visible.rows(q.device, part)[..., :end]
    scores = head_products(law.scale * q[..., part, :], k[..., :end, :].mT)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + (bias if bias.shape[-2] == 1 else bias[..., part, :])[..., :end]
    fields = fields_of(law.readout, scores, seen)
    weights = weights_of(law.readout, fields, couplings[..., : end - 1], seen)
    if factors is not None:
        weights = weights * factors(part, end)
    out = head_products(weights, v[..., :end, :])
    return (out, F.pad(weights, (0, visible.keys - end))) if need_weights else (out,)


def _drawn(rate: float, q: Tensor) -> Factors:
    words = torch.randint(-(2**31), 2**31, (*q.shape[:-1], 1), dtype=torch.int32, device=q.device)
    return lambda part, keys: dropout_factors(words[..., part, :], rate, q, keys)


def mixed(weights: Tensor, v: Tensor, visible: Visible) -> Tensor:
    """Mixed values [B, H, Q, d] by weights [B, H, Q, S]; one that is NaN reaches only the queries that see it."""
    values, lost = without_nan(v)
    out = head_products(weights, values)
    return out if lost is None else out.masked_fill(reached(lost, visible, weights.shape[1]), math.nan)


def without_nan(v: Tensor) -> tuple[Tensor, Tensor | None]:
    """Values with 0 in place of NaN, and which were NaN; None if it is known that there are none."""
    if not is_traced() and not math.isnan(float(v.detach().sum())):
        return v, None
    lost = v.isnan()
    return v.masked_fill(lost, 0), lost


def reached(lost: Tensor, visible: Visible, heads: int, part: slice = slice(None)) -> Tensor:
    """Which of a part of the queries see one of these tokens, bool [B, H_kv, S, d]; [B, H, R or 1, d]."""
    if visible.mask is not None:
        rows = visible.rows(lost.device, part).expand(len(lost), heads, -1, visible.keys)
        return head_products(rows.float(), lost.float()) > 0
    if visible.key_mask is not None:
        lost = lost & visible.key_mask[:, None, :, None]
    if visible.causal:
        missing = max(0, visible.queries - visible.keys)
        seen = F.pad(lost.cumsum(-2) > 0, (0, 0, missing, 0))
        seen = seen[..., visible.keys + missing - visible.queries :, :][..., part, :]
    else:
        seen = lost.any(-2, keepdim=True)
    return repeated(seen, heads // lost.shape[1])
