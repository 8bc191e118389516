r"""Sums of the Gram matrix over the players before each one in permutations, in memory of K n + n² instead of K n²."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from diabat.attention.games.pair_tile import TILE
from diabat.compute.threads import equal_ranges, run_parts
from diabat.samplers.folding import refuse_batched_cotangent, transformed


def predecessor_dots(gram: Tensor, positions: Tensor) -> Tensor:
    """a_ki = Σ_j G_ij [j before i in permutation k], [*batch, K, n], differentiable in G.

    Of G, symmetric up to rounding, [*batch, n, n], and the positions of players, int64 [*batch, K, n].
    """
    if transformed():
        return _tiled_dots(gram, positions)
    dots: Tensor = _PredecessorDots.apply(gram, positions, False)
    return dots


class _PredecessorDots(torch.autograd.Function):
    """(G, positions, False) -> a; and (u, positions, True) -> its transpose, each the derivative of the other."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, positions: Tensor, transposed: bool) -> Tensor:
        ctx.save_for_backward(positions)
        ctx.transposed = transposed
        if not _compiled(matrix):
            return (_tiled_gradient if transposed else _tiled_dots)(matrix, positions)
        rows = positions.shape[-1] if transposed else positions.shape[-2]
        out = matrix.new_zeros(*positions.shape[:-2], rows, positions.shape[-1])
        return _compiled_sums(matrix, positions, transposed, out)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        refuse_batched_cotangent(*cotangents)
        return _PredecessorDots.apply(*cotangents, *ctx.saved_tensors, not ctx.transposed), None, None


def _compiled(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def _compiled_sums(matrix: Tensor, positions: Tensor, transposed: bool, out: Tensor) -> Tensor:
    """Let compiled code add to ``out``; a problem is computed by one thread."""
    from diabat.attention.games.order_kernel import add_before

    if not out.numel():
        return out
    both = matrix.detach(), positions.int()
    rows, places = [a.reshape(-1, *a.shape[-2:]).contiguous().numpy() for a in both]
    flat = out.view(-1, *out.shape[-2:]).numpy()
    run_parts(
        equal_ranges(len(flat), torch.get_num_threads()),
        lambda part: np.array([part.start, part.stop]),
        lambda part, problems: add_before(problems, rows, places, transposed, flat),
    )
    return out


def _tiled_dots(gram: Tensor, positions: Tensor) -> Tensor:
    """A few permutations at a time."""
    parts = positions.split(max(1, TILE // gram.numel()), -2)
    return torch.cat([(gram[..., None, :, :] * _before(p)).sum(-1) for p in parts], -2)


def _tiled_gradient(u: Tensor, positions: Tensor) -> Tensor:
    n = u.shape[-1]
    gradient = u.new_zeros(*u.shape[:-2], n, n)
    step = max(1, TILE // gradient.numel())
    for part, p in zip(u.split(step, -2), positions.split(step, -2), strict=True):
        gradient += (part[..., :, None] * _before(p)).sum(-3)
    return gradient


def _before(position: Tensor) -> Tensor:
    """[j before i] as bool [*batch, n, n]."""
    return position[..., None, :] < position[..., :, None]
