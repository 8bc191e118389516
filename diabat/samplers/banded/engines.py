"""Engines of the ``banded`` backend: compiled code on the CPU, torch operations on any device."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.compute.counter_random import stream_keys, uniforms
from diabat.compute.memory import require_memory
from diabat.samplers.banded import native as band_native
from diabat.samplers.banded import torch as band_torch
from diabat.samplers.banded.native import BandProblems, fitting
from diabat.samplers.derivatives import smooth_gradient
from diabat.samplers.folding import refuse_batched_cotangent

Arithmetic = Literal["float32", "float64", "logarithms"]
_KINDS: tuple[Arithmetic, ...] = get_args(Arithmetic)
_FLOAT64, _LOGARITHMS = 1, 2
# Of the autograd graph of second derivatives, forward and backward.
_NUMBERS_PER_STATE = 30


class Band:
    """Sums over banded problems: by compiled code, or by torch operations on the device of the fields.

    Compiled code works in float32 or float64, as the fields; problems whose messages exceed that range, and only these,
    take float64, or the logarithms of torch in float64, whose queries are divided into parts that fit the budget.
    Problems are tensors without an autograd graph, and results have the dtype of the fields.

    Args:
        name: ``native`` or ``torch``.
        budget_bytes: Working memory.
    """

    def __init__(self, name: Literal["native", "torch"], budget_bytes: int) -> None:
        self.name, self.budget_bytes = name, budget_bytes

    def arithmetic(self, problems: BandProblems) -> Arithmetic:
        """The narrowest type of numbers that holds all messages; logarithms cannot overflow."""
        return _KINDS[int(self._needed(problems, 0).max())]

    def marginals(self, problems: BandProblems) -> tuple[Tensor, Tensor]:
        """P(s = +1) [N, n] and log Z [N]."""
        p, log_z = torch.zeros_like(problems.fields), problems.fields.new_zeros(len(problems.fields))
        for kind, rows, _, part in self._parts(problems):
            if kind == _LOGARITHMS:
                pairs = [(band_torch.marginals(c), c.log_z) for _, c in self._chains(part)]
                found = [torch.cat(parts) for parts in zip(*pairs, strict=True)]
            else:
                arrays = band_native.marginals(_arrays(part), _KINDS[kind], torch.get_num_threads())
                found = [torch.from_numpy(one) for one in arrays]
            p[rows], log_z[rows] = (one.to(p) for one in found)
        return p, log_z

    def gradient(self, problems: BandProblems, p: Tensor, v: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """dL/dh [N, n] and dL/dJ [K, n, w] of L = Σ v P + Σ u log Z."""
        h, J = torch.zeros_like(problems.fields), torch.zeros_like(problems.bands, dtype=torch.float64)
        for kind, rows, tables, part in self._parts(problems):
            given = [t[rows].detach() for t in (p, v, u)]
            if kind == _LOGARITHMS:
                of_fields, of_tables = [], torch.zeros_like(part.bands, dtype=torch.float64)
                for which, chain in self._chains(part):
                    one, pairs = band_torch.gradient(chain, *(t[which].double() for t in given))
                    of_fields.append(one)
                    of_tables.index_add_(0, part.tables[which], pairs)
                h[rows], of_tables = torch.cat(of_fields).to(h), of_tables.to(part.bands)
            else:
                cotangents, threads = (t.numpy() for t in given), torch.get_num_threads()
                found = band_native.gradient(_arrays(part), _KINDS[kind], threads, *cotangents)
                h[rows], of_tables = torch.from_numpy(found[0]).to(h), torch.from_numpy(found[1])
            J[tables] += of_tables
        return h, J.to(problems.bands)

    def pairs(self, problems: BandProblems) -> Tensor:
        """<s_j s_k>, [N, n, n]."""
        total, n = problems.fields.shape
        out = problems.fields.new_zeros(total, n, n)
        for kind, rows, _, part in self._parts(problems):
            if kind == _LOGARITHMS:
                out[rows] = torch.cat([band_torch.pairs(chain) for _, chain in self._chains(part)]).to(out)
            else:
                found = band_native.pairs(_arrays(part), _KINDS[kind], torch.get_num_threads())
                out[rows] = torch.from_numpy(found).to(out)
        return out

    def reads(self, problems: BandProblems, num_reads: int, seed: int) -> Tensor:
        """Independent draws, int8 [R, N, n]; in float64 at least."""
        keys = stream_keys(seed, len(problems.fields))
        spins = problems.fields.new_empty(num_reads, *problems.fields.shape, dtype=torch.int8)
        for kind, rows, _, part in self._parts(problems, least=_FLOAT64):
            own = keys[rows.numpy()] if isinstance(rows, Tensor) else keys
            if kind == _LOGARITHMS:
                spins[:, rows] = torch.cat(list(self._draws(part, num_reads, own)), 1)
            else:
                found = band_native.reads(_arrays(part), torch.get_num_threads(), num_reads, own)
                spins[:, rows] = torch.from_numpy(found)
        return spins

    def _draws(self, problems: BandProblems, num_reads: int, keys: NDArray[np.uint64]) -> Iterator[Tensor]:
        first = np.arange(num_reads)[:, None] * problems.fields.shape[1]
        for which, chain in self._chains(problems, num_reads):
            window = torch.zeros(num_reads, *chain.log_z.shape, dtype=torch.long, device=chain.log_z.device)
            columns = []
            for t in range(chain.live.shape[1]):
                u = torch.from_numpy(uniforms(keys[which], first + t)).to(window.device)
                plus, window = band_torch.reads(chain, u, window, t)
                columns.append(torch.where(plus & chain.live[:, t], 1, -1).to(torch.int8))
            yield torch.stack(columns, -1)

    def _chains(self, problems: BandProblems, num_reads: int = 0) -> Iterator[tuple[slice, band_torch.Chain]]:
        """The problems in parts that fit the budget."""
        fields, bands, tables, lengths = problems
        total, n = fields.shape
        # The odds, as many numbers again for the backward pass or pairs; and a uniform, a window and spins per read.
        one = 8 * (2 * (n + 4) << bands.shape[2]) + num_reads * 32
        step = max(1, self.budget_bytes // one)
        for start in range(0, total, step):
            which = slice(start, start + step)
            yield (
                which,
                band_torch.chain(fields[which].double(), bands.double(), tables[which], lengths[which]),
            )

    def _parts(self, problems: BandProblems, least: int = 0) -> Iterator[_Part]:
        """Split problems by the arithmetic that they need, at least ``least``; one part if it is the same for all."""
        kinds = torch.from_numpy(self._needed(problems, least))
        present = kinds.unique().tolist()
        if len(present) == 1:
            yield _Part(present[0], slice(None), slice(None), problems)
            return
        for kind in present:
            rows = (kinds == kind).nonzero()[:, 0]
            # Tables of the other problems may be out of range.
            tables, own = problems.tables[rows].unique(return_inverse=True)
            part = BandProblems(problems.fields[rows], problems.bands[tables], own, problems.lengths[rows])
            yield _Part(kind, rows, tables, part)

    def _needed(self, problems: BandProblems, least: int) -> NDArray[np.int64]:
        """Arithmetic of each problem, as indices into `_KINDS`."""
        count = len(problems.fields)
        if self.name == "torch":
            return np.full(count, _LOGARITHMS)
        arrays, narrow = _arrays(problems), np.zeros(count, dtype=np.bool_)
        if least < _FLOAT64 and arrays.fields.dtype == np.float32:
            narrow = fitting(arrays, np.float32)
        if narrow.all():
            return np.zeros(count, dtype=np.int64)
        return np.where(narrow, 0, np.where(fitting(arrays, np.float64), _FLOAT64, _LOGARITHMS))


class _Part(NamedTuple):
    """Problems of one arithmetic."""

    kind: int
    rows: Tensor | slice  # indices of the problems
    tables: Tensor | slice  # indices of their couplings
    problems: BandProblems


def _arrays(problems: BandProblems) -> BandProblems:
    return BandProblems(*(t.detach().contiguous().numpy() for t in problems))


class BandProbabilities(torch.autograd.Function):
    """(fields [N, n], bands [K, n, w]) -> (P(s = +1) [N, n], log Z [N]), with the analytic backward.

    For cotangents v of P and u of log Z let f(s) = Σ_j v_j ([s_j = +1] - P_j) + u.  Then

        dL/dh_t = <f s_t>,   dL/dJ_{t,t-1-d} = Σ_q <f s_t s_{t-1-d}>

    over the queries q that share J, by one more recursion that carries f along with the messages.
    """

    @staticmethod
    def forward(
        ctx: Any, fields: Tensor, bands: Tensor, tables: Tensor, lengths: Tensor, engine: Band
    ) -> tuple[Tensor, Tensor]:
        """Solve the problems; keep the marginals."""
        p, log_z = engine.marginals(BandProblems(fields, bands, tables, lengths))
        p.clamp_(max=1)  # rounding can exceed 1
        ctx.save_for_backward(fields, bands, tables, lengths, p)
        ctx.engine = engine
        return p, log_z

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Covariances of f with spins and with pairs in the band; differentiable again if create_graph is set."""
        *problem, p = ctx.saved_tensors
        refuse_batched_cotangent(*cotangents)
        if torch.is_grad_enabled():
            solve = partial(_smooth_moments, *problem[2:])
            return *smooth_gradient(problem[:2], solve, ctx.needs_input_grad, *cotangents), None, None, None
        of_fields, of_bands = ctx.engine.gradient(BandProblems(*problem), p, *cotangents)
        return of_fields, of_bands, None, None, None


def _smooth_moments(tables: Tensor, lengths: Tensor, fields: Tensor, bands: Tensor) -> tuple[Tensor, Tensor]:
    """P(s = +1) and log Z by torch operations in float64, which are differentiable."""
    states = len(fields) * fields.shape[1] << bands.shape[2]
    require_memory(8 * _NUMBERS_PER_STATE * states, "second derivatives through 'banded'")
    chain = band_torch.chain(fields.double(), bands.double(), tables, lengths)
    return band_torch.marginals(chain), chain.log_z
