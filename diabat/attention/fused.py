"""Attention over small windows in one autograd function on the CPU, from queries, keys and values to mixed values.

Between the compiled passes stands one solution of the sampler (:meth:`Sampler.solution`).  Results and derivatives are
those of the operators of :mod:`diabat.attention.readout` and :mod:`diabat.attention.windows`, which second derivatives
use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from diabat.attention.bridge import GradientBridge, are_small, refuse_inference
from diabat.attention.compiled_passes import CompiledPasses
from diabat.attention.readout import Readout, slot_weights
from diabat.attention.visible import Windows
from diabat.compute.loading import loaded
from diabat.compute.scratch import lanes_of
from diabat.compute.threads import equal_ranges, run_parts
from diabat.ising import Ising
from diabat.samplers.answers import Solution

Array = NDArray[Any]
Far = tuple[Tensor, Tensor]
"""Mean value [B, H, Q, E_v] and mass [B, H, Q] of the keys before the window (:mod:`diabat.attention.streaming`)."""

_WORK_PER_THREAD, _MOST_SLOTS = 1 << 18, 12


class FusedLaw(NamedTuple):
    """What is computed, but for the tensors.

    Attributes:
        bridge: Sampler and estimator; None without couplings, where log-odds are 2h.
        readout: One that we ship.
        scale: Factor of q·k.
    """

    bridge: GradientBridge | None
    readout: Readout
    scale: float

    @property
    def odds(self) -> bool:
        """Whether weights are odds, else probabilities."""
        return bool(self.readout.odds)

    def solution(self, fields: Tensor, J: Tensor | None, visible: Tensor) -> tuple[Solution | None, bool]:
        """P(s = +1), or log-odds where True: of odds, or if all P of a query are small; None from some backends."""
        found = self._solution(fields, J, visible, self.odds)
        if found is None or self.odds or not are_small(found.result, visible):
            return found, self.odds
        return self._solution(fields, J, visible, True), True

    def _solution(self, fields: Tensor, J: Tensor | None, visible: Tensor, odds: bool) -> Solution | None:
        if self.bridge is None:
            return _Independent(fields, odds)
        return self.bridge.sampler.solution(Ising(fields, J, visible, check=False), odds=odds)

    def solve(self, J: Tensor | None, visible: Tensor, fields: Tensor) -> Tensor:
        """Log-odds by operators."""
        return 2 * fields if self.bridge is None else self.bridge.log_odds(fields, J, visible, odds=self.odds)


class _Independent(Solution):
    """Spins without couplings."""

    def __init__(self, fields: Tensor, odds: bool) -> None:
        self._odds = odds
        self.result = 2 * fields if odds else torch.sigmoid(2 * fields)

    def gradient(self, v: Tensor, u: Tensor | None = None, *, pairs: bool) -> tuple[Tensor, Tensor | None]:
        """As in the base class."""
        return (2 * v if self._odds else 2 * v * self.result * (1 - self.result)), None


def attend(
    law: FusedLaw,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pairs: Tensor | None,
    numbers: Tensor | None,
    windows: Windows,
    far: Far | None,
    *,
    dropout: float = 0.0,
    need_weights: bool = False,
    record: Callable[[Tensor, Tensor | None], None] | None = None,
) -> tuple[Tensor, Tensor | None] | None:
    """Attend with Q queries to the slots of their windows, and to the keys before them.

    Heads are read where they are, also as views of tokens [B, L, H·d].

    Args:
        law: What is computed.
        q: [B, H, Q, E].
        k: [B, H_kv, S, E], with H a multiple of H_kv.
        v: [B, H_kv, S, E_v].
        pairs: J of pairs of slots, [H, P]; None without couplings.
        numbers: Which of the pairs is at j, k of J, as `couplings.pair_numbers`; None without couplings.
        windows: Slots by a rule: keys that stand together, from one of each query on.
        far: Mean value and mass of the keys before the window; None for none.
        dropout: Probability of dropout of the weights of slots; it draws the numbers that torch's dropout draws.
        need_weights: Also return the weights.
        record: Called with the fields, [B, H, Q, T], and J, [H, 1, T, T] or None, before a backend may refuse them.

    Returns:
        Mixed values [B, H, Q, E_v], and weights of slots [B, H, Q, T], or [B, H, Q, T + 1] with those of the keys
        before them; or None if the windows are no rule, there are no numbers, or the backend has no solution for
        these problems.
    """
    by_rule = windows.at is None or windows.starts is not None
    if not by_rule or windows.bias is not None or not (q.numel() and v.numel()):
        return None
    if q.is_inference() or (pairs is not None and pairs.is_inference()):
        refuse_inference(q, pairs)
    call = _Call(law, q, k, windows, numbers)
    mean, mass = (None, None) if far is None else far
    J = call.fill(q, k, pairs, mass)
    if record is not None:
        record(call.fields, J)
    solution, logits = law.solution(call.fields, J, windows.filled)
    if solution is None:
        return None
    call.solution, call.need_weights, call.slots = solution, need_weights, call.slots._replace(logits=logits)
    if dropout > 0:
        call.noise = F.dropout(torch.ones_like(call.fields), dropout)
    found: tuple[Tensor, Tensor | None] = call(q, k, v, pairs, mean, mass)
    return found


def attend_once(
    law: FusedLaw, q: Tensor, k: Tensor, v: Tensor, pairs: Tensor, numbers: Tensor, *, far: bool
) -> Tensor | None:
    """Mixed values [B, H, 1, E_v] of one query without derivatives, whose slots are the last T keys.

    Args:
        law: What is computed; the backend is exact.
        q: [B, H, 1, E], float32 or float64.
        k: [B, H_kv, S, E], with H a multiple of H_kv.
        v: [B, H_kv, S, E_v].
        pairs: J of pairs of slots, [H, P].
        numbers: As in `attend`, [T, T].
        far: Keys before the window are spins without couplings; else not visible.

    Returns:
        None if a window has too many states, or is too strong for a sum of products.
    """
    (batch, heads, _, features), (keys, width), size = q.shape, v.shape[2:], len(numbers)
    if size > _MOST_SLOTS:
        return None
    terms, number = [_readable(t) for t in (q, k, v)], batch * heads
    pairs, lost = pairs.contiguous(), np.zeros(number, np.bool_)
    window = _window(law, q.dtype, far, heads, heads // k.shape[1], size, features, width)
    out, kernel = q.new_empty(batch, heads, 1, width), loaded("diabat.attention.window_step").attend
    places = [_place(t) for t in terms]
    given = *places, pairs.data_ptr(), pairs.shape[1], numbers.numpy(), lost, out.data_ptr()
    threads = min(torch.get_num_threads(), 1 + number * keys * features // _WORK_PER_THREAD)
    run_parts(
        equal_ranges(number, threads),
        lambda part: q.new_empty(keys + window.lanes),
        lambda part, room: kernel(part.start, part.stop, window, keys, room.data_ptr(), *given),
    )
    return None if np.count_nonzero(lost) else out


@lru_cache(maxsize=64)
def _window(law: FusedLaw, dtype: torch.dtype, far: bool, *sizes: int) -> Any:
    """What a call of the kernel computes of one query."""
    real, (heads, groups, size, features, width) = np.float32 if dtype == torch.float32 else np.float64, sizes
    kind = np.dtype(real)
    return loaded("diabat.attention.window_step").Window(
        real(law.scale), law.odds, far, heads, groups, size, lanes_of(kind), features, width
    )


class _Call(CompiledPasses):
    """One call: what its passes need, and what the backward pass needs of the forward pass beside tensors.

    Attributes:
        fields: [B, H, Q, T].
        far: What kernels call so, [B, H, Q] or [0, 0, 0].
        solution: That of the fields.
        slots: What kernels know of slots.
        noise: Factors of dropout, [B, H, Q, T], or None.
        weights: Before dropout, [B, H, Q, T or T + 1].
    """

    fields: Tensor
    far: Array
    solution: Solution
    slots: Any
    noise: Tensor | None = None
    weights: Array
    need_weights: bool

    def __init__(self, law: FusedLaw, q: Tensor, k: Tensor, windows: Windows, numbers: Tensor | None) -> None:
        self._law, self._windows, self._numbers = law, windows, numbers
        kernels = self._kernels = loaded("diabat.attention.fused_kernel")
        batch, heads, queries, features = q.shape
        filled = np.ascontiguousarray(windows.filled.numpy())
        if filled.ndim == 2:
            filled = filled[None, None]
        size, group = filled.shape[3], heads // k.shape[1]
        self._shape = batch, heads, queries, size
        first = np.full((1, 1), windows.first, np.int64)
        if windows.starts is not None:
            first = windows.starts.numpy()
        elif windows.moves:
            first = np.arange(1 - size, queries + 1 - size, dtype=np.int64)[None]
        self.slots = kernels.Slots(filled, first, group, law.scale, law.odds, law.odds)
        threads = 1 + batch * heads * queries * size * features // _WORK_PER_THREAD
        self._threads = threads if threads == 1 else min(torch.get_num_threads(), threads)

    def fill(self, q: Tensor, k: Tensor, pairs: Tensor | None, mass: Tensor | None) -> Tensor | None:
        """Fields and what belongs to keys before the windows; the result is J, [H, 1, T, T] or None."""
        kernels, rows = self._kernels, _rows(q)
        dtype = rows.at.dtype
        fields, masses = np.empty(self._shape, dtype), _array(mass, 3, dtype)
        self.far = np.empty_like(masses)
        self._run(kernels.scores, torch.finfo(q.dtype).min / 2, rows, _rows(k), masses, fields, self.far)
        self.fields = torch.from_numpy(fields)
        if pairs is None or self._numbers is None:
            return None
        J = np.empty((len(pairs), 1, *self._numbers.shape), dtype)
        # A copy: torch never again resizes what NumPy has seen, and FSDP resizes parameters.
        numbers = pairs.detach().clone(memory_format=torch.contiguous_format).numpy()
        kernels.pack(numbers, self._numbers.numpy(), J)
        return torch.from_numpy(J)

    def _run(self, kernel: Any, *arrays: Any) -> None:
        """Run a kernel on all pairs of a sequence and a head; heads that share keys are in one part."""
        number, group = self._shape[0] * self._shape[1], self.slots.group
        if self._threads == 1:
            kernel(0, number, self.slots, *arrays)
            return
        run_parts(
            equal_ranges(number // group, self._threads),
            lambda part: None,
            lambda part, none: kernel(part.start * group, part.stop * group, self.slots, *arrays),
        )

    def _mixing(self, v: Tensor, mean: Tensor | None) -> tuple[Any, ...]:
        """What both directions of mixing need: probabilities or log-odds, values, keys before the windows, noise."""
        found = self.solution.result.numpy()
        no_rows = self._kernels.Rows(np.empty((0, 0), found.dtype), 0, 0, 0)
        means = no_rows if mean is None else _rows(mean)
        return found, _rows(v), self.far, means, _array(self.noise, 4, found.dtype)

    def results(self, *terms: Any) -> tuple[Tensor, Tensor | None]:
        """Mixed values [B, H, Q, E_v]; and weights after dropout, [B, H, Q, T or T + 1], if they are needed."""
        _, _, v, _, mean, _ = terms
        given, (batch, heads, queries, size) = self._mixing(v, mean), self._shape
        dtype = given[0].dtype
        self.weights = np.empty((batch, heads, queries, size + (mean is not None)), dtype)
        out = np.empty((batch, queries, heads, v.shape[3]), dtype)
        self._run(self._kernels.mixed, *given, self.weights, out)
        shown = self._dropped(torch.from_numpy(self.weights)) if self.need_weights else None
        return _heads(out), shown

    def _dropped(self, weights: Tensor) -> Tensor:
        """Weights after dropout; that of far keys is in their mean."""
        if self.noise is None:
            return weights
        return weights * F.pad(self.noise, (0, weights.shape[-1] - self.noise.shape[-1]), value=1.0)

    def gradient(self, terms: Any, wanted: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        """Derivatives by q, k, v, pairs, mean and mass, for cotangents of both results."""
        g, extra = cotangents
        q, k, v, pairs, mean, _ = terms
        kernels, given = self._kernels, self._mixing(v, mean)
        found, dtype = given[0], given[0].dtype
        batch, heads, queries, _ = self._shape
        rows_g = _rows(v.new_zeros(batch, heads, queries, v.shape[3]) if g is None else g)
        slope, dv, dfar = np.empty_like(found), np.zeros(_by_token(v), dtype), np.empty_like(self.far)
        dmean = np.empty((0, 0, 0, 0) if mean is None else _by_token(mean), dtype)
        more = _array(extra, 4, dtype)
        self._run(kernels.mixed_backward, *given, self.weights, rows_g, more, slope, dv, dfar, dmean)
        of_v, of_mean = _heads(dv), None if mean is None else _heads(dmean)
        if not (wanted[0] or wanted[1] or wanted[3] or wanted[5]):
            return None, None, of_v, None, of_mean, None
        dh, dJ = self.solution.gradient(torch.from_numpy(slope), pairs=wanted[3])
        dq, dk = np.empty(_by_token(q), dtype), np.zeros(_by_token(k), dtype)
        fields, slope = self.fields.numpy(), dh.contiguous().numpy()
        self._run(kernels.scores_backward, fields, slope, self.far, dfar, _rows(q), _rows(k), dq, dk)
        of_pairs = None
        if dJ is not None and self._numbers is not None:
            sums = np.zeros(pairs.shape, dtype)
            kernels.unpack(dJ.contiguous().numpy(), self._numbers.numpy(), sums)
            of_pairs = torch.from_numpy(sums)
        of_mass = None if mean is None else torch.from_numpy(dfar)
        return _heads(dq), _heads(dk), of_v, of_pairs, of_mean, of_mass

    def by_operators(self, *terms: Any) -> tuple[Tensor, Tensor]:
        """As in the base class."""
        q, k, v, pairs, mean, mass = terms
        law, windows = self._law, self._windows
        J = None if pairs is None else F.pad(pairs, (0, 1))[:, None, self._numbers]
        scores = windows.scores(q * law.scale, k)
        solve = partial(law.solve, J, windows.filled)
        weights = slot_weights(law.readout, scores, windows.filled, mass, solve)
        weights = self._dropped(weights)
        if mean is None:
            return windows.mixed(weights, v), weights
        return windows.mixed(weights[..., :-1], v) + weights[..., -1:] * mean, weights


def _readable(t: Tensor) -> Tensor:
    """Features [B, H, L, d] for `_place`, without a copy if they are next to each other; the caller keeps them."""
    return t if t.stride(-1) == 1 and not t.is_neg() else t.detach().resolve_neg().contiguous()


def _place(t: Tensor) -> Any:
    """The place of `_readable` features."""
    batch, head, row, _ = t.stride()
    return loaded("diabat.attention.window_step").Tokens(t.data_ptr(), batch, head, row)


def _array(numbers: Tensor | None, dimensions: int, dtype: Any) -> Array:
    """Numbers for kernels, which take none at all in place of what is not there."""
    return np.empty((0,) * dimensions, dtype) if numbers is None else numbers.detach().contiguous().numpy()


def _rows(states: Tensor) -> Any:
    """Numbers [B, H, L, d] as rows of kernels, where they are if each d of them stand together."""
    batch, heads, length, size = states.shape
    states = states.detach() if states.requires_grad else states
    b, h, i, one = states.stride()
    if (one != 1 and size > 1) or b % size or h % size or i % size:
        states = states.contiguous()
        b, h, i, _ = states.stride()
    number = 1 + ((batch - 1) * b + (heads - 1) * h + (length - 1) * i) // size
    rows = states.as_strided((number, size), (size, 1)).numpy()
    return loaded("diabat.attention.fused_kernel").Rows(rows, b // size, h // size, i // size)


def _by_token(states: Tensor) -> tuple[int, int, int, int]:
    """The shape [B, L, H, d] of numbers [B, H, L, d]."""
    batch, heads, length, size = states.shape
    return batch, length, heads, size


def _heads(numbers: Array) -> Tensor:
    """Numbers [B, L, H, d] as [B, H, L, d]."""
    return torch.from_numpy(numbers).transpose(1, 2)
