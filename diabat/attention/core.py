r"""The one place that attends: from queries, keys and values to mixed values, by couplings and what is visible.

With the scores s_j = scale q·k_j of the visible keys of a query,

    readout "odds":         h_j = (s_j - log Σ_k exp s_k) / 2,   weight_j ∝ P(s_j = +1) / P(s_j = -1),
    readout "probability":  h_j = s_j,                           weight_j ∝ P(s_j = +1),

under P(s) ∝ exp( Σ_j h_j s_j + Σ_{j<k} J_jk s_j s_k + Σ_{j<k<l} K_jkl s_j s_k s_l ).  Keys before a window are spins
without couplings, or not visible.  `attend` chooses a path:

=============  ==========================================================================================
softmax        no couplings and odds: ``scaled_dot_product_attention`` of torch
compiled       windows by a rule on the CPU, a backend with a solution: one compiled call per direction
operators      all else, of torch; keys before a window by a fused kernel of torch, or over blocks of queries
=============  ==========================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor
from torch.nn import functional as F

from diabat.attention import compiled_windows, softmax
from diabat.attention.bridge import GradientBridge
from diabat.attention.compiled_windows import Far
from diabat.attention.couplings import WindowCouplings
from diabat.attention.head_axis import head_products
from diabat.attention.readout import ODDS, Readout, slot_weights
from diabat.attention.streaming import FarKeys, far_sums, far_weights
from diabat.attention.visible import Visible, Windows
from diabat.checks import ArgumentError, check_choice, check_number, check_positive
from diabat.ising import Ising, without_autocast
from diabat.ising.edges import Edges
from diabat.samplers.base import Sampler
from diabat.samplers.call_checks import refuse_trace
from diabat.samplers.folding import is_traced

FAR = ("none", "independent")
_BY_OPERATORS: ContextVar[bool] = ContextVar("by operators", default=False)


@contextmanager
def operators() -> Iterator[None]:
    """In this block no call of a layer or function is compiled: operators of torch compute the same, to rounding.

    For tests and to look into a computation; ``layer.last_path()`` says ``operators``.
    """
    token = _BY_OPERATORS.set(True)
    try:
        yield
    finally:
        _BY_OPERATORS.reset(token)


@dataclass(frozen=True, eq=False)
class Law:
    """What is computed, but for the tensors; fixed when a layer is built.

    Attributes:
        readout: From scores to fields, and from log-odds to weights.
        far: Keys before a window: ``none``, not visible; or ``independent``, spins without couplings,
            alpha = sigmoid(2h).  This is the exact law of a J that is zero beyond the window.
        softcap: c; scores s become c tanh(s / c); None for none.
        scale: Factor of q·k; None for 1/√E.
        fields: Whether there are fields from scores.
        own_spin: The query's own spin is held at +1 (mode ``J-self``).
        bridge: Sampler and estimator; None without couplings.
    """

    readout: Readout = ODDS
    far: str = "none"
    softcap: float | None = None
    scale: float | None = None
    fields: bool = True
    own_spin: bool = False
    bridge: GradientBridge | None = None
    solved: bool = field(init=False)
    """Whether the backend may have a solution with its derivative outside autograd."""

    def __post_init__(self) -> None:
        if self.softcap is not None:
            check_positive("softcap", self.softcap)
        check_number("scale", self.scale, "(-inf, inf)", optional=True)
        bridge = self.bridge
        solved = bridge is None or (bridge.estimator == "exact" and not bridge.draws)
        solved = solved and self.readout.odds is not None
        object.__setattr__(self, "solved", solved and self.fields and not self.own_spin and not self.softcap)

    @property
    def odds(self) -> bool:
        """Whether log-odds are needed on both sides: of no other readout than probabilities log P is enough."""
        return self.readout.odds is not False

    def scores(self, products: Tensor) -> Tensor:
        """Scores of products of scaled queries with keys."""
        return products if self.softcap is None else self.softcap * torch.tanh(products / self.softcap)

    def terms(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys whose products, times the factor, are the scores; queries of 0 without fields."""
        return (q, k) if self.fields else (torch.zeros_like(q), k.detach())

    def scaled(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys whose products are the scores."""
        q, k = self.terms(q, k)
        return q * self.factor(q), k

    def factor(self, q: Tensor) -> float:
        """The factor of q·k."""
        return q.shape[-1] ** -0.5 if self.scale is None else self.scale


def far_of(far: str | None, couplings: WindowCouplings | None) -> str:
    """Keys before a window, by default independent spins; ValueError if windows do not move: no key is before them."""
    moves = couplings is not None and couplings.relative
    if far is None:
        return "independent" if moves else "none"
    check_choice("far", far, FAR)
    if far != "none" and couplings is not None and not moves:
        raise ArgumentError("far", "'none' unless windows move (relative=True)", f"{far!r}")
    return far


class LawOptions(TypedDict, total=False):
    """Options of all layers; their meaning is that of :func:`diabat.attention.boltzmann_attention`."""

    sampler: Sampler | str | None
    gradient: str
    num_reads: int | None
    readout: Readout | str
    far: str | None
    softcap: float | None
    scale: float | None


class Attention(NamedTuple):
    """One call: queries [B, H, Q, E], keys [B, H_kv, S, E], values [B, H_kv, S, d], and what belongs to it.

    Attributes:
        dropout: Probability of dropout of the normalised weights.
        need_weights: Also form the weights of all keys.
        seed: Seed of a backend that draws; None takes one from torch's global generator.
        record: Called with the path, and a function that makes the problem; None for nobody.
    """

    law: Law
    q: Tensor
    k: Tensor
    v: Tensor
    visible: Visible
    dropout: float = 0.0
    need_weights: bool = False
    seed: int | None = None
    record: Callable[[str, Callable[[], Ising] | None], None] | None = None

    def note(self, path: str, problem: Callable[..., Ising] | None = None, *terms: Any) -> None:
        """Record the path of this call, and how to make its problem."""
        if self.record is not None:
            self.record(path, None if problem is None else partial(problem, *map(_detached, terms)))


Result = tuple[Tensor, Tensor | None]
Tokens = tuple[Tensor, Tensor, Tensor]


def attend(call: Attention, couplings: WindowCouplings | None) -> Result:
    """Mixed values [B, H, Q, d] in the dtype of the values, and weights [B, H, Q, S] or None.

    Half precision is computed in float32.  A query that sees no key gets 0.
    """
    refuse_trace()
    law, q, k, v = call.law, call.q, call.k, call.v
    if _is_softmax(call, couplings):
        call.note("softmax")
        return softmax.attend(q, k, v, call.visible, scale=law.scale, dropout=call.dropout), None
    narrow = v.dtype
    direct = q.dtype == k.dtype == narrow and narrow in (torch.float32, torch.float64)
    with without_autocast(q):
        if not direct:
            wide = torch.promote_types(q.dtype, torch.float32)
            call = call._replace(q=q.to(wide), k=k.to(wide), v=v.to(wide))
        mixed, weights = _uncoupled(call) if couplings is None else _over_windows(call, couplings, (q, k, v))
    if direct:
        return mixed, weights
    return mixed.to(narrow), None if weights is None else weights.to(narrow)


def _is_softmax(call: Attention, couplings: WindowCouplings | None) -> bool:
    """Whether the function of torch computes the same."""
    law = call.law
    plain = bool(law.readout.odds and law.fields) and law.softcap is None
    return couplings is None and plain and not call.need_weights


def _over_windows(call: Attention, couplings: WindowCouplings, tokens: Tokens) -> Result:
    """Slots of a window that are coupled, and keys before it, of queries, keys and values as they were given."""
    law, q, k, v = call.law, call.q, call.k, call.v
    windows, result, far = _windows(call, couplings), None, None
    if windows.far is not None and not _is_decoded(call, windows.far):
        far = _far(call, windows.far, tokens)
    if _is_compiled(call, couplings):
        result = _compiled(call, couplings, windows, far)
    if result is None:
        if windows.far is not None and far is None:
            far = _far(call, windows.far, tokens)
        result = _of_slots(call, couplings, windows, far)
    mixed, weights = result
    if not call.need_weights:
        return mixed, None
    assert weights is not None
    slots = windows.filled.shape[-1]
    shown = windows.on_keys(weights[..., :slots], k.shape[2])
    if windows.far is not None:
        of_far = far_weights(*law.scaled(q, k), windows.far, odds=law.odds, softcap=law.softcap)
        shown = shown + weights[..., slots:] * of_far
    return (mixed, shown) if far is None or not call.dropout else _of_weights(call, shown, v)


def _windows(call: Attention, couplings: WindowCouplings) -> Windows:
    """The slots of all queries."""
    law, device = call.law, call.q.device
    if not couplings.relative:
        return call.visible.absolute(device)
    far_keys = law.far == "independent"
    whole = far_keys and law.readout.odds is None  # far keys have a mass only for readouts that we ship
    size = max(couplings.window, call.visible.keys) if whole else couplings.window
    return call.visible.windows(size, device, far=far_keys and not whole)


def _is_decoded(call: Attention, far: FarKeys) -> bool:
    """Whether the keys before the window of a single query are a part of its compiled call."""
    if call.q.shape[2] != 1 or torch.is_grad_enabled() or call.dropout or not call.law.readout.odds:
        return False
    bridge = call.law.bridge
    by_rule = isinstance(far.first, int) and far.first > 0 and far.visible is None
    return by_rule and (bridge is None or bridge.enumerates)


def _far(call: Attention, far: FarKeys, tokens: Tokens) -> Far:
    """Mean value and mass of keys before a window."""
    law, (q, k, v) = call.law, tokens
    q, k = law.terms(q, k)
    return far_sums(
        q, k, v, far, odds=law.odds, softcap=law.softcap, dropout=call.dropout, scale=law.factor(q)
    )  # fmt: skip


def _of_slots(call: Attention, couplings: WindowCouplings, windows: Windows, far: Far | None) -> Result:
    """Mixed values by operators, and weights of slots [B, H, Q, T], with far keys as one more [B, H, Q, T + 1]."""
    scores = call.law.scores(windows.scores(*call.law.scaled(call.q, call.k)))
    near = _biased(windows.added(scores), couplings)
    zero = not call.law.fields and call.visible.bias is None
    solve = partial(_solved, call, couplings, windows, zero=zero)
    mass = None if far is None else far[1]
    weights = slot_weights(call.law.readout, near, windows.filled, mass, solve, zero=zero)
    if far is None:
        weights = F.dropout(weights, call.dropout)
        return windows.mixed(weights, call.v), weights
    near, before = weights.split((near.shape[-1], 1), -1)
    return torch.addcmul(windows.mixed(F.dropout(near, call.dropout), call.v), before, far[0]), weights


def _uncoupled(call: Attention) -> Result:
    """All keys are spins without couplings."""
    law, q, k, v, visible = call.law, call.q, call.k, call.v, call.visible
    scaled, keys = law.scaled(q, k), visible.keys
    if law.readout.odds is None:
        call.note("operators")
        windows = visible.absolute(q.device)
        near = windows.added(law.scores(windows.scores(*scaled)))
        return _of_weights(call, slot_weights(law.readout, near, windows.filled, None, lambda h: 2 * h), v)
    if visible.is_rule and visible.causal:
        seen = None if visible.key_mask is None else visible.key_mask[:, None, None]
        everything = FarKeys(keys - visible.queries + 1, seen)
    else:
        first = torch.full((visible.queries,), keys, device=q.device)
        everything = FarKeys(first, visible.rows(q.device), visible.bias)
    call.note("operators")
    if call.need_weights:
        return _of_weights(call, far_weights(*scaled, everything, odds=law.odds, softcap=law.softcap), v)
    mixed, mass = far_sums(*scaled, v, everything, odds=law.odds, softcap=law.softcap, dropout=call.dropout)
    sees_none = mass <= torch.finfo(mass.dtype).min
    return mixed.masked_fill(sees_none[..., None], 0), None


def _is_compiled(call: Attention, couplings: WindowCouplings) -> bool:
    """Whether one autograd function serves, but for what the mask and the backend say."""
    law, q = call.law, call.q
    if not (law.solved and q.is_cpu) or couplings.triples is not None or couplings.offset_bias is not None:
        return False
    return not (is_traced() or _BY_OPERATORS.get())


def _compiled(
    call: Attention, couplings: WindowCouplings, windows: Windows, far: Far | None
) -> Result | None:
    """The same by one autograd function; None where it does not serve."""
    law, q = call.law, call.q
    if far is not None and call.dropout and call.need_weights:
        return None  # far keys are dropped by other draws
    size = min(couplings.window, call.visible.keys) if couplings.relative else call.visible.keys
    wide = size > q.shape[0] * q.shape[2]  # more pairs of slots than fields
    banded = couplings.bandwidth < couplings.window - 1
    if wide and banded and law.bridge is not None and law.bridge.takes_edges:
        return None  # no matrix for a band
    pairs = couplings.values()
    if pairs is not None and pairs.dtype != q.dtype:
        pairs = pairs.to(q.dtype)
    kind = compiled_windows.WindowLaw(law.bridge if pairs is not None else None, law.readout, law.factor(q))
    slots = None if pairs is None else couplings.slots(size)
    record = None if call.record is None else partial(_record_compiled, call, windows)
    return compiled_windows.attend(
        kind, q, call.k, call.v, pairs, slots, windows, far,
        dropout=call.dropout, need_weights=call.need_weights, record=record,
    )  # fmt: skip


def _record_compiled(call: Attention, windows: Windows, fields: Tensor, J: Tensor | None) -> None:
    call.note("compiled", _problem_of_window, windows, fields, J, None)


def _problem_of_window(windows: Windows, fields: Tensor, J: Tensor | Edges | None, K: Tensor | None) -> Ising:
    return Ising(fields, J, windows.filled, K, check=False)


def _biased(near: Tensor, couplings: WindowCouplings) -> Tensor:
    """Scores of slots with the learned bias of each of a window."""
    if couplings.offset_bias is None:
        return near
    bias = F.pad(couplings.offset_bias, (max(near.shape[-1] - couplings.window, 0), 0))
    return near + bias[:, None, -near.shape[-1] :].to(near)


def _of_weights(call: Attention, weights: Tensor, v: Tensor) -> Result:
    """Mix by weights of all keys; a value that is NaN reaches only the queries that see it."""
    weights = F.dropout(weights, call.dropout)
    values, lost = v, None
    if is_traced() or not v.is_cpu or math.isnan(float(v.detach().sum())):
        lost = v.isnan()
        values = v.masked_fill(lost, 0)
    mixed = head_products(weights, values)
    if lost is not None:
        seen = call.visible.rows(v.device).expand(len(v), weights.shape[1], -1, v.shape[2])
        mixed = mixed.masked_fill(head_products(seen.float(), lost.float()) > 0, math.nan)
    return mixed, weights if call.need_weights else None


def _solved(
    call: Attention, couplings: WindowCouplings, windows: Windows, fields: Tensor, *, zero: bool
) -> Tensor:
    """Log-odds of slots, [B, H, Q, T]; those before the window are spins without couplings."""
    beyond = fields.shape[-1] - couplings.window
    if beyond > 0 and couplings.relative:
        near = windows._replace(filled=windows.filled[..., beyond:])
        solved = _solved(call, couplings, near, fields[..., beyond:], zero=zero)
        return torch.cat((2 * fields[..., :beyond], solved), -1)
    law, bridge, visible, length = call.law, call.law.bridge, windows.filled, fields.shape[-1]
    if bridge is None:
        call.note("operators", _problem_of_window, windows, fields, None, None)
        return 2 * fields
    if zero and couplings.triples is None and not law.own_spin:
        assert couplings.pairs is not None
        call.note("operators")
        # The law does not change when all spins are flipped: every P is 1/2, whatever J is; the gradient 0 rather
        # than none, which some wrappers and optimisers treat differently.
        return torch.zeros_like(fields) + 0 * couplings.pairs.sum()
    K = couplings.three_body(length)
    banded = K is None and couplings.bandwidth < couplings.window - 1
    as_edges = banded and bridge.takes_edges and fields.is_cpu  # elsewhere the band is cut out of the matrix
    J = couplings.edges(length) if as_edges else couplings.matrix(length)
    J, K = [None if t is None else _as(t, fields) for t in (J, K)]
    if law.own_spin:
        assert isinstance(J, Tensor)
        return _with_own_spin(call, J, fields, visible, last=couplings.relative)
    call.note("operators", _problem_of_window, windows, fields, J, K)
    return bridge.log_odds(fields, J, visible, K, call.seed, odds=law.odds)


def _with_own_spin(call: Attention, J: Tensor, fields: Tensor, visible: Tensor, *, last: bool) -> Tensor:
    """Log-odds given s_own = +1 without fields; 0 in rows that do not see their own spin (mode ``J-self``).

    The problem of the other spins is that of :meth:`diabat.Ising.clamp`: h_j = J_own,j.
    """
    queries, spins = fields.shape[-2:]
    place = torch.arange(spins, device=J.device)
    own = place.new_full((queries,), spins - 1) if last else place
    is_own = (place == own[:, None]) & visible
    h = J[:, 0, own] * is_own.any(-1, keepdim=True)  # [H, Q, T] without padding: the same in every sequence
    others = visible & ~is_own
    slots = Windows(None, others, False, 0)
    call.note("operators", _problem_of_window, slots, h.expand(fields.shape), J, None)
    assert call.law.bridge is not None
    log_odds = call.law.bridge.log_odds(h, J, others, seed=call.seed, odds=False)
    return log_odds.masked_fill(is_own, math.inf).expand(fields.shape)


def _as(t: Tensor | Edges, like: Tensor) -> Any:
    return t.mapped(lambda values: values.to(like)) if isinstance(t, Edges) else t.to(like)


def _detached(term: Any) -> Any:
    if isinstance(term, Edges):
        return term.mapped(Tensor.detach)
    return term.detach() if isinstance(term, Tensor) else term
