"""Gradients of an optimiser step, added up over micro-batches and processes: those of parameters, and of heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from diabat.checks import ArgumentError
from diabat.heads.lora.couplings import gradient_products
from diabat.heads.lora.outputs import Captured
from diabat.samplers.capabilities import UnsupportedError


def mean_over_ranks(value: Tensor) -> Tensor:
    """Mean of a tensor over the processes of torch.distributed; the tensor itself if there is one process."""
    distributed = torch.distributed
    ready = distributed.is_available() and distributed.is_initialized()
    if not ready or distributed.get_world_size() == 1:
        return value
    total = value.detach().clone()
    distributed.all_reduce(total)
    return total / distributed.get_world_size()


class TaskGradients:
    """One gradient vector [P] per loss, over all trained parameters of a model; UnsupportedError if it has none."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            expected = "trained parameters"
            raise UnsupportedError("model", expected, "none; wrap it with get_peft_model, or unfreeze it")
        self.clear()

    def clear(self) -> None:
        """Drop what was added up."""
        self._sums: dict[str, Tensor] = {}

    def add(self, name: str, loss: Tensor, others: Sequence[Tensor] = ()) -> Sequence[Tensor | None]:
        """Add the gradient of a loss to those of its name, and return that of ``others``; the graph is kept."""
        inputs = [*self.parameters, *others]
        gradients: Sequence[Tensor | None] = [None] * len(inputs)
        if loss.requires_grad:
            gradients = torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True)
        pairs = zip(self.parameters, gradients, strict=False)
        flat = torch.cat([(torch.zeros_like(p) if g is None else g).float().flatten() for p, g in pairs])
        self._sums[name] = self._sums[name] + flat if name in self._sums else flat
        return gradients[len(self.parameters) :]

    def rows(self) -> tuple[list[str], Tensor]:
        """Names and gradients [K, P] in float32, the mean over processes; parameters without gradient have 0."""
        return list(self._sums), mean_over_ranks(torch.stack(list(self._sums.values())))

    def surrogate(self, value: Tensor, gradient: Tensor | None) -> Tensor:
        """Scalar with a value and, for its gradient, the vector [P] that is given; None for zero.

        It depends on every parameter, as DistributedDataParallel expects of a loss.
        """
        total, sizes = value.detach(), [p.numel() for p in self.parameters]
        parts = [None] * len(sizes) if gradient is None else gradient.split(sizes)
        for p, part in zip(self.parameters, parts, strict=True):
            factor = torch.zeros_like(p) if part is None else part.view_as(p).to(p.dtype)
            product = (p * factor).sum()
            total = total + (product - product.detach())
        return total


class HeadProducts:
    """Sums of ⟨g_i, g_j⟩ by layer, g_h = ∂CE/∂(output of head h), float64 [H, H]: of this step, and of the last.

    Attributes:
        last: Sums of the last step; empty before the first.
    """

    def __init__(self) -> None:
        self.begin({})

    def begin(self, last: Mapping[int, Tensor]) -> None:
        """Begin a step after one with these sums."""
        self.last = dict(last)
        self._sums: dict[int, Tensor] = {}

    def add(self, captured: Captured, mask: Tensor | None, gradients: Sequence[Tensor | None]) -> None:
        """Add the products of a micro-batch, given ∂CE/∂onward by layer."""
        for layer, gradient in zip(captured.onward, gradients, strict=True):
            if gradient is None:
                expected = "a loss of the captured forward"
                raise ArgumentError("cross_entropy", expected, f"one without layer {layer}")
            self._add(layer, captured.by_head(layer, gradient), mask)

    def watch(self, captured: Captured, mask: Tensor | None) -> None:
        """Add them during the backward pass of the micro-batch."""
        for layer, tensor in captured.onward.items():
            tensor.register_hook(lambda g, layer=layer: self._add(layer, captured.by_head(layer, g), mask))

    def sums(self) -> dict[int, Tensor]:
        """Sums of the step so far, the mean over processes."""
        means = {layer: mean_over_ranks(products) for layer, products in sorted(self._sums.items())}
        for layer, products in means.items():
            if not torch.isfinite(products).all():
                expected = f"finite gradients at the heads of layer {layer}"
                raise ArgumentError("loss", expected, "NaN or infinity")
        return means

    def _add(self, layer: int, gradient: Tensor, mask: Tensor | None) -> None:
        rows = gradient.detach()  # [B, T, H, d]
        products = gradient_products(rows if mask is None else rows[mask])
        self._sums[layer] = self._sums[layer] + products if layer in self._sums else products
