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


def solve_small(ising: Ising, damping: float, tolerance: float, most: int) -> FixedPoints:
    """The fixed points of a batch that `is_small` accepts; options as in `MeanFieldSampler`."""
    n, count, J = ising.num_spins, ising.num_problems, ising.couplings
    fields = ising.fields.detach().reshape(count, n).contiguous().numpy()
    couplings = np.zeros((1, n, n), fields.dtype) if J is None else _array(J.detach().reshape(-1, n, n))
    visible = _ones(count, n) if ising.visible is None else _array(ising.visible.expand(ising.fields.shape))
    which = _zeros(count) if len(couplings) == 1 else ising.coupling_index().numpy()
    return FixedPoints(
        fields, couplings, which, visible.reshape(count, n), damping, tolerance, most, torch.get_num_threads()
    )


def iterated(ising: Ising, solved: FixedPoints) -> Iterated:
    """The solution of a batch as of `iterate`."""
    batch = ising.batch_shape
    return Iterated(
        torch.from_numpy(solved.magnetization).view(ising.fields.shape),
        torch.from_numpy(solved.iterations).view(batch),
        torch.from_numpy(solved.residual).view(batch),
    )


def small_moments(ising: Ising, solved: FixedPoints) -> Tensor:
    """P(s = +1) of a solved batch, [*batch, n]; differentiable in h and J."""
    h, J = ising.fields, ising.couplings
    if not (torch.is_grad_enabled() and (h.requires_grad or (J is not None and J.requires_grad))):
        return _probability(ising, solved)
    found: Tensor = _SmallMoments.apply(h, J, ising, solved)
    return found


def _probability(ising: Ising, solved: FixedPoints) -> Tensor:
    # σ(2x), not (tanh x + 1)/2: it keeps its relative precision when m is -1 to rounding.
    p = torch.from_numpy(2 * solved.local).sigmoid_().view(ising.fields.shape)
    return p if ising.visible is None else torch.where(ising.visible, p, 0)


class _SmallMoments(torch.autograd.Function):
    """(h [*batch, n], J [*lead, n, n] or None, the problem, its solution) -> P(s = +1) [*batch, n].

    At the fixed point x = h + J tanh(x) of local fields, dx = (1 - J D)⁻¹ (dh + dJ m) with D = diag(1 - m²): a
    cotangent u of x becomes v = (1 - D J)⁻¹ u, and dL/dh = v, dL/dJ = Σ v mᵀ over the problems with this J,
    symmetrised.
    """

    @staticmethod
    def forward(ctx: Any, fields: Tensor, J: Tensor | None, ising: Ising, solved: FixedPoints) -> Tensor:
        p = _probability(ising, solved)
        ctx.save_for_backward(p)
        ctx.solved, ctx.lead = solved, None if J is None else J.shape[:-2]
        return p

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        (p,) = ctx.saved_tensors
        u = cotangents[0] * (2 * p * (1 - p))
        v = _response(ctx.solved, u)
        if ctx.lead is None or not ctx.needs_input_grad[1]:
            return v, None, None, None
        m = torch.from_numpy(ctx.solved.magnetization).view(p.shape)
        return v, _pair_gradient(v, m, ctx.lead), None, None


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
