r"""Curvature of the cross-entropy in the output slices of one layer, and inequality (40) of GAME-LoRA.

    L = ‖∇²D‖ at the present weights, by power iteration        D = mean cross-entropy, θ_h = W_O[h]
    ‖∂²D/∂θ_i∂θ_j‖_F from E‖(∇²D v)_i‖², v normal on slice j    (Hutchinson)
    (40)  ‖∂²D/∂θ_i∂θ_j‖_F ≤ L |G_ij|

Both need Hessian-vector products only.  This L is that of one point: assumption 2.1 wants the largest over all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diabat.attention.heads.interaction.outputs import HeadOutputs
from diabat.attention.heads.interaction.projection import OutputProjection
from diabat.attention.heads.interaction.targets import counted_tokens, total_cross_entropy
from diabat.checks import ArgumentError, check_count, check_positive

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Curvature:
    """Curvature of the cross-entropy in the slices of one layer.

    Attributes:
        layer: Position of the block.
        smoothness: L, the largest |eigenvalue| of the Hessian; power iteration comes from below.
        iterations: Iterations of the power method.
        block_norms: ‖∂²D/∂θ_i∂θ_j‖_F, estimated, float64 [H, H], symmetric.
        block_errors: Their standard errors, float64 [H, H].
    """

    layer: int
    smoothness: float
    iterations: int
    block_norms: Tensor
    block_errors: Tensor

    def ratios(self, G: Tensor) -> Tensor:
        """‖∂²D/∂θ_i∂θ_j‖_F / (L |G_ij|) for the pairs i < j, [H (H-1)/2]; (40) wants at most 1."""
        i, j = torch.triu_indices(len(G), len(G), offset=1)
        return (self.block_norms / (self.smoothness * G.abs()))[i, j]


def measure_curvature(
    model: Any,
    batch: Mapping[str, Any],
    layer: int,
    *,
    probes: int = 32,
    tolerance: float = 1e-3,
    iterations: int = 200,
    seed: int = 0,
) -> Curvature:
    """Measure the Hessian of the mean cross-entropy of a batch in the output slices of one layer.

    The model runs in evaluation mode with the mathematical form of scaled dot-product attention, which can be
    differentiated twice.  It takes ``probes`` times H products besides those of the power method.

    Args:
        model: As for :class:`HeadOutputs`.
        batch: As for :meth:`HeadInteractions.measure`; one.
        layer: Position of the block.
        probes: Random vectors per slice.
        tolerance: Relative change of L below which the power method stops.
        iterations: Most iterations of the power method.
        seed: Same seed, same probes.

    Raises:
        ValueError: If an argument is out of range, or the power method has not converged.
    """
    check_count("probes", probes, least=2)
    projection = HeadOutputs(model, [layer]).projections[layer]
    g = torch.Generator().manual_seed(seed)
    with _hessian(model, batch, projection) as product:
        start = _probe(projection, g)
        smoothness, count = largest_curvature(product, start, tolerance=tolerance, iterations=iterations)
        squares = torch.stack([_block_squares(product, projection, g) for _ in range(probes)])  # [S, H, H]
    squares = (squares + squares.transpose(1, 2)) / 2
    mean = squares.mean(0)
    norms = mean.sqrt()
    # The error of a root: that of the square over twice the root.
    errors = squares.std(0) / math.sqrt(probes) / (2 * norms).clamp_min(torch.finfo(torch.float64).tiny)
    return Curvature(layer, smoothness, count, norms, errors)


def largest_curvature(
    product: Product, start: Tensor, *, tolerance: float = 1e-3, iterations: int = 200
) -> tuple[float, int]:
    """Return the largest |eigenvalue| of a symmetric matrix by power iteration, and the number of iterations.

    Args:
        product: v -> A v.
        start: Vector of any shape, not orthogonal to the eigenvector: a random one.
        tolerance: Relative change below which it stops.
        iterations: At most so many.

    Raises:
        ValueError: If it has not converged; or the product is not finite.
    """
    check_positive("tolerance", tolerance)
    check_count("iterations", iterations)
    v, before = start / start.norm(), 0.0
    for count in range(1, iterations + 1):
        v = product(v)
        found = float(v.norm())
        if not math.isfinite(found):
            raise ArgumentError("product", f"expected finite Hessian-vector products, got {found}.")
        if found == 0 or abs(found - before) <= tolerance * found:
            return found, count
        v, before = v / found, found
    raise ArgumentError(
        "iterations", f"expected power iteration to converge within {iterations}, got a last change of more than "
        f"{tolerance:g}; raise iterations or tolerance.",
    )  # fmt: skip


@contextmanager
def _hessian(model: Any, batch: Mapping[str, Any], projection: OutputProjection) -> Iterator[Product]:
    """Products with the Hessian in the slices, [H, hidden, d] -> [H, hidden, d]."""
    attention = torch.nn.attention
    base = projection.base()
    weight = base.weight
    training = [(module, module.training) for module in model.modules()]
    trained = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    counted = counted_tokens(batch).to(model.device)
    inputs = {
        key: value.to(model.device) if isinstance(value, Tensor) else value
        for key, value in batch.items()
        if key not in ("labels", "shift_labels", "num_items_in_batch")
    }
    try:
        model.eval()
        model.requires_grad_(False)
        weight.requires_grad_(True)
        with torch.enable_grad(), attention.sdpa_kernel(attention.SDPBackend.MATH):
            logits = model(**inputs, use_cache=False).logits
            loss = total_cross_entropy(logits, batch, counted) / counted.sum()
            gradient = projection.split(torch.autograd.grad(loss, weight, create_graph=True)[0])

            def product(v: Tensor) -> Tensor:
                inner = (gradient * v.to(gradient)).sum()
                return projection.split(torch.autograd.grad(inner, weight, retain_graph=True)[0]).detach()

            yield product
    finally:
        for parameter, wanted in trained:
            parameter.requires_grad_(wanted)
        for module, mode in training:
            module.training = mode


def _probe(projection: OutputProjection, g: torch.Generator) -> Tensor:
    slices = projection.slices()
    return torch.randn(slices.shape, generator=g, dtype=torch.float64).to(slices.device, slices.dtype)


def _block_squares(product: Product, projection: OutputProjection, g: torch.Generator) -> Tensor:
    """‖(∇²D v)_i‖² for v normal on slice j, float64 [H, H]."""
    v = _probe(projection, g)
    columns = []
    for j in range(projection.heads):
        only = torch.zeros_like(v)
        only[j] = v[j]
        columns.append(product(only).double().square().sum((1, 2)).cpu())
    return torch.stack(columns, 1)
