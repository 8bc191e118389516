"""Attention over small windows in one autograd function on the CPU, from queries, keys and values to mixed values.

Between the compiled passes stands one solution of the sampler (:meth:`Sampler.solution`).  Results and derivatives are
those of the operators of :mod:`diabat.attention.weights` and :mod:`diabat.attention.windows`, which second derivatives
use.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from diabat.attention.bridge import GradientBridge, refuse_inference
from diabat.attention.coupling_layout import CouplingLayout
from diabat.attention.head_axis import merged_heads, split_heads
from diabat.attention.weights import log_odds, masked_softmax, normalised_weights, odds_fields
from diabat.attention.windows import visible_keys, visible_slots, window_mix, window_scores
from diabat.compute.threads import equal_ranges, run_parts
from diabat.ising import Ising, pack_couplings, pair_indices
from diabat.samplers.answers import Solution
from diabat.samplers.folding import refuse_batched_cotangent

Array = NDArray[Any]

FEW_STATES = 1 << 9
"""States of all problems up to which loading compiled code is not worthwhile, as for the backend."""
_WORK_PER_THREAD = 1 << 18


@dataclass(frozen=True)
class FusedLayer:
    """What one layer of H heads does; ``bridge`` is None without couplings, where P(s = +1) = sigmoid(2h)."""

    bridge: GradientBridge | None
    heads: int
    layout: CouplingLayout
    causal: bool

    @property
    def supported(self) -> bool:
        """Whether the backend has a solution with its derivative outside autograd."""
        bridge = self.bridge
        if bridge is None:
            return True
        return bridge.estimator == "exact" and not bridge.draws and bridge.sampler.capabilities.solution

    def solution(self, fields: Tensor, J: Tensor | None, visible: Tensor) -> Solution | None:
        """The solution of the backend; None if it has none for these problems."""
        odds = self.layout.weights == "odds"
        if self.bridge is None:
            return _Independent(fields, odds)
        problem = Ising(fields, J, visible, check=False)
        return self.bridge.sampler.solution(problem, odds=odds)


class _Independent(Solution):
    """Spins without couplings."""

    def __init__(self, fields: Tensor, odds: bool) -> None:
        self._odds = odds
        self.result = 2 * fields if odds else torch.sigmoid(2 * fields)

    def gradient(self, v: Tensor, u: Tensor | None = None, *, pairs: bool) -> tuple[Tensor, Tensor | None]:
        """As in the base class."""
        return (2 * v if self._odds else 2 * v * self.result * (1 - self.result)), None


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
        record: Called with the fields, [B, H, Q, T], and J, [H, 1, T, T] or None, before a backend may refuse them.

    Returns:
        Mixed values [B, Q, H·d] and weights [B, H, Q, T]; None if the backend has no solution for these problems, or
        they have few states.
    """
    queries, keys = q.shape[1], k.shape[1]
    window = min(layer.layout.window, keys)
    if (q.shape[0] * queries * layer.heads) << window <= FEW_STATES:
        return None
    shape = (queries, keys, window if slots else None, layer.causal)
    refuse_inference(q, pairs)
    visible, mask = _without_padding(*shape) if key_mask is None else _visibility(*shape, key_mask)
    differentiated = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (q, k, pairs))
    passes = _Passes.of(layer, q, mask, slots)
    fields = passes.scores(q, k)
    J = None
    if pairs is not None:
        J = F.pad(pairs.detach(), (0, 1))[:, None, _pair_numbers(layer.layout, window)]
    record(fields, J)
    solution = layer.solution(fields, J, visible)
    if solution is None:
        return None
    noise = F.dropout(torch.ones_like(fields), dropout) if dropout > 0 else None
    solved = _Solved(layer, passes, visible, fields, solution, noise, differentiated)
    if not torch.is_grad_enabled():
        mixed, weights = solved.mixed(v)
        return mixed, solved.dropped(weights)
    found: tuple[Tensor, Tensor] = _Attend.apply(q, k, v, pairs, solved)
    return found


