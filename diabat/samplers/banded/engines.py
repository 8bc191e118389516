"""Engines of the ``banded`` backend: compiled code on the CPU, torch operations on any device."""

from __future__ import annotations

from collections.abc import Iterator
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
from diabat.samplers.folding import refuse_batched_cotangent

Arithmetic = Literal["float32", "float64", "logarithms"]
_KINDS: tuple[Arithmetic, ...] = get_args(Arithmetic)
_FLOAT64, _LOGARITHMS = 1, 2
# Of the autograd graph of second derivatives, forward and backward.
_NUMBERS_PER_STATE = 30


class TorchBand:
    """float64 logarithms on the device of the fields; queries are divided into parts that fit the memory budget.

    Problems are tensors without an autograd graph, and results have the dtype of the fields.
    """

    name = "torch"

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes

    def arithmetic(self, problems: BandProblems) -> Arithmetic:
        """Type of the numbers that store the messages: logarithms cannot overflow."""
        return "logarithms"

    def marginals(self, problems: BandProblems) -> tuple[Tensor, Tensor]:
        """P(s = +1) [N, n] and log Z [N]."""
        found = []
        for part in self._parts(problems):
            chain = self._chain(problems, part)
            found.append((band_torch.marginals(chain), chain.log_z))
        p, log_z = (torch.cat(parts).to(problems.fields) for parts in zip(*found, strict=True))
        return p, log_z

    def gradient(self, problems: BandProblems, p: Tensor, v: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """dL/dh [N, n] and dL/dJ [K, n, w] of L = Σ v P + Σ u log Z."""
        of_fields = []
        of_couplings = torch.zeros_like(problems.bands, dtype=torch.float64)
        for part in self._parts(problems):
            parts = (t[part].double() for t in (p, v, u))
            h, J = band_torch.gradient(self._chain(problems, part), *parts)
            of_fields.append(h)
            of_couplings.index_add_(0, problems.tables[part], J)
        return torch.cat(of_fields).to(problems.fields), of_couplings.to(problems.bands)

    def pairs(self, problems: BandProblems) -> Tensor:
        """<s_j s_k>, [N, n, n]."""
        found = [band_torch.pairs(self._chain(problems, part)) for part in self._parts(problems)]
        return torch.cat(found).to(problems.fields)

    def reads(self, problems: BandProblems, num_reads: int, seed: int) -> Tensor:
        """Independent draws, int8 [R, N, n]."""
        return self.draw(problems, num_reads, stream_keys(seed, len(problems.fields)))

    def draw(self, problems: BandProblems, num_reads: int, keys: NDArray[np.uint64]) -> Tensor:
        """Independent draws, int8 [R, N, n], from the streams ``keys`` [N]."""
        total, n = problems.fields.shape
        device = problems.fields.device
        spins = torch.full((num_reads, total, n), -1, dtype=torch.int8, device=device)
        first = np.arange(num_reads)[:, None] * n
        for part in self._parts(problems, num_reads):
            chain = self._chain(problems, part)
            window = torch.zeros(num_reads, len(chain.live), dtype=torch.long, device=device)
            for t in range(n):
                u = torch.from_numpy(uniforms(keys[part], first + t)).to(device)
                plus, window = band_torch.reads(chain, u, window, t)
                spins[:, part, t] = torch.where(plus & chain.live[:, t], 1, -1).to(torch.int8)
        return spins

    def _parts(self, problems: BandProblems, num_reads: int = 0) -> list[slice]:
        total, n = problems.fields.shape
        # The odds, as many numbers again for the backward pass or pairs; and a uniform, a window and spins per read.
        one = 8 * (2 * (n + 4) << problems.bands.shape[2]) + num_reads * 32
        step = max(1, self.budget_bytes // one)
        return [slice(i, i + step) for i in range(0, total, step)]

    def _chain(self, problems: BandProblems, part: slice) -> band_torch.Chain:
        fields, bands, tables, lengths = problems
        return band_torch.chain(fields[part].double(), bands.double(), tables[part], lengths[part])


class NativeBand(TorchBand):
    """Compiled code: float32 or float64 as the fields; float64 or logarithms if messages exceed that range.

    The arithmetic is chosen per problem: strong problems do not slow down the others.
    """

    name = "native"

    def arithmetic(self, problems: BandProblems) -> Arithmetic:
        """The narrowest that holds all messages of every problem."""
        return _KINDS[int(_needed(_arrays(problems), 0).max())]

    def marginals(self, problems: BandProblems) -> tuple[Tensor, Tensor]:
        """As `TorchBand.marginals`."""
        p, log_z = torch.zeros_like(problems.fields), problems.fields.new_zeros(len(problems.fields))
        for kind, rows, _, part in _parts(problems):
            if kind == _LOGARITHMS:
                p[rows], log_z[rows] = super().marginals(part)
            else:
                found = band_native.marginals(_arrays(part), _KINDS[kind], torch.get_num_threads())
                p[rows], log_z[rows] = (torch.from_numpy(one).to(p) for one in found)
        return p, log_z

    def gradient(self, problems: BandProblems, p: Tensor, v: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """As `TorchBand.gradient`."""
        h = torch.zeros_like(problems.fields)
        J = torch.zeros_like(problems.bands, dtype=torch.float64)
        for kind, rows, tables, part in _parts(problems):
            given = tuple(t[rows].detach() for t in (p, v, u))
            if kind == _LOGARITHMS:
                h[rows], of_tables = super().gradient(part, *given)
            else:
                cotangents = (t.numpy() for t in given)
                threads = torch.get_num_threads()
                found = band_native.gradient(_arrays(part), _KINDS[kind], threads, *cotangents)
                of_fields, of_tables = (torch.from_numpy(one) for one in found)
                h[rows] = of_fields.to(h)
            J[tables] += of_tables
        return h, J.to(problems.bands)

    def pairs(self, problems: BandProblems) -> Tensor:
        """As `TorchBand.pairs`."""
        total, n = problems.fields.shape
        out = problems.fields.new_zeros(total, n, n)
        for kind, rows, _, part in _parts(problems):
            if kind == _LOGARITHMS:
                out[rows] = super().pairs(part)
            else:
                found = band_native.pairs(_arrays(part), _KINDS[kind], torch.get_num_threads())
                out[rows] = torch.from_numpy(found).to(out)
        return out

    def reads(self, problems: BandProblems, num_reads: int, seed: int) -> Tensor:
        """As `TorchBand.reads`."""
        keys = stream_keys(seed, len(problems.fields))
        spins = torch.empty(num_reads, *problems.fields.shape, dtype=torch.int8)
        for kind, rows, _, part in _parts(problems, least=_FLOAT64):
            own = keys[rows.numpy()] if isinstance(rows, Tensor) else keys
            if kind == _LOGARITHMS:
                spins[:, rows] = super().draw(part, num_reads, own)
            else:
                found = band_native.reads(_arrays(part), torch.get_num_threads(), num_reads, own)
                spins[:, rows] = torch.from_numpy(found)
        return spins


class _Part(NamedTuple):
    """Problems of one arithmetic: their indices, the indices of their couplings, and the problems."""

    kind: int
    rows: Tensor | slice
    tables: Tensor | slice
    problems: BandProblems


def _parts(problems: BandProblems, least: int = 0) -> Iterator[_Part]:
    """Split problems by the arithmetic that they need, at least ``least``; one part if it is the same for all."""
    kinds = torch.from_numpy(_needed(_arrays(problems), least))
    present = kinds.unique().tolist()
    for kind in present:
        if len(present) == 1:
            yield _Part(kind, slice(None), slice(None), problems)
            return
        rows = (kinds == kind).nonzero()[:, 0]
        # Tables of the other problems may be out of range.
        tables, own = problems.tables[rows].unique(return_inverse=True)
        part = BandProblems(problems.fields[rows], problems.bands[tables], own, problems.lengths[rows])
        yield _Part(kind, rows, tables, part)


def _needed(arrays: BandProblems, least: int) -> NDArray[np.int64]:
    """Arithmetic of each problem, as indices into `_KINDS`."""
    narrow = np.zeros(len(arrays.fields), dtype=np.bool_)
    if least < _FLOAT64 and arrays.fields.dtype == np.float32:
        narrow = fitting(arrays, np.float32)
    if narrow.all():
        return np.zeros(len(narrow), dtype=np.int64)
    return np.where(narrow, 0, np.where(fitting(arrays, np.float64), _FLOAT64, _LOGARITHMS))


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
        ctx: Any, fields: Tensor, bands: Tensor, tables: Tensor, lengths: Tensor, engine: TorchBand
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
            return (
                *_smooth_gradient(BandProblems(*problem), ctx.needs_input_grad, *cotangents),
                None,
                None,
                None,
            )
        of_fields, of_bands = ctx.engine.gradient(BandProblems(*problem), p, *cotangents)
        return of_fields, of_bands, None, None, None


def _smooth_gradient(
    problems: BandProblems, wanted: tuple[bool, ...], v: Tensor, u: Tensor
) -> list[Tensor | None]:
    """The same gradients by torch operations in float64, which are differentiable."""
    # Separate leaves: v may also depend on h and J, but is held fixed here.
    fields, bands = (t.view_as(t) for t in problems[:2])
    _, _, tables, lengths = problems
    states = len(fields) * fields.shape[1] << bands.shape[2]
    require_memory(8 * _NUMBERS_PER_STATE * states, "second derivatives through 'banded'")
    chain = band_torch.chain(fields.double(), bands.double(), tables, lengths)
    loss = (band_torch.marginals(chain) * v).sum() + (chain.log_z * u).sum()
    chosen = [t for t, want in zip((fields, bands), wanted, strict=False) if want]
    found = iter(torch.autograd.grad(loss, chosen, create_graph=True, materialize_grads=True))
    return [next(found) if want else None for want in wanted[:2]]
