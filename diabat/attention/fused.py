"""Attention over small windows in one autograd function on the CPU, from queries, keys and values to mixed values.

Between the compiled passes stands one solution of the sampler (:meth:`Sampler.solution`).  Results and derivatives are
those of the operators of :mod:`diabat.attention.coupled` and :mod:`diabat.attention.windows`, which second derivatives
use.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from diabat.attention.bridge import GradientBridge
from diabat.attention.head_axis import merged_heads, split_heads
from diabat.attention.normalisation import masked_softmax, normalised_weights
from diabat.attention.odds import log_odds, odds_fields
from diabat.attention.pair_places import PairPlaces, matrices, of_pairs, pair_places
from diabat.attention.windows import visible_keys, visible_slots, window_mix, window_scores
from diabat.compute.threads import equal_ranges, run_parts
from diabat.ising import Ising, pack_couplings
from diabat.samplers.answers import Solution
from diabat.samplers.folding import refuse_batched_cotangent

Array = NDArray[Any]

FEW_STATES = 1 << 9
"""States of all problems up to which loading compiled code is not worthwhile, as for the backend."""
_WORK_PER_THREAD = 1 << 18


@dataclass(frozen=True)
class FusedLayer:
    """What one layer does, decided when its backend is bound.

    Attributes:
        bridge: Its backend, with the estimator ``exact``; None without couplings, where P(s = +1) = sigmoid(2h).
        heads: H.
        window: Positions that J is between.
        bandwidth: Largest distance of two coupled positions, or None.
        relative: J belongs to the last positions.
        odds: Weights are those of odds.
        causal: A query sees the keys up to its own position.
    """

    bridge: GradientBridge | None
    heads: int
    window: int
    bandwidth: int | None
    relative: bool
    odds: bool
    causal: bool

    @property
    def supported(self) -> bool:
        """Whether the backend has a solution with its derivative outside autograd."""
        bridge = self.bridge
        if bridge is None:
            return True
        return bridge.estimator == "exact" and not bridge.draws and bridge.sampler.capabilities.solution

    def places(self, length: int) -> PairPlaces:
        """Where the pairs of the layer are in J of ``length`` keys."""
        return pair_places(self.window, self.bandwidth, self.relative, length)


class _Independent(Solution):
    """Spins without couplings."""

    def __init__(self, fields: Tensor, odds: bool) -> None:
        self._odds = odds
        self.result = 2 * fields if odds else torch.sigmoid(2 * fields)

    def gradient(self, v: Tensor, u: Tensor | None = None, *, pairs: bool) -> tuple[Tensor, Tensor | None]:
        """As in the base class."""
        return (2 * v if self._odds else 2 * v * self.result * (1 - self.result)), None


def can_fuse(q: Tensor, k: Tensor, v: Tensor, pairs: Tensor | None) -> bool:
    """Whether tensors can be read as arrays here: on the CPU, of one precision, and outside transforms and graphs."""
    return (
        q.device.type == "cpu"
        and q.dtype in (torch.float32, torch.float64)
        and q.dtype == k.dtype == v.dtype
        and (pairs is None or q.dtype == pairs.dtype)
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined]  # not exported by name
        and not torch._C._are_functorch_transforms_active()
    )


def attend(
    layer: FusedLayer,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pairs: Tensor | None,
    key_mask: Tensor | None,
    *,
    slots: bool,
    dropout: float,
    record: Callable[[Tensor, Tensor | None], None],
) -> tuple[Tensor, Tensor] | None:
    """Attend with the last Q of S keys.

    Args:
        layer: What the layer does.
        q: [B, Q, H·d].
        k: [B, S, H·d].
        v: Likewise.
        pairs: J_jk for j < k, [H, P]; None without couplings.
        key_mask: Keys that are not padding, bool [B, S], or None.
        slots: Weights are those of slots, and Q = S; else those of the keys, S <= window.
        dropout: Probability of dropout of the weights; it draws the numbers that torch's dropout draws.
        record: Called with the fields, [B, H, Q, T], and J, [H, 1, T, T] or None, before they are solved.

    Returns:
        Mixed values [B, Q, H·d] and weights [B, H, Q, T]; None if the backend has no solution for these problems, or
        they have few states.
    """
    queries, keys = q.shape[1], k.shape[1]
    window = min(layer.window, keys)
    if (q.shape[0] * queries * layer.heads) << window <= FEW_STATES:
        return None
    shape = (queries, keys, window if slots else None, layer.causal)
    core = _Pass(
        layer, q, k, pairs, _without_padding(*shape) if key_mask is None else _visibility(*shape, key_mask)
    )
    record(core.fields, core.couplings)
    if not core.solved():
        return None
    if dropout > 0:
        core.noise = F.dropout(torch.ones_like(core.fields), dropout)
    mixed, weights = core.mixed(v)
    if core.differentiated or (torch.is_grad_enabled() and v.requires_grad):
        result: Any = _Attend.apply(q, k, v, pairs, core, mixed, weights)
        mixed, weights = result
    elif core.noise is not None:
        weights = weights * core.noise
    return mixed, weights


@dataclass(frozen=True, eq=False)
class _Visibility:
    """Which keys, or slots, each query sees.

    Attributes:
        window: Number of slots; None if the keys are meant.
        visible: bool, broadcastable to the fields.
        array: The same as an array [B or 1, Q, T].
    """

    window: int | None
    visible: Tensor
    array: Array


def _visibility(
    queries: int, keys: int, window: int | None, causal: bool, key_mask: Tensor | None
) -> _Visibility:
    device = torch.device("cpu")
    if window is None:
        visible = visible_keys(queries, keys, key_mask, device, causal=causal)
    else:
        visible = visible_slots(keys, window, key_mask, device)
    return _Visibility(
        window, visible, np.ascontiguousarray(visible.numpy()).reshape(-1, *visible.shape[-2:])
    )


@lru_cache(maxsize=64)
def _without_padding(queries: int, keys: int, window: int | None, causal: bool) -> _Visibility:
    return _visibility(queries, keys, window, causal, None)


class _Pass:
    """One pass: what both directions need."""

    def __init__(
        self, layer: FusedLayer, q: Tensor, k: Tensor, pairs: Tensor | None, view: _Visibility
    ) -> None:
        from diabat.attention.fused_kernel import Slots, scores

        self.layer, self.view = layer, view
        self.noise: Tensor | None = None
        batch, queries, features = q.shape[0], q.shape[1], q.shape[2] // layer.heads
        shape = (batch, layer.heads, queries, view.array.shape[2])
        self._number, self._threads = batch * layer.heads, 1
        work = math.prod(shape) * features
        if work >= _WORK_PER_THREAD:
            self._threads = min(torch.get_num_threads(), 1 + work // _WORK_PER_THREAD)
        self._slots = Slots(view.array, view.window is not None, 1 / math.sqrt(features), layer.odds)
        self.differentiated = torch.is_grad_enabled() and (
            q.requires_grad or k.requires_grad or (pairs is not None and pairs.requires_grad)
        )
        rows = self._rows(q)
        fields = np.empty(shape, rows.dtype)
        self._run(scores, rows, self._rows(k), fields)
        self.fields = torch.from_numpy(fields)
        self.couplings = None if pairs is None else matrices(layer.places(shape[3]), pairs)
        self.solution: Solution | None = None

    def solved(self) -> bool:
        """Solve the problems, if the backend has a solution for them."""
        bridge, odds = self.layer.bridge, self.layer.odds
        if bridge is None:
            self.solution = _Independent(self.fields, odds)
            return True
        problem = Ising(self.fields, self.couplings, self.view.visible, check=False)
        self.solution = bridge.sampler.solution(problem, odds=odds, differentiated=self.differentiated)
        return self.solution is not None

    def _rows(self, tokens: Tensor) -> Array:
        """Features [B, L, H·d] as [B, L, H, d]."""
        rows = np.ascontiguousarray(tokens.detach().numpy())
        return rows.reshape(*rows.shape[:2], self.layer.heads, -1)

    def _run(self, kernel: Any, *arrays: Any) -> None:
        if self._threads == 1:
            kernel(0, self._number, self._slots, *arrays)
            return
        run_parts(
            equal_ranges(self._number, self._threads),
            lambda part: None,
            lambda part, none: kernel(part.start, part.stop, self._slots, *arrays),
        )

    def _noise(self, dtype: Any) -> Array:
        return np.empty((0, 0, 0, 0), dtype) if self.noise is None else self.noise.numpy()

    def mixed(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Mixed values [B, Q, H·d], and weights before dropout, [B, H, Q, T]."""
        from diabat.attention.fused_kernel import mixed

        assert self.solution is not None
        found, rows = self.solution.result.numpy(), self._rows(v)
        batch, heads, queries, _ = found.shape
        weights, out = np.empty_like(found), np.empty((batch, queries, heads, rows.shape[3]), rows.dtype)
        self._run(mixed, _least(rows), found, rows, self._noise(rows.dtype), weights, out)
        return torch.from_numpy(out.reshape(batch, queries, -1)), torch.from_numpy(weights)

    def gradient(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        pairs: Tensor | None,
        weights: Tensor,
        g: Tensor | None,
        extra: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        """Derivatives by q, k, v and the pairs, for cotangents of both results."""
        from diabat.attention.fused_kernel import mixed_backward, scores_backward

        assert self.solution is not None
        found, rows = self.solution.result.numpy(), self._rows(v)
        g = torch.zeros_like(q) if g is None else g
        more = np.empty((0, 0, 0, 0), found.dtype) if extra is None else extra.detach().contiguous().numpy()
        slope, dv = np.empty_like(found), np.empty_like(rows)
        self._run(
            mixed_backward,
            _least(rows),
            found,
            rows,
            self._noise(rows.dtype),
            weights.detach().numpy(),
            self._rows(g),
            more,
            slope,
            dv,
        )
        if not self.differentiated:
            return None, None, _tokens(dv), None
        with_pairs = pairs is not None and pairs.requires_grad
        dh, dJ = self.solution.gradient(torch.from_numpy(slope), pairs=with_pairs)
        rows_q, rows_k = self._rows(q), self._rows(k)
        dq, dk = np.empty_like(rows_q), np.empty_like(rows_k)
        self._run(scores_backward, self.fields.numpy(), dh.numpy(), rows_q, rows_k, dq, dk)
        by_pairs = None if dJ is None else of_pairs(self.layer.places(dJ.shape[-1]), dJ)
        return _tokens(dq), _tokens(dk), _tokens(dv), by_pairs

    def by_operators(self, q: Tensor, k: Tensor, v: Tensor, pairs: Tensor | None) -> tuple[Tensor, Tensor]:
        """Both results by operators that autograd differentiates again."""
        layer, visible, window = self.layer, self.view.visible, self.view.window
        q, k, v = (split_heads(tokens, layer.heads) for tokens in (q, k, v))
        q = q / math.sqrt(q.shape[-1])
        scores = q @ k.mT if window is None else window_scores(q, k, window)
        J = None
        if pairs is not None:
            part = layer.places(scores.shape[-1]).part
            J = pack_couplings(pairs, layer.window, layer.bandwidth)[:, None, part, part]
        if layer.odds:
            h = odds_fields(scores, visible)
            odds = 2 * h if layer.bridge is None else log_odds(layer.bridge, h, J, visible, None)
            weights = masked_softmax(odds, visible)
        else:
            alpha = torch.sigmoid(2 * scores) if layer.bridge is None else layer.bridge(scores, J, visible)
            weights = normalised_weights(alpha, visible)
        if self.noise is not None:
            weights = weights * self.noise
        mixed = weights @ v if window is None else window_mix(weights, v, window)
        return merged_heads(mixed), weights


class _Attend(torch.autograd.Function):
    """(q, k, v, pairs, their pass) -> mixed values, weights."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        pairs: Tensor | None,
        core: _Pass,
        mixed: Tensor,
        weights: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Take what the pass has computed."""
        ctx.core = core
        ctx.set_materialize_grads(False)
        mixed = mixed.view_as(mixed)
        dropped = weights.view_as(weights) if core.noise is None else weights * core.noise
        ctx.save_for_backward(q, k, v, pairs, dropped if core.noise is None else weights)
        return mixed, dropped

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        """The analytic derivative; differentiable again if create_graph is set."""
        refuse_batched_cotangent(*cotangents)
        *terms, weights = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return *ctx.core.gradient(*terms, weights, *cotangents), None, None, None
        # Separate leaves: cotangents may also depend on the terms, but are held fixed here.
        terms = [None if t is None else t.view_as(t) for t in terms]
        results = ctx.core.by_operators(*terms)
        loss = sum((r * c).sum() for r, c in zip(results, cotangents, strict=True) if c is not None)
        wanted = ctx.needs_input_grad[:4]
        found = iter(
            torch.autograd.grad(
                loss,
                [t for t, want in zip(terms, wanted, strict=True) if want],
                create_graph=True,
                materialize_grads=True,
            )
        )
        return *(next(found) if want else None for want in wanted), None, None, None


def _tokens(rows: Array) -> Tensor:
    """Features [B, L, H, d] as [B, L, H·d]."""
    return torch.from_numpy(rows.reshape(*rows.shape[:2], -1))


def _least(v: Array) -> float:
    """What is added to probabilities, as in `normalised_weights`."""
    return float(np.finfo(v.dtype).tiny) ** 0.75
