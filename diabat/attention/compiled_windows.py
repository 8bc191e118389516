"""Attention over small windows on the CPU by one compiled call per direction, from queries, keys and values on.

With the backend ``exact`` the call enumerates the states as well; other analytic backends with a solution
(:meth:`AnalyticSampler.solution`) stand between two calls.  Results and derivatives are those of the operators of
:mod:`diabat.attention.readout` and :mod:`diabat.attention.windows`, which second derivatives use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from diabat.attention.bridge import GradientBridge, refuse_inference
from diabat.attention.compiled_passes import CompiledPasses
from diabat.attention.couplings import PairSlots, pair_count, pair_numbers
from diabat.attention.readout import Readout, slot_weights
from diabat.attention.visible import Windows
from diabat.compute.loading import loaded
from diabat.compute.scratch import aligned_rows, lanes_of
from diabat.compute.threads import equal_ranges, run_parts
from diabat.ising import Ising
from diabat.samplers.answers import Solution
from diabat.samplers.exact.compiled import plan_of
from diabat.samplers.kept import kept

Array = NDArray[Any]
Far = tuple[Tensor, Tensor]
"""Mean value [B, H, Q, E_v] and mass [B, H, Q] of the keys before the window (:mod:`diabat.attention.streaming`)."""

_WORK_PER_THREAD, _MOST_SLOTS = 1 << 18, 16
_NO_FAR = [0] * 5
_NO_NUMBERS, _NO_TABLE = np.zeros((0, 0), np.int64), np.zeros(8, np.int64)
_NO_PARTS = {np.dtype(real): np.empty((0, 0, 0), real) for real in (np.float32, np.float64)}


class WindowLaw(NamedTuple):
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

    def solve(self, J: Tensor | None, visible: Tensor, fields: Tensor) -> Tensor:
        """Log-odds by operators."""
        return 2 * fields if self.bridge is None else self.bridge.log_odds(fields, J, visible, odds=self.odds)


class Plan:
    """What depends on shapes and the mask alone.

    Args:
        sizes: B, H, Q, E, the heads and the number of keys, and the numbers of a value.
        slots: Of pairs that have a coupling, as arguments of `couplings.pair_numbers`; None without couplings.
        odds, far, noise: As in `window_kernel.Slots`.
        windows: The slots; a rule.
        dtype: Precision.
        enumerated: Whether ``exact`` is the backend.

    Attributes:
        pair_at: Which of the P pairs is at j, k of J, int64 [T, T]; P where there is none.
    """

    def __init__(
        self, sizes: tuple[int, ...], slots: PairSlots | None, odds: bool, far: bool, noise: bool, windows: Windows,
        dtype: torch.dtype, enumerated: bool,
    ) -> None:  # fmt: skip
        batch, heads, queries, features, shared, keys, width = sizes
        pairs = 0
        self.pair_at, self.pairs_of = torch.zeros(0, 0, dtype=torch.int64), _NO_NUMBERS
        if slots is not None:
            pairs = pair_count(*slots[:2])
            self.pair_at = pair_numbers(*slots, torch.device("cpu"))
            self.pairs_of = self.pair_at.numpy()
        filled = np.ascontiguousarray(windows.filled.numpy()).view(np.uint8)
        filled = filled[None, None] if filled.ndim == 2 else filled
        self.size = size = filled.shape[3]
        real: Any = np.float32 if dtype == torch.float32 else np.float64
        lanes = lanes_of(real)
        rows = -(-size // lanes)
        filled = np.pad(filled, ((0, 0), (0, 0), (0, 0), (0, rows * lanes - size)))
        starts = np.full((1, 1), windows.first, np.int64)
        if windows.starts is not None:
            starts = np.ascontiguousarray(windows.starts.numpy())
        elif windows.moves:
            starts = np.arange(1 - size, queries + 1 - size, dtype=np.int64)[None]
        self.slots, self.numbers = (batch, heads, queries, size), batch * heads * queries
        distances = (*_distances(filled, 3), *_distances(starts, 2))
        flags = (int(odds), int(far), int(noise))
        self.shape = np.array(
            (*self.slots, features, width, heads // shared, pairs, *flags, *distances, keys), np.int64
        )
        self.by_token = _by_token(batch, heads, queries, width)
        self.of_queries, self.of_keys, self.of_values = (
            _by_token(batch, *shape)
            for shape in ((heads, queries, features), (shared, keys, features), (shared, keys, width))
        )
        self.filled, self.starts, self.far = filled.reshape(-1), starts.reshape(-1), far
        self.zero, self.spins = real(0), None
        if enumerated and pairs and size <= _MOST_SLOTS:
            fields, J = torch.empty((), dtype=dtype).expand(self.slots), torch.empty((), dtype=dtype)
            problem = Ising(fields, J.expand(heads, 1, size, size), windows.filled, check=False)
            spins = plan_of(problem)
            # The sums for dL/dJ of all problems are kept at once.
            self.spins = spins if spins is not None and spins.blocks == spins.step else None
        spins, number = self.spins, self.numbers
        self.kernel = loaded("diabat.attention.window_kernel")
        self.gradient_kernel = loaded("diabat.attention.window_gradient_kernel")
        self.table = (_NO_TABLE, 0.0, 0.0) if spins is None else (spins.table, *spins.limits)
        self.least, self.blocks = (0.0, 0) if spins is None else (spins.least, spins.blocks)
        self._scratch = rows if spins is None else spins.memory_rows
        self.state = number * (3 * size + 2 * far + 2 * (size + 1)) + heads * size * size
        self.group = heads // shared
        threads = 1 + number * size * features // _WORK_PER_THREAD
        self.threads = max(threads, 1 if spins is None else spins.threads)

    def scratch(self) -> Array:
        """Memory of one thread."""
        return aligned_rows(self._scratch, self.zero.dtype)


def _distances(array: Array, axes: int) -> list[int]:
    """Distances of neighbours in the first axes, in numbers; 0 where an axis has one."""
    sizes, strides = array.shape[:axes], array.strides[:axes]
    return [0 if n == 1 else d // array.itemsize for n, d in zip(sizes, strides, strict=True)]


def attend(
    law: WindowLaw, q: Tensor, k: Tensor, v: Tensor, pairs: Tensor | None, slots: PairSlots | None,
    windows: Windows, far: Far | None, *, dropout: float = 0.0, need_weights: bool = False,
    record: Callable[[Tensor, Tensor | None], None] | None = None,
) -> tuple[Tensor, Tensor | None] | None:  # fmt: skip
    """Attend with Q queries to the slots of their windows, and to the keys before them.

    Heads are read where they are, also as views of tokens [B, L, H·d]: q [B, H, Q, E], k [B, H_kv, S, E] and v
    [B, H_kv, S, E_v], with H a multiple of H_kv.

    ``pairs`` are J of pairs of slots, [H, P], and ``slots`` those slots (`couplings.WindowCouplings.slots`); both None
    without couplings.  ``windows`` are slots by a rule: keys that stand together, from one of each query on.  ``far``
    is None for no keys before the window, or to compute them here: for odds of a single query without derivatives.
    Dropout is that of the weights of slots, and draws the numbers that torch's dropout draws.  ``record`` is called
    with the fields, [B, H, Q, T], and J, [H, 1, T, T] or None, before a backend may refuse them.

    Returns:
        Mixed values [B, H, Q, E_v], and weights of slots [B, H, Q, T], or [B, H, Q, T + 1] with those of the keys
        before them; or None if the windows are no rule, there are no numbers, or the backend has no solution for
        these problems.
    """
    if not (q.numel() and v.numel()):
        return None
    if q.is_inference() or (pairs is not None and pairs.is_inference()):
        refuse_inference(q, pairs)
    before = 0
    if not (windows.at is None or windows.starts is not None) or windows.bias is not None:
        return None
    if q.shape[2] == 1 and windows.at is None:  # one plan for all tokens that are decoded
        shown = slice(windows.first, windows.first + windows.filled.shape[-1])
        k, v, windows = k[..., shown, :], v[..., shown, :], windows._replace(first=0)
    if windows.far is not None and far is None:
        far = q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3])
        before = int(windows.far.first)
    enumerated = law.bridge is not None and law.bridge.enumerates
    sizes = (*q.shape, *k.shape[1:3], v.shape[3])
    plan = _plan(sizes, slots, law.odds, far is not None, dropout > 0, q.dtype, enumerated, _Key(windows))
    mean, mass = (None, None) if far is None else far
    call = _Call(law, plan, windows, dropout, need_weights, before)
    if not call.solve(q, k, v, pairs, mean, mass, record):
        return None
    result: tuple[Tensor, Tensor | None] = call(q, k, v, pairs, mean, mass)
    return result


class _Key:
    """Windows by their rule, or by their content, as a key."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self._content: Any = windows.rule
        if windows.rule is None:
            mask, starts = windows.filled.numpy(), windows.starts
            own = None if starts is None else starts.numpy().tobytes()
            self._content = windows.moves, windows.first, mask.shape, mask.tobytes(), own

    def __hash__(self) -> int:
        return hash(self._content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._content == other._content


@kept(lambda sizes, *rest: 64 * sizes[0] * sizes[1] * sizes[2] + 16 * rest[-1].windows.filled.numel())
def _plan(
    sizes: tuple[int, ...], slots: PairSlots | None, odds: bool, far: bool, noise: bool, dtype: torch.dtype,
    enumerated: bool, key: _Key,
) -> Plan:  # fmt: skip
    return Plan(sizes, slots, odds, far, noise, key.windows, dtype, enumerated)


class _Call(CompiledPasses):
    """One call: what its passes need, and what the backward pass needs of the forward pass beside tensors."""

    def __init__(
        self, law: WindowLaw, plan: Plan, windows: Windows, dropout: float, need_weights: bool, before: int,
    ) -> None:  # fmt: skip
        self._law, self._plan, self._windows = law, plan, windows
        self._dropout, self._need_weights, self._before = dropout, need_weights, before
        self._solution: Solution | None = None
        self._noise: Tensor | None = None

    def solve(self, *terms: Any) -> bool:
        """Compute the results of q, k, v, pairs, mean and mass, and record; False if the backend has no solution."""
        *tensors, record = terms
        q, pairs = tensors[0], tensors[3]
        plan, kernel = self._plan, self._plan.kernel
        self._out = q.new_empty_strided(*plan.by_token)
        self._state = np.empty(plan.state, plan.zero.dtype)
        self._lost = np.zeros(0 if plan.spins is None else plan.spins.problems, np.int8)
        if record is None and (plan.spins is not None or pairs is None):
            self._draw(q)
            if not self._forward(kernel.SCORES | kernel.SPINS | kernel.MIX, tensors):
                return True
        else:
            self._forward(kernel.SCORES, tensors)
        fields, J = self.fields, self.couplings if pairs is not None else None
        if record is not None:
            record(fields, J)
        if not self._solve_by(fields, J):
            return False
        self._draw(q)
        self._forward(kernel.MIX, tensors)
        return True

    def _draw(self, q: Tensor) -> None:
        """The factors of dropout, once."""
        if self._dropout > 0 and self._noise is None:
            self._noise = F.dropout(q.new_ones(self._plan.slots), self._dropout)

    def _solve_by(self, fields: Tensor, J: Tensor | None) -> bool:
        """Log-odds by the solution of the backend; False if it has none."""
        bridge = self._law.bridge
        if J is None or bridge is None or bridge.analytic is None:
            self._part(1)[:] = 2 * fields.numpy().reshape(-1)
            return True
        problem = Ising(fields, J, self._windows.filled, check=False)
        self._solution = bridge.analytic.solution(problem, odds=True)
        if self._solution is None:
            return False
        self._part(1)[:] = self._solution.result.numpy().reshape(-1)
        return True

    def _part(self, which: int) -> Array:
        """Fields (0), log-odds (1) or weights (2) in the state."""
        slots = self._plan.numbers * self._plan.size
        more = self._plan.numbers if which == 2 and self._plan.far else 0
        return self._state[which * slots : (which + 1) * slots + more]

    @property
    def fields(self) -> Tensor:
        """The fields, [B, H, Q, T]."""
        return torch.from_numpy(self._part(0).reshape(self._plan.slots))

    @property
    def couplings(self) -> Tensor:
        """J, [H, 1, T, T]."""
        plan = self._plan
        heads, size = plan.slots[1], plan.size
        start = plan.numbers * (3 * size + 2 * plan.far)
        values = self._state[start : start + heads * size * size]
        return torch.from_numpy(values.reshape(heads, 1, size, size))

    def _places(self, *tensors: Any) -> tuple[list[int], list[Any]]:
        """Where the kernel finds the tensors of the forward pass, and distances in them; and what keeps copies."""
        q, k, v, pairs, mean, mass = tensors
        q, k, v = _readable(q), _readable(k), _readable(v)
        places = [q.data_ptr(), *q.stride()[:3], k.data_ptr(), *k.stride()[:3], v.data_ptr(), *v.stride()[:3]]
        if pairs is not None:
            pairs = pairs.contiguous()
        places.append(0 if pairs is None else pairs.data_ptr())
        if mean is None or mass is None:
            places += _NO_FAR
        else:
            mean, mass = _readable(mean), mass.contiguous()
            places += [mean.data_ptr(), *mean.stride()[:3], mass.data_ptr()]
        places.append(0 if self._noise is None else self._noise.data_ptr())
        return places, [q, k, v, pairs, mean, mass]

    def _forward(self, stages: int, terms: Any) -> bool:
        """Run stages; returns whether a problem is beyond the range of the enumeration."""
        plan = self._plan
        places, _held = self._places(*terms)
        where = np.array([*places, self._out.data_ptr()], np.int64)

        def run(stages: int, begin: int, end: int, first: int, last: int, memory: Array) -> int:
            beyond: int = plan.kernel.forward(
                stages, begin, end, first, last, plan.zero, self._law.scale, plan.shape, plan.filled, plan.starts,
                plan.pairs_of, where, self._state, *plan.table, plan.least, self._lost, self._before, memory,
            )  # fmt: skip
            return beyond

        return self._in_stages(stages, (plan.kernel.SCORES, plan.kernel.SPINS, plan.kernel.MIX), run)

    def _in_stages(self, stages: int, order: tuple[int, ...], run: Callable[..., Any]) -> bool:
        """One call on one thread; else one after the other, each on all threads.

        Returns:
            Whether a problem is beyond the range of the enumeration, if this is one of the stages.
        """
        plan, spins = self._plan, self._plan.spins
        number = plan.slots[0] * plan.slots[1]
        threads = min(torch.get_num_threads(), plan.threads) if plan.threads > 1 else 1
        if threads == 1:
            memory = plan.scratch() if spins is None else spins.borrowed()
            beyond = run(stages, 0, number, 0, plan.blocks, memory)
            if spins is not None:
                spins.give_back(memory)
            return bool(beyond)
        for stage in order:
            if stage & stages:
                by_block = stage == plan.kernel.SPINS and spins is not None
                size = 1 if by_block else plan.group
                run_parts(
                    equal_ranges(plan.blocks if by_block else number // size, threads),
                    lambda part: plan.scratch(),
                    partial(_run_part, run, stage, size),
                )
                if by_block and np.count_nonzero(self._lost):
                    return True
        return False

    def results(self, *terms: Any) -> tuple[Tensor, Tensor | None]:
        """Mixed values [B, H, Q, E_v]; and weights after dropout, [B, H, Q, T or T + 1], if they are needed."""
        shown = None
        if self._need_weights:
            columns = self._plan.size + self._plan.far
            weights = self._part(2).reshape(*self._plan.slots[:3], columns)
            shown = self._dropped(torch.from_numpy(weights))
        out = self._out
        del self._out  # which would hold this call: it belongs to the graph from here on
        return out, shown

    def _dropped(self, weights: Tensor) -> Tensor:
        """Weights after dropout; that of far keys is in their mean."""
        if self._noise is None:
            return weights
        return weights * F.pad(self._noise, (0, weights.shape[-1] - self._noise.shape[-1]), value=1.0)

    def gradient(self, terms: Any, wanted: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        """Derivatives by q, k, v, pairs, mean and mass, for cotangents of both results."""
        g, extra = cotangents
        q, _, v, pairs, mean, mass = terms
        plan, real = self._plan, self._plan.zero.dtype
        batch, heads, queries, _ = plan.slots
        g = v.new_zeros(batch, heads, queries, v.shape[3]) if g is None else _readable(g)
        extra = None if extra is None else extra.contiguous()
        dq, dk, dv = (q.new_empty_strided(*s) for s in (plan.of_queries, plan.of_keys, plan.of_values))
        dmean = None if mean is None else q.new_empty_strided(*plan.by_token)
        dmass = None if mass is None else torch.empty_like(mass, memory_format=torch.contiguous_format)
        places, _held = self._places(*terms)
        places += [0, g.data_ptr(), *g.stride()[:3], 0 if extra is None else extra.data_ptr()]
        places += [dv.data_ptr(), *dv.stride()[:3]]
        places += [0 if t is None else t.data_ptr() for t in (dmean, dmass)]
        places += [dq.data_ptr(), dk.data_ptr(), *dk.stride()[:3]]
        through = wanted[0] or wanted[1] or wanted[3] or wanted[5]
        of_J = np.zeros(pairs.shape, real) if wanted[3] and pairs is not None else None
        self._backward(places, np.empty((2, *plan.slots), real), of_J, through=through)
        if not through:
            return None, None, dv, None, dmean, None
        of_pairs = None if of_J is None else torch.from_numpy(of_J)
        return dq, dk, dv, of_pairs, dmean, dmass

    def _backward(self, places: list[int], slope: Array, of_J: Array | None, *, through: bool) -> None:
        """Run all stages; adds dL/dJ of the pairs, in one order on any number of threads."""
        plan, kernel, kernels = self._plan, self._plan.kernel, self._plan.gradient_kernel
        own = None if self._solution is not None or of_J is None else plan.spins
        sums = None if of_J is None or not through else np.zeros((plan.slots[1], plan.size, plan.size))
        where = np.array(places, np.int64)
        parts = own.borrowed_sums() if own is not None else _NO_PARTS[plan.zero.dtype]

        def run(stages: int, begin: int, end: int, first: int, last: int, memory: Array) -> None:
            kernels.backward(
                stages, begin, end, first, last, plan.zero, self._law.scale, plan.shape, plan.filled, plan.starts,
                where, self._state, *plan.table, self._lost, parts, slope, memory,
            )  # fmt: skip

        order = (kernel.MIX, kernel.SPINS, kernel.SCORES)
        if not through:
            self._in_stages(kernel.MIX, order, run)
        elif self._solution is None:
            self._in_stages(kernel.MIX | kernel.SPINS | kernel.SCORES, order, run)
        else:
            self._in_stages(kernel.MIX, order, run)
            dh, dJ = self._solution.gradient(torch.from_numpy(slope[0]), pairs=sums is not None)
            slope[1] = dh.numpy()
            if sums is not None and dJ is not None:
                sums += dJ.numpy().reshape(sums.shape)
            self._in_stages(kernel.SCORES, order, run)
        if sums is not None:
            blocks = 0 if own is None else own.blocks
            kernels.collect(blocks, plan.zero, plan.table[0], self._lost, parts, sums, plan.pairs_of, of_J)
        if own is not None:
            own.give_back_sums(parts)

    def by_operators(self, *terms: Any) -> tuple[Tensor, Tensor]:
        """As in the base class."""
        q, k, v, pairs, mean, mass = terms
        law, windows = self._law, self._windows
        J = None if pairs is None else F.pad(pairs, (0, 1))[:, None, self._plan.pair_at]
        scores = windows.scores(q * law.scale, k)
        solve = partial(law.solve, J, windows.filled)
        weights = slot_weights(law.readout, scores, windows.filled, mass, solve)
        weights = self._dropped(weights)
        if mean is None:
            return windows.mixed(weights, v), weights
        return windows.mixed(weights[..., :-1], v) + weights[..., -1:] * mean, weights


def _run_part(run: Callable[..., None], stage: int, size: int, part: slice, memory: Array) -> None:
    """Run a stage for a part of the pairs, or of the blocks, in groups of ``size``."""
    begin, end = part.start * size, part.stop * size
    run(stage, begin, end, begin, end, memory)


def _readable(t: Tensor) -> Tensor:
    """Features [B, H, L, d] whose numbers are next to each other, without a copy if they are; the caller keeps them."""
    return t if t.stride(-1) == 1 and not t.is_neg() else t.detach().resolve_neg().contiguous()


def _by_token(batch: int, heads: int, length: int, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and distances of [B, H, L, d] whose numbers stand as those of [B, L, H, d]."""
    return (batch, heads, length, size), (length * heads * size, size, heads * size, 1)