def _visibility(
    queries: int, keys: int, window: int | None, causal: bool, key_mask: Tensor | None
) -> tuple[Tensor, Array]:
    """Which keys, or slots, each query sees: bool, broadcastable to the fields; and as an array [B or 1, Q, T]."""
    device = torch.device("cpu")
    if window is None:
        visible = visible_keys(queries, keys, key_mask, device, causal=causal)
    else:
        visible = visible_slots(keys, window, key_mask, device)
    return visible, np.ascontiguousarray(visible.numpy()).reshape(-1, *visible.shape[-2:])


@lru_cache(maxsize=64)
def _without_padding(queries: int, keys: int, window: int | None, causal: bool) -> tuple[Tensor, Array]:
    return _visibility(queries, keys, window, causal, None)


@lru_cache(maxsize=64)
def _pair_numbers(layout: CouplingLayout, length: int) -> Tensor:
    """Which of the P pairs of a layer is at j, k of J of ``length`` keys, int64 [T, T]; P where there is none."""
    j, k = pair_indices(layout.window, layout.bandwidth)
    numbers = torch.full((layout.window, layout.window), len(j))
    numbers[j, k] = numbers[k, j] = torch.arange(len(j))
    part = layout.part(length)
    return numbers[part, part].contiguous()


class _Passes(NamedTuple):
    """How compiled passes run: which key is in a slot, the shape [B, H, Q, T] of the fields, and threads."""

    slots: Any
    shape: tuple[int, int, int, int]
    threads: int

    @classmethod
    def of(cls, layer: FusedLayer, q: Tensor, mask: Array, moves: bool) -> _Passes:
        from diabat.attention.fused_kernel import Slots

        features = q.shape[2] // layer.heads
        shape = (q.shape[0], layer.heads, q.shape[1], mask.shape[2])
        threads = 1 + math.prod(shape) * features // _WORK_PER_THREAD
        slots = Slots(mask, moves, 1 / math.sqrt(features), layer.layout.weights == "odds")
        return cls(slots, shape, threads if threads == 1 else min(torch.get_num_threads(), threads))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Fields [B, H, Q, T] of queries and keys."""
        from diabat.attention.fused_kernel import scores

        rows = self.rows(q)
        fields = np.empty(self.shape, rows.dtype)
        self.run(scores, rows, self.rows(k), fields)
        return torch.from_numpy(fields)

    def rows(self, tokens: Tensor) -> Array:
        """Features [B, L, H·d] as [B, L, H, d]."""
        rows = np.ascontiguousarray(tokens.detach().numpy())
        return rows.reshape(*rows.shape[:2], self.shape[1], -1)

    def run(self, kernel: Any, *arrays: Any) -> None:
        """Run a kernel on all pairs of a sequence and a head."""
        number = self.shape[0] * self.shape[1]
        if self.threads == 1:
            kernel(0, number, self.slots, *arrays)
            return
        run_parts(
            equal_ranges(number, self.threads),
            lambda part: None,
            lambda part, none: kernel(part.start, part.stop, self.slots, *arrays),
        )


@dataclass(frozen=True, eq=False)
class _Solved:
    """A solved call: ``solution`` is that of the fields, ``noise`` the factors of dropout or None."""

    layer: FusedLayer
    passes: _Passes
    visible: Tensor
    fields: Tensor
    solution: Solution
    noise: Tensor | None
    differentiated: bool

    def _found(self, v: Tensor) -> tuple[float, Array, Array, Array]:
        """What both directions of mixing need: the least weight, probabilities or log-odds, values and noise."""
        rows, found = self.passes.rows(v), self.solution.result.numpy()
        least = float(np.finfo(rows.dtype).tiny) ** 0.75  # as in `normalised_weights`
        return least, found, rows, _or_none(self.noise, rows.dtype)

    def mixed(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Mixed values [B, Q, H·d], and weights before dropout, [B, H, Q, T]."""
        from diabat.attention.fused_kernel import mixed

        given = self._found(v)
        batch, heads, queries, _ = self.passes.shape
        weights = np.empty_like(given[1])
        out = np.empty((batch, queries, heads, given[2].shape[3]), weights.dtype)
        self.passes.run(mixed, *given, weights, out)
        return _tokens(out), torch.from_numpy(weights)

    def dropped(self, weights: Tensor) -> Tensor:
        return weights if self.noise is None else weights * self.noise

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

        passes, given = self.passes, self._found(v)
        rows_g = passes.rows(torch.zeros_like(q) if g is None else g)
        more = _or_none(extra, given[1].dtype)
        slope, dv = np.empty_like(given[1]), np.empty_like(given[2])
        passes.run(mixed_backward, *given, weights.detach().numpy(), rows_g, more, slope, dv)
        if not self.differentiated:
            return None, None, _tokens(dv), None
        with_pairs = pairs is not None and pairs.requires_grad
        dh, dJ = self.solution.gradient(torch.from_numpy(slope), pairs=with_pairs)
        rows_q, rows_k = passes.rows(q), passes.rows(k)
        dq, dk = np.empty_like(rows_q), np.empty_like(rows_k)
        passes.run(scores_backward, self.fields.numpy(), dh.numpy(), rows_q, rows_k, dq, dk)
        by_pairs = None
        if dJ is not None and pairs is not None:
            numbers = _pair_numbers(self.layer.layout, dJ.shape[-1]).reshape(1, -1)
            sums = pairs.new_zeros(len(pairs), pairs.shape[1] + 1)
            by_pairs = sums.scatter_add_(1, numbers.expand(len(sums), -1), dJ.reshape(len(sums), -1))[:, :-1]
        return _tokens(dq), _tokens(dk), _tokens(dv), by_pairs

    def by_operators(self, q: Tensor, k: Tensor, v: Tensor, pairs: Tensor | None) -> tuple[Tensor, Tensor]:
        """Both results by operators that autograd differentiates again."""
        layer, layout, visible = self.layer, self.layer.layout, self.visible
        window = self.passes.shape[3] if self.passes.slots.moves else None
        q, k, v = (split_heads(tokens, layer.heads) for tokens in (q, k, v))
        q = q / math.sqrt(q.shape[-1])
        scores = q @ k.mT if window is None else window_scores(q, k, window)
        J = None
        if pairs is not None:
            part = layout.part(scores.shape[-1])
            J = pack_couplings(pairs, layout.window, layout.bandwidth)[:, None, part, part]
        if layout.weights == "odds":
            h = odds_fields(scores, visible)
            logits = 2 * h if layer.bridge is None else log_odds(layer.bridge, h, J, visible)
            weights = masked_softmax(logits, visible)
        else:
            alpha = torch.sigmoid(2 * scores) if layer.bridge is None else layer.bridge(scores, J, visible)
            weights = normalised_weights(alpha, visible)
        weights = self.dropped(weights)
        mixed = weights @ v if window is None else window_mix(weights, v, window)
        return merged_heads(mixed), weights


