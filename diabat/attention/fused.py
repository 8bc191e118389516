"""Attention over small windows in one autograd function on the CPU, from queries, keys and values to mixed values.

Between the compiled passes stands one solution of the sampler (:meth:`Sampler.solution`).  Results and derivatives are
those of the operators of :mod:`diabat.attention.coupled` and :mod:`diabat.attention.windows`, which second derivatives
use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.attention.bridge import GradientBridge
from diabat.attention.normalisation import masked_softmax, normalised_weights
from diabat.attention.odds import log_odds, odds_fields
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
    """What one layer does, decided when it is built.

    Attributes:
        bridge: Its backend, with the estimator ``exact``; None without couplings, where P(s = +1) = sigmoid(2h).
        window: Positions that J is between.
        bandwidth: Largest distance of two coupled positions, or None.
        relative: J belongs to the last positions.
        odds: Weights are those of odds.
        causal: A query sees the keys up to its own position.
    """

    bridge: GradientBridge | None
    window: int
    bandwidth: int | None
    relative: bool
    odds: bool
    causal: bool

    @property
    def takes(self) -> bool:
        """Whether the backend has a solution with its derivative outside autograd."""
        bridge = self.bridge
        if bridge is None:
            return True
        return bridge.estimator == "exact" and not bridge.draws and bridge.sampler.capabilities.solution

    def part(self, length: int) -> slice:
        """The positions of J that ``length`` keys have."""
        return slice(self.window - length, self.window) if self.relative else slice(length)


@dataclass(frozen=True, eq=False)
class Attended:
    """Result of a pass.

    Attributes:
        mixed: [B, H, Q, d].
        weights: [B, H, Q, T].
        fields: [B, H, Q, T], without a graph.
        couplings: [H, 1, T, T], without a graph, or None.
    """

    mixed: Tensor
    weights: Tensor
    fields: Tensor
    couplings: Tensor | None


class _Independent(Solution):
    """Spins without couplings."""

    def __init__(self, fields: Tensor, odds: bool) -> None:
        self._odds = odds
        self.result = 2 * fields if odds else torch.sigmoid(2 * fields)

    def gradient(self, v: Tensor, u: Tensor | None = None, *, pairs: bool) -> tuple[Tensor, Tensor | None]:
        """As in the base class."""
        return (2 * v if self._odds else 2 * v * self.result * (1 - self.result)), None


def suits(q: Tensor, k: Tensor, v: Tensor, pairs: Tensor | None) -> bool:
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
    seen: Tensor | None,
    *,
    slots: bool,
) -> Attended | None:
    """Attend with the last Q of S keys.

    Args:
        layer: What the layer does.
        q: [B, H, Q, d].
        k: [B, H, S, d].
        v: Likewise.
        pairs: J_jk for j < k, [H, P]; None without couplings.
        seen: Keys that are not padding, bool [B, S], or None.
        slots: Weights are those of slots, and Q = S; else those of the keys, S <= window.

    Returns:
        None if the backend has no solution for these problems, or they have few states.
    """
    queries, keys = q.shape[-2], k.shape[-2]
    window = min(layer.window, keys)
    if q.shape[:-1].numel() << window <= FEW_STATES:
        return None
    if seen is None:
        visible = _all_visible(queries, keys, window if slots else None, layer.causal)
    elif slots:
        visible = visible_slots(keys, window, seen, q.device)
    else:
        visible = visible_keys(queries, keys, seen, q.device, causal=layer.causal)
    core = _Core(layer, q, k, pairs, visible, window if slots else None)
    if core.solution is None:
        return None
    mixed, weights = core.mixed(v)
    if core.differentiated or (torch.is_grad_enabled() and v.requires_grad):
        result: Any = _Attend.apply(q, k, v, pairs, core, mixed, weights)
        mixed, weights = result
    return Attended(mixed, weights, core.fields, core.couplings)


@lru_cache(maxsize=64)
def _all_visible(queries: int, keys: int, window: int | None, causal: bool) -> Tensor:
    device = torch.device("cpu")
    if window is not None:
        return visible_slots(keys, window, None, device)
    return visible_keys(queries, keys, None, device, causal=causal)


@lru_cache(maxsize=64)
def _pair_indices(window: int, bandwidth: int | None) -> tuple[Array, Array]:
    j, k = pair_indices(window, bandwidth)
    return j.numpy(), k.numpy()


@lru_cache(maxsize=64)
def _every_pair(batch: int, heads: int) -> Array:
    """Sequences and heads, int64 [B·H, 2]."""
    return np.stack(np.divmod(np.arange(batch * heads), heads), 1)


class _Core:
    """One pass: what both directions need."""

    def __init__(
        self,
        layer: FusedLayer,
        q: Tensor,
        k: Tensor,
        pairs: Tensor | None,
        visible: Tensor,
        window: int | None,
    ) -> None:
        from diabat.attention.fused_kernel import Slots, scores

        self.layer, self.window, self.visible = layer, window, visible
        batch, heads, queries, features = q.shape
        self._every = _every_pair(batch, heads)
        self._work = batch * heads * queries * features * visible.shape[-1]
        self._seen = np.ascontiguousarray(visible.numpy()).reshape(-1, *visible.shape[-2:])
        self._slots = Slots(self._seen, window is not None, 1 / math.sqrt(features), layer.odds)
        self.differentiated = torch.is_grad_enabled() and (
            q.requires_grad or k.requires_grad or (pairs is not None and pairs.requires_grad)
        )
        self.fields = q.new_empty(batch, heads, queries, visible.shape[-1])
        self._run(scores, _rows(q), _rows(k), self.fields.numpy())
        self.couplings = None if pairs is None else _matrices(layer, pairs.detach(), visible.shape[-1])
        self.solution = self._solved()

    def _solved(self) -> Solution | None:
        bridge, odds = self.layer.bridge, self.layer.odds
        if bridge is None:
            return _Independent(self.fields, odds)
        problem = Ising(self.fields, self.couplings, self.visible, check=False)
        return bridge.sampler.solution(problem, odds=odds, differentiated=self.differentiated)

    def _run(self, kernel: Any, *arrays: Any) -> None:
        threads = min(torch.get_num_threads(), 1 + self._work // _WORK_PER_THREAD)
        if threads == 1:
            kernel(self._every, self._slots, *arrays)
            return
        run_parts(
            equal_ranges(len(self._every), threads),
            lambda part: None,
            lambda part, none: kernel(self._every[part], self._slots, *arrays),
        )

    def mixed(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Mixed values [B, H, Q, d], and weights [B, H, Q, T]."""
        from diabat.attention.fused_kernel import mixed

        assert self.solution is not None
        batch, heads, queries, features = (*self.fields.shape[:3], v.shape[-1])
        weights, out = torch.empty_like(self.fields), v.new_empty(batch, queries, heads, features)
        found = self.solution.result.numpy()
        self._run(mixed, _least(v), found, _rows(v), weights.numpy(), out.numpy())
        return out.transpose(1, 2), weights

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
        g = torch.zeros_like(q) if g is None else g
        more = self.fields.new_empty(0, 0, 0, 0) if extra is None else extra.contiguous()
        slope, (dq, dk, dv) = torch.empty_like(self.fields), (np.empty_like(_rows(t)) for t in (q, k, v))
        found = self.solution.result.numpy()
        self._run(
            mixed_backward, _least(v), found, _rows(v), weights.numpy(), _rows(g), more.detach().numpy(),
            slope.numpy(), dv,
        )  # fmt: skip
        if not self.differentiated:
            return None, None, torch.from_numpy(dv).transpose(1, 2), None
        dh, dJ = self.solution.gradient(slope, pairs=pairs is not None and pairs.requires_grad)
        self._run(scores_backward, self.fields.numpy(), dh.numpy(), _rows(q), _rows(k), dq, dk)
        return (
            *(torch.from_numpy(d).transpose(1, 2) for d in (dq, dk, dv)),
            None if dJ is None or pairs is None else _of_pairs(self.layer, dJ, pairs),
        )

    def by_operators(self, q: Tensor, k: Tensor, v: Tensor, pairs: Tensor | None) -> tuple[Tensor, Tensor]:
        """Both results by operators that autograd differentiates again."""
        layer, visible = self.layer, self.visible
        q = q / math.sqrt(q.shape[-1])
        scores = q @ k.mT if self.window is None else window_scores(q, k, self.window)
        J = None
        if pairs is not None:
            part = layer.part(scores.shape[-1])
            J = pack_couplings(pairs, layer.window, layer.bandwidth)[:, None, part, part]
        if layer.odds:
            h = odds_fields(scores, visible)
            odds = 2 * h if layer.bridge is None else log_odds(layer.bridge, h, J, visible, None)
            weights = masked_softmax(odds, visible)
        else:
            alpha = torch.sigmoid(2 * scores) if layer.bridge is None else layer.bridge(scores, J, visible)
            weights = normalised_weights(alpha, visible)
        return weights @ v if self.window is None else window_mix(weights, v, self.window), weights


