"""One solution of a batch by the ``banded`` backend, with its derivative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from diabat.compute.memory import require_memory
from diabat.ising import Ising
from diabat.samplers.answers import Solution
from diabat.samplers.banded.band_storage import Layout
from diabat.samplers.banded.native import BandProblems, Compiled, Rows, kinds
from diabat.samplers.banded.torch import NUMBERS_PER_STATE, Logarithms, chain, sums
from diabat.samplers.call_checks import LARGEST
from diabat.samplers.derivatives import smooth_gradient
from diabat.samplers.folding import refuse_batched_cotangent

_ARITHMETICS = ("float32", "float64", "logarithms")


class Part(NamedTuple):
    """Problems of a batch that need the same arithmetic."""

    chosen: Any  # index of the problems; a slice if they are all
    tables: Any  # index of their tables of couplings, likewise
    solver: Any = None  # `Compiled` or `Logarithms`


class Divided:
    """The problems of a batch, in parts by the arithmetic that they need, the widest last.

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
        self.layout, self.odds, self.parts = layout, odds, []
        with torch.no_grad():
            h, bands, rows = layout.problems(ising)
        problems = h, bands, rows = BandProblems(h.detach(), bands, rows)
        needed = np.full(len(h), 2)
        if native:
            needed = np.maximum(kinds(problems, odds=odds), max(least, int(h.dtype == torch.float64)))
            if 2 in needed:
                ising.check_size(LARGEST)
        present = np.unique(needed)
        for kind in present:
            part, own = Part(slice(None), slice(None)), problems
            if len(present) > 1:
                chosen = np.flatnonzero(needed == kind)
                # Tables of the other problems may be out of range.
                tables, index = np.unique(rows.tables[chosen], return_inverse=True)
                places = Rows(index, rows.lengths[chosen], len(tables), h.shape[1])
                part, own = Part(chosen, tables), BandProblems(h[chosen], bands[tables], places)
            threads, arithmetic = torch.get_num_threads(), _ARITHMETICS[kind]
            solver = Logarithms(own, budget) if kind == 2 else Compiled(own, arithmetic, threads)
            self.parts.append(part._replace(solver=solver))
        engine = "native" if native else "torch"
        self.info = {"engine": engine, "arithmetic": arithmetic, "bandwidth": layout.width}

    def joined(self, values: Sequence[Any], dtype: torch.dtype) -> Tensor:
        """Values of the problems of all parts, [P, ...] of each, as [N, ...] in the order of the batch."""
        first = torch.as_tensor(values[0])
        if len(values) == 1:
            return first.to(dtype)
        out = first.new_empty(sum(map(len, values)), *first.shape[1:], dtype=dtype)
        for part, value in zip(self.parts, values, strict=True):
            out[part.chosen] = torch.as_tensor(value).to(out)
        return out


class BandSolution(Solution):
    """Marginals or log-odds, and log Z.

    For cotangents v of P and u of log Z let f(s) = Σ_j v_j ([s_j = +1] - P_j) + u.  Then

        dL/dh_t = <f s_t>,   dL/dJ_{t,t-1-d} = Σ_q <f s_t s_{t-1-d}>

    over the queries q that share J, by one more recursion that carries f along with the messages.  For log-odds,
    f(s) = Σ_j v_j ([s_j = +1] / P_j - [s_j = -1] / (1 - P_j)) + u.
    """

    def __init__(self, ising: Ising, divided: Divided) -> None:
        self._ising, self._divided = ising, divided
        x, log_z = zip(*[part.solver.solve(odds=divided.odds) for part in divided.parts], strict=True)
        self.result = self._per_spin(x)
        self.log_partition = divided.joined(log_z, self.result.dtype).reshape(self.result.shape[:-1])

    def correlation(self) -> Tensor:
        """<s_j s_k>, [*batch, n, n]."""
        found = [part.solver.pairs() for part in self._divided.parts]
        pairs = self._divided.layout.per_pair(self._divided.joined(found, self.result.dtype))
        return pairs.reshape(*self.result.shape, pairs.shape[-1])

    def gradient(self, v: Tensor, u: Tensor | None = None, *, pairs: bool) -> tuple[Tensor, Tensor | None]:
        """As in the base class."""
        divided, J = self._divided, self._ising.terms[1]
        layout, n = divided.layout, v.shape[-1]
        v = layout.by_place(v.detach().reshape(-1, n))
        u = v.new_zeros(len(v)) if u is None else u.detach().reshape(-1)
        of_fields, of_bands = [], v.new_zeros(layout.inside.shape, dtype=torch.float64)
        for part in divided.parts:
            dh, dJ = part.solver.gradient(v[part.chosen], u[part.chosen], odds=divided.odds)
            of_fields.append(dh)
            of_bands[part.tables] += torch.as_tensor(dJ)
        of_J = None if J is None or not pairs else layout.of_couplings(of_bands.to(J.dtype), J)
        return self._per_spin(of_fields), of_J

    def backward(self, ctx: Any, v: Tensor, u: Tensor | None) -> tuple[Tensor | None, ...]:
        """As in the base class; differentiable again if create_graph is set."""
        refuse_batched_cotangent(v, u)
        terms = ctx.saved_tensors  # refuses those that have been modified
        if not torch.is_grad_enabled():
            return super().backward(ctx, v, u)
        return smooth_gradient(terms, self._smooth, ctx.needs_input_grad, v, u)

    def _smooth(self, fields: Tensor, J: Tensor | None) -> tuple[Tensor, Tensor]:
        """The result and log Z by differentiable operations, in float64."""
        layout, edges = self._divided.layout, self._ising.edges
        numbers = NUMBERS_PER_STATE * fields.numel() << layout.inside.shape[2]
        require_memory(8 * numbers, "second derivatives through 'banded'")
        held = J if edges is None or J is None else edges.with_values(J)
        problems = layout.problems(Ising(fields, held, self._ising.visible, check=False))
        x, log_z = sums(chain(problems), odds=self._divided.odds)
        return layout.per_spin(x).reshape(fields.shape), log_z.reshape(fields.shape[:-1])

    def _per_spin(self, values: Sequence[Any]) -> Tensor:
        """Values by place of all parts as [*batch, n], in the dtype of the fields."""
        h = self._ising.fields
        return self._divided.layout.per_spin(self._divided.joined(values, h.dtype)).reshape(h.shape)
