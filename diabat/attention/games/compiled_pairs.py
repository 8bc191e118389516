r"""Sums over all pairs by compiled code, on the CPU.

The pairs of a problem are divided into ranges of columns by n alone, and sums over pairs are added up range by range:
results are the same on any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from diabat.attention.games.pair_tile import Coalitions, Values
from diabat.compute.scratch import Scratch, lanes_of
from diabat.compute.threads import ranges_of_equal_work, run_parts
from diabat.samplers.kept import kept

Work = TypeVar("Work")
# From twice as many players on, several threads share a problem.
_PLAYERS_PER_RANGE = 512


class CompiledPairs:
    """Problems in the layout of the compiled code, which computes pairs with j < i only.

    Args:
        values: Of all problems and coalitions, on the CPU, N >= 1.
        coalitions: Likewise.
    """

    def __init__(self, values: Values, coalitions: Coalitions) -> None:
        from diabat.attention.games.pair_kernel import Problems

        self.values, self.coalitions = Values(*(part.detach() for part in values)), coalitions
        self.gibbs = coalitions.log_proposal is not None
        self.shape = self.values.change.shape
        gram = self.values.gram
        self.dtype = np.dtype(np.float32 if gram.dtype == torch.float32 else np.float64)
        self.lanes = lanes_of(self.dtype)
        rows, columns = self._numbers()
        floor, proposal, beta = map(_array, (coalitions.floor, self._log_proposal(2), self.values.beta))
        vectors, flags = self._vectors(gram), (self.gibbs, coalitions.tanh)
        self.problems = Problems(vectors, rows, columns, floor, proposal, beta, self.shape[1], *flags)
        self.items, self.work = _items(self.shape[0], self.shape[2], self.lanes)

    def means(self) -> tuple[Tensor, Tensor]:
        """J = Σ_k w_k Δ_k, [N, n, n], and log Σ_k exp(v/γ)/p of pairs j < i; uniform weights: of no meaning."""
        from diabat.attention.games.pair_kernel import run_means

        mean = np.empty_like(self.problems.gram)
        normaliser = np.zeros_like(mean) if self.gibbs else mean
        flat = [_flat(a) for a in (mean, normaliser)]
        self._each(
            lambda: self._scratch(2 * self.shape[1]),
            lambda part, kept: run_means(self.items[part], self.problems, kept, *flat),
        )
        return self._pairs(mean), self._pairs(normaliser)

    def errors(self, mean: Tensor, normaliser: Tensor, unit: int) -> tuple[Tensor, Tensor]:
        """Σ_units (Σ_k w_k (Δ_k - mean))² and Σ_k w_k², [N, n, n] and symmetric."""
        from diabat.attention.games.pair_kernel import run_errors

        means, normalisers = self._vectors(mean), self._vectors(normaliser)
        squares, weights = np.empty_like(means), np.empty_like(means)
        flat = [_flat(a) for a in (squares, weights)]
        self._each(
            lambda: None,
            lambda part, _: run_errors(self.items[part], self.problems, unit, means, normalisers, *flat),
        )
        return self._pairs(squares), self._pairs(weights)

    def gradient(self, cotangent: Tensor, mean: Tensor, normaliser: Tensor) -> Values:
        """∂L/∂(values) for L = Σ u_ij J_ij, u [N, n, n]; that of G is below its diagonal."""
        from diabat.attention.games.pair_gradient_kernel import STRIP, SUMS, run_gradients

        problems, count, n = self.shape
        u, means, normalisers = _array(cotangent), self._vectors(mean), self._vectors(normaliser)
        to_gram = np.zeros_like(means)
        sums = np.zeros((len(self.items), n, count, SUMS), self.dtype)
        of_beta = np.zeros(len(self.items), self.dtype)

        def scratch() -> tuple[Any, Any]:
            return self._scratch(STRIP + 1, count * SUMS), self._scratch(STRIP, n)

        def call(part: slice, work: tuple[Any, Any]) -> None:
            own = self.items[part], part.start, self.problems
            run_gradients(*own, *work, u, means, normalisers, to_gram, sums, of_beta)

        self._each(scratch, call)
        total = torch.from_numpy(sums).unflatten(0, (problems, -1)).sum(1).transpose(1, 2)
        to_beta = torch.from_numpy(of_beta).unflatten(0, (problems, -1)).sum(1)
        return self._chained(self._pairs(to_gram), total, to_beta)

    def _chained(self, gram: Tensor, total: Tensor, to_beta: Tensor) -> Values:
        """Derivatives by the values from the sums over the pairs of every player, [N, K, n, SUMS]."""
        to_change, to_single, to_logit = total.unbind(-1)
        # A pair is in the sums of both of its players.
        square, whole, single = to_change.sum(-1) / 2, to_single.sum(-1) / 2, -to_single
        if self.gibbs:
            values, beta = self.values, self.values.beta[:, None]
            inside = self.coalitions.member * to_logit
            outside = (to_logit.sum(-1) - inside.sum(-1)) / 2
            single = single + beta[..., None] * inside
            whole = whole + beta * outside
            to_beta = to_beta + (inside * values.single).sum((1, 2)) + (outside * values.whole).sum(1)
        return Values(gram, square, to_change, whole, single, to_beta)

    def _numbers(self) -> tuple[Any, Any]:
        """The numbers of every player as rows and as columns, in the order of the compiled code."""
        values, coalitions = self.values, self.coalitions
        whole = values.whole[..., None]
        if coalitions.tanh:
            rise = values.single - whole
        else:
            norms = values.single + whole
            rise = torch.where(norms == 0, 0, values.change / norms)
        row_logit = self._logits(values.single, 1)
        column_logit = torch.where(coalitions.member > 0, row_logit, self._logits(whole, 0))
        common = (values.single, rise)
        rows = torch.stack((coalitions.sign, values.change, *common, row_logit), -1)
        change = values.change + values.square[..., None]
        columns = torch.stack((coalitions.sign, change, *common, column_logit), 2)
        return _array(rows.transpose(1, 2)), _array(self._in_lanes(columns).permute(0, 3, 1, 2, 4))

    def _logits(self, value: Tensor, taken: int) -> Tensor:
        """v/γ - log p of contexts with so many players taken out of C."""
        if not self.gibbs:
            return torch.zeros_like(value)
        return self.values.beta[:, None, None] * value - self._log_proposal(taken)[..., None]

    def _log_proposal(self, taken: int) -> Tensor:
        log_proposal = self.coalitions.log_proposal
        return torch.zeros_like(self.values.square) if log_proposal is None else log_proposal[..., taken]

    def _each(self, scratch: Callable[[], Work], call: Callable[[slice, Work], None]) -> None:
        """Run the items, one range of them per thread, each with its scratch."""
        run_parts(ranges_of_equal_work(self.work, torch.get_num_threads()), lambda part: scratch(), call)

    def _scratch(self, *rows: int) -> Any:
        return Scratch(math.prod(rows)).take(self.dtype, *rows, self.lanes)

    def _vectors(self, pairs: Tensor) -> Any:
        """Matrices as [N, n, V, lanes], their rows filled up with zeros."""
        return _array(self._in_lanes(pairs))

    def _in_lanes(self, rows: Tensor) -> Tensor:
        """[..., n] as [..., V, lanes], filled up with zeros; a copy only if n is not a multiple."""
        missing = -rows.shape[-1] % self.lanes
        return (pad(rows, (0, missing)) if missing else rows).unflatten(-1, (-1, self.lanes))

    def _pairs(self, vectors: Any) -> Tensor:
        """The matrices, [N, n, n]."""
        return torch.from_numpy(vectors).flatten(-2)[..., : self.shape[-1]]


@kept(lambda problems, n, lanes: 32 * problems * max(1, n // _PLAYERS_PER_RANGE))
def _items(problems: int, n: int, lanes: int) -> tuple[Any, Any]:
    """Problem and range of columns of each item, int64 [items, 3], and the work of each."""
    per_vector = n - lanes * np.arange(-(-n // lanes))
    ranges = ranges_of_equal_work(per_vector, max(1, n // _PLAYERS_PER_RANGE))
    items = [(problem, r.start, r.stop) for problem in range(problems) for r in ranges]
    return np.array(items), np.tile([per_vector[r].sum() for r in ranges], problems)


def _flat(vectors: Any) -> Any:
    """[N, n, V, lanes] as [N, n, V · lanes]."""
    return vectors.reshape(*vectors.shape[:2], -1)


def _array(tensor: Tensor) -> Any:
    return tensor.contiguous().numpy()