class _Attend(torch.autograd.Function):
    """(q, k, v, pairs, their pass) -> mixed values, weights."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        pairs: Tensor | None,
        core: _Core,
        mixed: Tensor,
        weights: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Take what the pass has computed."""
        ctx.core = core
        ctx.set_materialize_grads(False)
        mixed, weights = mixed.view_as(mixed), weights.view_as(weights)
        ctx.save_for_backward(q, k, v, pairs, weights)
        return mixed, weights

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


def _rows(t: Tensor) -> Array:
    """Features [B, H, L, d] as [B, L, H, d], contiguous."""
    found: Array = t.detach().transpose(1, 2).contiguous().numpy()
    return found


def _least(v: Tensor) -> float:
    """What is added to probabilities, as in `normalised_weights`."""
    return float(torch.finfo(v.dtype).tiny ** 0.75)


def _matrices(layer: FusedLayer, pairs: Tensor, length: int) -> Tensor:
    """J of ``length`` positions, [H, 1, T, T]."""
    j, k = _pair_indices(layer.window, layer.bandwidth)
    values = pairs.numpy()
    J = np.zeros((len(values), 1, layer.window, layer.window), values.dtype)
    J[:, 0, j, k] = J[:, 0, k, j] = values
    part = layer.part(length)
    return torch.from_numpy(J[:, :, part, part])


def _of_pairs(layer: FusedLayer, dJ: Tensor, pairs: Tensor) -> Tensor:
    """dL/dpairs of dL/dJ, [H, 1, T, T]."""
    j, k = _pair_indices(layer.window, layer.bandwidth)
    part = layer.part(dJ.shape[-1])
    whole = np.zeros((len(pairs), layer.window, layer.window), dJ.numpy().dtype)
    both = dJ.numpy()[:, 0]
    whole[:, part, part] = both + both.transpose(0, 2, 1)
    return torch.from_numpy(whole[:, j, k])
