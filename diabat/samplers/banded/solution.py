"""One solution of a batch by the ``banded`` backend, with its derivative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.compute.memory import require_memory
from diabat.ising import Ising
from diabat.samplers.answers import Solution
from diabat.samplers.banded.band_storage import Layout
from diabat.samplers.banded.compiled import Compiled
from diabat.samplers.banded.torch import NUMBERS_PER_STATE, Logarithms, solved
from diabat.samplers.call_checks import LARGEST
from diabat.samplers.derivatives import smooth_gradient
from diabat.samplers.folding import refuse_batched_cotangent

_ARITHMETICS = ("float32", "float64", "logarithms")


class BandSolution(Solution):
    """Marginals or log-odds, and log Z, in parts by the arithmetic that problems need, the widest last.

    For cotangents v of P and u of log Z let f(s) = Σ_j v_j ([s_j = +1] - P_j) + u.  Then

        dL/dh_t = <f s_t>,   dL/dJ_{t,t-1-d} = Σ_q <f s_t s_{t-1-d}>

    over the queries q that share J, by one more recursion that carries f along with the messages.  For log-odds,
    f(s) = Σ_j v_j ([s_j = +1] / P_j - [s_j = -1] / (1 - P_j)) + u.

    Args:
        ising: The batch.
        layout: Its couplings in a band.
        native: Whether compiled code solves the problems that do not need logarithms.
        budget: Working memory of logarithms, in bytes.
        odds: Whether log-odds are requested.
        least: The narrowest arithmetic of compiled code, float32 (0) or float64 (1).
    """

    def __init__(
        self, ising: Ising, layout: Layout, native: bool, budget: int, *, odds: bool = False, least: int = 0
    ) -> None:
        self._ising, self._layout, self._odds, (h, J, _) = ising, layout, odds, ising.terms
        kind = max(least, int(h.dtype == torch.float64))
        first = Compiled(layout, h, J, kind, 0, odds=odds) if native else None
        self.parts: list[Compiled | Logarithms] = [] if first is None else [first]
        if first is None or first.widest > kind:
            needed = np.full(len(layout.lengths), 2) if first is None else np.maximum(first.needed, kind)
            if native and 2 in needed:
                ising.check_size(LARGEST)
            self.parts = []
            for own in np.unique(needed):
                rows: Any = np.flatnonzero(needed == own) if (needed != own).any() else slice(None)
                if own == 2:
                    self.parts.append(Logarithms(h, J, layout, rows, budget, odds=odds))
                    continue
                part = first if first and own == kind else Compiled(layout, h, J, own, 1, odds=odds)
                part.rows = rows
                self.parts.append(part)
        engine, arithmetic = "native" if native else "torch", _ARITHMETICS[self.parts[-1].kind]
        self.info = {"engine": engine, "arithmetic": arithmetic, "bandwidth": layout.width}

    def solved(self) -> BandSolution:
        """Itself, with the result."""
        h, (x, log_z) = self._ising.fields, zip(*[part.solve() for part in self.parts], strict=True)
        self.result, self.log_partition = self._joined(x, h.shape), self._joined(log_z, h.shape[:-1])
        return self

    def _joined(
        self, values: Sequence[Tensor], shape: torch.Size, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Values of the problems of all parts, [P, ...] of each, in a shape of the batch."""
        out, dtype = values[0], dtype or self._ising.fields.dtype
        if len(values) > 1:
            out = out.new_empty(len(self._layout.lengths), *out.shape[1:], dtype=dtype)
            for part, value in zip(self.parts, values, strict=True):
                out[part.rows] = value.to(dtype)
        return out if out.shape == shape and out.dtype == dtype else out.reshape(shape).to(dtype)

    def reads(self, num_reads: int, keys: NDArray[np.uint64]) -> Tensor:
        """Independent draws, int8 [R, *batch, n]; ``keys`` are the streams of the problems."""
        drawn, shape = (
            [part.reads(num_reads, keys).transpose(0, 1) for part in self.parts],
            self._ising.fields.shape,
        )
        spins = self._joined(drawn, torch.Size((len(keys), num_reads, shape[-1])), torch.int8)
        return spins.transpose(0, 1).reshape(num_reads, *shape)

    def correlation(self) -> Tensor:
        """<s_j s_k>, [*batch, n, n]."""
        shape = self._ising.fields.shape
        return self._joined([part.pairs() for part in self.parts], shape + shape[-1:])

    def gradient(self, v: Tensor, u: Tensor | None = None, *, pairs: bool) -> tuple[Tensor, Tensor | None]:
        """As in the base class."""
        J, v = self._ising.terms[1] if pairs else None, v.detach()
        out = None if J is None else torch.zeros(J.numel(), dtype=torch.float64, device=J.device)
        found = [part.gradient(v, u, out) for part in self.parts]
        of_fields = self._joined(found, v.shape)
        if J is None or out is None:
            return of_fields, None
        return of_fields, out.view(J.shape).to(J.dtype)

    def backward(self, ctx: Any, v: Tensor, u: Tensor | None) -> tuple[Tensor | None, ...]:
        """As in the base class; differentiable again if create_graph is set."""
        refuse_batched_cotangent(v, u)
        terms = ctx.saved_tensors  # refuses those that have been modified
        if not torch.is_grad_enabled():
            return super().backward(ctx, v, u)
        return smooth_gradient(terms, self._smooth, ctx.needs_input_grad, v, u)

    def _smooth(self, fields: Tensor, J: Tensor | None) -> tuple[Tensor, Tensor]:
        """The result and log Z by differentiable operations, in float64."""
        layout = self._layout
        numbers = NUMBERS_PER_STATE * fields.numel() << layout.numbers.shape[3]
        require_memory(8 * numbers, "second derivatives through 'banded'")
        x, log_z = solved(layout, fields, J, odds=self._odds)
        return x.reshape(fields.shape), log_z.reshape(fields.shape[:-1])
