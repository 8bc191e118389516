"""Engines of the ``banded`` backend: compiled code on the CPU, torch operations on any device."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from diabat.samplers.banded import native as band_native
from diabat.samplers.banded import torch as band_torch
from diabat.samplers.banded.problems import BandProblems, fits
from diabat.samplers.banded.streams import stream_keys, uniforms

Arithmetic = Literal["float32", "float64", "logarithms"]


class BandTensors(NamedTuple):
    """Problems as in :class:`diabat.samplers.banded.problems.BandProblems`, as tensors."""

    fields: Tensor
    bands: Tensor
    tables: Tensor
    lengths: Tensor


class BandEngine(Protocol):
    """What an engine computes of problems without a gradient history; results have the fields' dtype."""

    name: str

    def arithmetic(self, problems: BandTensors) -> Arithmetic:
        """Numbers that the messages are kept in."""

    def marginals(self, problems: BandTensors) -> tuple[Tensor, Tensor]:
        """P(s = +1) [N, n] and log Z [N]."""

    def gradient(self, problems: BandTensors, p: Tensor, v: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """dL/dh [N, n] and dL/dJ [K, n, w] of L = Σ v P + Σ u log Z."""

    def pairs(self, problems: BandTensors) -> Tensor:
        """<s_j s_k>, [N, n, n]."""

    def reads(self, problems: BandTensors, num_reads: int, seed: int) -> Tensor:
        """Independent draws, int8 [R, N, n]."""


class TorchBand:
    """float64 logarithms on the device of the fields, the queries in as many parts as the budget asks for."""

    name = "torch"

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes

    def arithmetic(self, problems: BandTensors) -> Arithmetic:
        """Logarithms, which have no range."""
        return "logarithms"

    def marginals(self, problems: BandTensors) -> tuple[Tensor, Tensor]:
        """As `BandEngine.marginals`."""
        found = []
        for part in self._parts(problems):
            chain = self._chain(problems, part)
            found.append((band_torch.marginals(chain), chain.log_z))
        p, log_z = (torch.cat(parts).to(problems.fields) for parts in zip(*found, strict=True))
        return p, log_z

    def gradient(self, problems: BandTensors, p: Tensor, v: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """As `BandEngine.gradient`."""
        of_fields = []
        of_couplings = torch.zeros_like(problems.bands, dtype=torch.float64)
        for part in self._parts(problems):
            parts = (t[part].double() for t in (p, v, u))
            h, J = band_torch.gradient(self._chain(problems, part), *parts)
            of_fields.append(h)
            of_couplings.index_add_(0, problems.tables[part], J)
        return torch.cat(of_fields).to(problems.fields), of_couplings.to(problems.bands)

    def pairs(self, problems: BandTensors) -> Tensor:
        """As `BandEngine.pairs`."""
        found = [band_torch.pairs(self._chain(problems, part)) for part in self._parts(problems)]
        return torch.cat(found).to(problems.fields)

    def reads(self, problems: BandTensors, num_reads: int, seed: int) -> Tensor:
        """As `BandEngine.reads`."""
        total, n = problems.fields.shape
        device = problems.fields.device
        spins = torch.full((num_reads, total, n), -1, dtype=torch.int8, device=device)
        keys = stream_keys(seed, total)
        first = np.arange(num_reads)[:, None] * n
        for part in self._parts(problems, num_reads):
            chain = self._chain(problems, part)
            window = torch.zeros(num_reads, len(chain.live), dtype=torch.long, device=device)
            for t in range(n):
                u = torch.from_numpy(uniforms(keys[part], first + t)).to(device)
                plus, window = band_torch.reads(chain, u, window, t)
                spins[:, part, t] = torch.where(plus & chain.live[:, t], 1, -1).to(torch.int8)
        return spins

    def _parts(self, problems: BandTensors, num_reads: int = 0) -> list[slice]:
        total, n = problems.fields.shape
        # The odds, and as many numbers again on the way back or beside pairs; a read's uniform, window and spins.
        one = 8 * (2 * (n + 4) << problems.bands.shape[2]) + num_reads * 32
        step = max(1, self.budget_bytes // one)
        return [slice(i, i + step) for i in range(0, total, step)]

    def _chain(self, problems: BandTensors, part: slice) -> band_torch.Chain:
        fields, bands, tables, lengths = problems
        return band_torch.chain(fields[part].double(), bands.double(), tables[part], lengths[part])


class NativeBand:
    """Compiled code: float32 or float64 as the fields, float64 or logarithms where messages span more than that."""

    name = "native"

    def __init__(self, budget_bytes: int) -> None:
        self._wide = TorchBand(budget_bytes)

    def arithmetic(self, problems: BandTensors) -> Arithmetic:
        """The narrowest that holds all messages."""
        return _arithmetic(_arrays(problems))

    def marginals(self, problems: BandTensors) -> tuple[Tensor, Tensor]:
        """As `BandEngine.marginals`."""
        arrays = _arrays(problems)
        if (kind := _arithmetic(arrays)) == "logarithms":
            return self._wide.marginals(problems)
        p, log_z = band_native.marginals(arrays, kind, torch.get_num_threads())
        return torch.from_numpy(p).to(problems.fields), torch.from_numpy(log_z).to(problems.fields)

    def gradient(self, problems: BandTensors, p: Tensor, v: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """As `BandEngine.gradient`."""
        arrays = _arrays(problems)
        if (kind := _arithmetic(arrays)) == "logarithms":
            return self._wide.gradient(problems, p, v, u)
        h, J = band_native.gradient(
            arrays, kind, torch.get_num_threads(), *(t.detach().numpy() for t in (p, v, u))
        )
        return torch.from_numpy(h).to(problems.fields), torch.from_numpy(J).to(problems.bands)

    def pairs(self, problems: BandTensors) -> Tensor:
        """As `BandEngine.pairs`."""
        arrays = _arrays(problems)
        if (kind := _arithmetic(arrays)) == "logarithms":
            return self._wide.pairs(problems)
        found = band_native.pairs(arrays, kind, torch.get_num_threads())
        return torch.from_numpy(found).to(problems.fields)

    def reads(self, problems: BandTensors, num_reads: int, seed: int) -> Tensor:
        """As `BandEngine.reads`."""
        arrays = _arrays(problems)
        if not fits(arrays, np.float64):
            return self._wide.reads(problems, num_reads, seed)
        keys = stream_keys(seed, len(problems.fields))
        return torch.from_numpy(band_native.reads(arrays, torch.get_num_threads(), num_reads, keys))


def _arrays(problems: BandTensors) -> BandProblems:
    return BandProblems(*(t.detach().contiguous().numpy() for t in problems))


def _arithmetic(arrays: BandProblems) -> Arithmetic:
    if arrays.fields.dtype == np.float32 and fits(arrays, np.float32):
        return "float32"
    return "float64" if fits(arrays, np.float64) else "logarithms"


class BandProbabilities(torch.autograd.Function):
    """(fields [N, n], bands [K, n, w]) -> (P(s = +1) [N, n], log Z [N]), with the analytic backward.

    For cotangents v of P and u of log Z let f(s) = Σ_j v_j ([s_j = +1] - P_j) + u.  Then

        dL/dh_t = <f s_t>,   dL/dJ_{t,t-1-d} = Σ_q <f s_t s_{t-1-d}>

    over the queries q that share J, by one more recursion that carries f along with the messages.
    """

    @staticmethod
    def forward(
        ctx: Any, fields: Tensor, bands: Tensor, tables: Tensor, lengths: Tensor, engine: BandEngine
    ) -> tuple[Tensor, Tensor]:
        """Solve the problems; keep the marginals."""
        p, log_z = engine.marginals(BandTensors(fields, bands, tables, lengths))
        ctx.save_for_backward(fields, bands, tables, lengths, p)
        ctx.engine = engine
        return p, log_z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Covariances of f with spins and with pairs in the band."""
        *problem, p = ctx.saved_tensors
        of_fields, of_bands = ctx.engine.gradient(BandTensors(*problem), p, *cotangents)
        return of_fields, of_bands, None, None, None
