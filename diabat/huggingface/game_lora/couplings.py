"""The interaction matrices G of a training step, from gradient products that are added up over micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from diabat.attention.heads.interaction.coupling import (
    coupling_of_sums,
    gradient_sums,
    interaction,
    weight_coupling,
)
from diabat.attention.heads.interaction.outputs import HeadOutputs
from diabat.checks import ArgumentError
from diabat.huggingface.game_lora.capture import CapturedForward
from diabat.huggingface.game_lora.gradients import mean_over_ranks
from diabat.huggingface.game_lora.options import Rho


class StepCouplings:
    """Sums of ⟨g_i, g_j⟩ by layer, g_h = ∂CE/∂(output of head h): those of this step, and those of the last.

    Args:
        heads: Heads and their projections.
        rho: Which of the two ρ is computed from.

    Attributes:
        last: Sums of the last step, float64 [H, H] by layer; empty before the first.
    """

    def __init__(self, heads: HeadOutputs, rho: Rho) -> None:
        self._heads, self._rho = heads, rho
        self.reset({})

    def reset(self, last: Mapping[int, Tensor]) -> None:
        """Begin a step after one with these sums."""
        self.last = dict(last)
        self._sums: dict[int, Tensor] = {}

    @property
    def fresh(self) -> bool:
        """Whether ρ is that of this step, because of the option or because there is no step before."""
        return self._rho == "fresh" or not self.last

    def watch(self, forward: CapturedForward) -> None:
        """Add the products of a micro-batch during its backward pass."""

        def adder(layer: int) -> Any:
            return lambda gradient: self._add(layer, gradient, forward.mask)

        for layer, tensor in forward.onward.items():
            tensor.register_hook(adder(layer))

    def add(self, forward: CapturedForward, gradients: Sequence[Tensor | None]) -> None:
        """Add the products of a micro-batch, given ∂CE/∂onward in the order of its layers.

        Raises:
            ArgumentError: The cross-entropy does not depend on a layer.
        """
        for layer, gradient in zip(forward.onward, gradients, strict=True):
            if gradient is None:
                raise ArgumentError(
                    "cross_entropy",
                    f"expected a loss of the captured forward, got one without layer {layer}.",
                )
            self._add(layer, gradient, forward.mask)

    def matrices(self) -> dict[int, Tensor]:
        """G = ω ∘ ρ by layer, [H, H], differentiable in the projections.

        Raises:
            ArgumentError: A gradient was not finite.
        """
        sums = self._mean_sums() if self.fresh else self.last
        return {
            layer: interaction(weight_coupling(self._heads.slices(layer)), coupling_of_sums(sums[layer]))
            for layer in self._heads.projections
        }

    def finish(self) -> None:
        """End the step: its sums become those of the last step.

        Raises:
            ArgumentError: A gradient was not finite.
        """
        self.reset(self.last | self._mean_sums())

    def _add(self, layer: int, gradient: Tensor, mask: Tensor | None) -> None:
        rows = gradient.detach().unflatten(-1, (self._heads.projections[layer].heads, -1))  # [B, T, H, d]
        products = gradient_sums(rows if mask is None else rows[mask])
        self._sums[layer] = self._sums[layer] + products if layer in self._sums else products

    def _mean_sums(self) -> dict[int, Tensor]:
        """Sums of the step so far, the mean over processes."""
        found = {layer: mean_over_ranks(products) for layer, products in sorted(self._sums.items())}
        for layer, products in found.items():
            if not torch.isfinite(products).all():
                raise ArgumentError(
                    "loss", f"expected finite gradients at the heads of layer {layer}, got NaN or infinity."
                )
        return found
