r"""The implicit gradient of mean field on edges: the linear system of its fixed point, solved by products with J.

x = h + J tanh(x) gives dx = (1 - J D)⁻¹ (dh + dJ m) with D = diag(1 - m²), so that a cotangent u of x becomes

    (1 - D J)⁻¹ u = u + D^½ y,        (1 - D^½ J D^½) y = D^½ J u.

The second matrix is symmetric, and positive at every fixed point that is stable, where conjugate gradients converge
(Hestenes and Stiefel, 1952).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diabat.edges import Edges
from diabat.samplers.base import UnsupportedError

_MOST = 1000


class EdgeResponse(torch.autograd.Function):
    """Identity on the local field x [*batch, n]; its backward multiplies by (1 - D J)⁻¹."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, edges: Edges, m: Tensor, visible: Tensor) -> Tensor:
        """Copy x."""
        ctx.edges = edges.mapped(Tensor.detach)
        ctx.save_for_backward(torch.where(visible, 1 - m**2, 0).clamp(min=0).sqrt())
        return local.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Multiply the cotangent of x."""
        (u,) = cotangents
        (root,) = ctx.saved_tensors
        return u + root * solve(ctx.edges, root, root * ctx.edges.local_fields(u)), None, None, None


def solve(edges: Edges, root: Tensor, right: Tensor) -> Tensor:
    """Solve (1 - D^½ J D^½) y = b for every problem of a batch by conjugate gradients.

    Args:
        edges: J.
        root: D^½, [*batch, n].
        right: b, [*batch, n].

    Raises:
        UnsupportedError: If the matrix is not positive, or the iteration does not converge.
    """
    y, residual = torch.zeros_like(right), right
    direction, square = residual, (residual**2).sum(-1, keepdim=True)
    limit = (10 * torch.finfo(right.dtype).eps) ** 2 * square
    for _ in range(_MOST):
        active = square > limit
        if not bool(active.any()):
            return y
        image = direction - root * edges.local_fields(root * direction)
        curvature = (direction * image).sum(-1, keepdim=True)
        if bool((active & (curvature <= 0)).any()):
            break
        step = torch.where(active, square / torch.where(active, curvature, 1), 0)
        y, residual = y + step * direction, residual - step * image
        new = (residual**2).sum(-1, keepdim=True)
        direction = residual + torch.where(active, new / torch.where(active, square, 1), 0) * direction
        square = new
    raise UnsupportedError(
        "gradient",
        "'mean_field' on edges expected a stable fixed point, whose linear system has a solution by conjugate "
        "gradients; use more max_iterations or a smaller damping, or weaker couplings.",
    )
