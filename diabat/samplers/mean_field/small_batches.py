"""Batches of small problems, from tensors to tensors: solved by compiled code, with the implicit gradient.

One autograd function does all of it, since operations that autograd records cost more than the fixed point.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers.answers import Solution
from diabat.samplers.folding import batched_cotangent
from diabat.samplers.mean_field.fixed_points import MOST_SHARED, MOST_SPINS, FixedPoints
from diabat.samplers.mean_field.iteration import Iterated

Array = NDArray[Any]

_FEW = 16


def is_small(ising: Ising) -> bool:
    """Whether compiled code solves the batch."""
    n = ising.num_spins
    if n > MOST_SPINS or ising.three_body is not None or ising.fields.device.type != "cpu":
        return False
    return n <= MOST_SHARED or ising.num_problems <= _FEW * ising.num_couplings


class SmallSolution(Solution):
    """A batch that `is_small` accepts, solved.

    At the fixed point x = h + J tanh(x) of local fields, dx = (1 - J D)⁻¹ (dh + dJ m) with D = diag(1 - m²): a
    cotangent u of x becomes v = (1 - D J)⁻¹ u, and dL/dh = v, dL/dJ = Σ v mᵀ over the problems with this J,
    symmetrised.

    Args:
        ising: The batch.
        rules: Damping, tolerance and largest number of iterations, as in `MeanFieldSampler`.
        odds: The result is log P(s = +1) - log P(s = -1) = 2x in place of P(s = +1) = σ(2x).
    """

    def __init__(self, ising: Ising, rules: tuple[float, float, int], *, odds: bool = False) -> None:
        n, count, J = ising.num_spins, ising.num_problems, ising.couplings
        self._visible, self._odds, self._lead = ising.visible, odds, None if J is None else J.shape[:-2]
        fields = _array(ising.fields.detach().reshape(count, n))
        couplings = np.zeros((1, n, n), fields.dtype) if J is None else _array(J.detach().reshape(-1, n, n))
        visible = (
            _ones(count, n) if ising.visible is None else _array(ising.visible.expand(ising.fields.shape))
        )
        which = _zeros(count) if len(couplings) == 1 else ising.coupling_index().numpy()
        self._found = FixedPoints(
            fields, couplings, which, visible.reshape(count, n), *rules, torch.get_num_threads()
        )
        twice = 2 * torch.from_numpy(self._found.local).view(ising.fields.shape)
        # σ(2x), not (tanh x + 1)/2: it keeps its relative precision when m is -1 to rounding.
        result = twice if odds else twice.sigmoid_()
        self.result = result if self._visible is None else torch.where(self._visible, result, 0)

    @property
    def iterated(self) -> Iterated:
        """The fixed points as of `iterate`."""
        found, shape = self._found, self.result.shape
        return Iterated(
            torch.from_numpy(found.magnetization).view(shape),
            torch.from_numpy(found.iterations).view(shape[:-1]),
            torch.from_numpy(found.residual).view(shape[:-1]),
        )

    def gradient(self, v: Tensor, u: Tensor | None = None, *, pairs: bool) -> tuple[Tensor, Tensor | None]:
        """As in the base class; mean field has no log Z."""
        p, seen = self.result, self._visible
        slope = v * (2 * p * (1 - p)) if not self._odds else 2 * v if seen is None else 2 * v * seen
        dh = _response(self._found, slope)
        if self._lead is None or not pairs:
            return dh, None
        m = torch.from_numpy(self._found.magnetization).view(p.shape)
        return dh, _pair_gradient(dh, m, self._lead)


def small_moments(ising: Ising, solved: SmallSolution) -> Tensor:
    """The result of a solved batch, [*batch, n]; differentiable in h and J."""
    h, J = ising.fields, ising.couplings
    if not (torch.is_grad_enabled() and (h.requires_grad or (J is not None and J.requires_grad))):
        return solved.result
    found: Tensor = _SmallMoments.apply(h, J, solved)
    return found


class _SmallMoments(torch.autograd.Function):
    """(h [*batch, n], J [*lead, n, n] or None, their solution) -> its result [*batch, n]."""

    @staticmethod
    def forward(ctx: Any, fields: Tensor, J: Tensor | None, solved: SmallSolution) -> Tensor:
        ctx.solved = solved
        return solved.result

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.solved.gradient(cotangents[0], pairs=ctx.needs_input_grad[1]), None


def _response(solved: FixedPoints, u: Tensor) -> Tensor:
    """(1 - D J)⁻¹ u of each problem, [*batch, n]."""
    if batched_cotangent(u):  # many cotangents at once, whose values are hidden
        system = torch.from_numpy(solved.system).view(*u.shape, u.shape[-1])
        return torch.linalg.solve(system, u[..., None])[..., 0]
    found, stable = solved.response(u.reshape(-1, u.shape[-1]).numpy())
    if not stable.all():
        rest = ~stable
        found[rest] = np.linalg.solve(solved.system[rest], found[rest][..., None])[..., 0]
    return torch.from_numpy(found).view(u.shape)


def _pair_gradient(v: Tensor, m: Tensor, lead: torch.Size) -> Tensor:
    """Σ (v mᵀ + m vᵀ)/2 over the problems with the same J, [*lead, n, n], with a zero diagonal."""
    n = v.shape[-1]
    if v.ndim > 1 and (len(lead) == 0 or lead[-1] == 1):
        products = (v.mT @ m).unsqueeze(-3)  # summed over the last dimension of the batch
    else:
        products = v[..., :, None] * m[..., None, :]
    G = products.sum_to_size(*lead, n, n) if len(lead) else products.reshape(-1, n, n).sum(0)
    G = (G + G.mT) / 2
    G.diagonal(dim1=-2, dim2=-1).zero_()
    return G


def _array(values: Tensor) -> Array:
    array: Array = values.contiguous().numpy()
    return array


@lru_cache(maxsize=16)
def _zeros(count: int) -> Array:
    return np.zeros(count, np.int64)


@lru_cache(maxsize=16)
def _ones(count: int, n: int) -> Array:
    return np.ones((count, n), np.bool_)