class _Attend(torch.autograd.Function):
    """(q, k, v, pairs, their solved problems) -> mixed values, weights."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, pairs: Tensor | None, solved: _Solved
    ) -> tuple[Tensor, Tensor]:
        ctx.solved = solved
        ctx.set_materialize_grads(False)
        mixed, weights = solved.mixed(v)
        ctx.save_for_backward(q, k, v, pairs, weights)
        return mixed, solved.dropped(weights)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_batched_cotangent(*cotangents)
        *terms, weights = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return *ctx.solved.gradient(*terms, weights, *cotangents), None
        # Separate leaves: cotangents may also depend on the terms, but are held fixed here.
        terms = [None if t is None else t.view_as(t) for t in terms]
        results = ctx.solved.by_operators(*terms)
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
        return *(next(found) if want else None for want in wanted), None


def _or_none(numbers: Tensor | None, dtype: Any) -> Array:
    """Numbers [B, H, Q, T] as an array; [0, 0, 0, 0] for None."""
    return np.empty((0, 0, 0, 0), dtype) if numbers is None else numbers.detach().contiguous().numpy()


def _tokens(rows: Array) -> Tensor:
    """Features [B, L, H, d] as [B, L, H·d]."""
    return torch.from_numpy(rows.reshape(*rows.shape[:2], -1))
