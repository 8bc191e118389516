"""Gradients of several losses with respect to the same parameters, added up over micro-batches and processes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

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
            raise UnsupportedError(
                "model", "expected trained parameters, got none; wrap it with get_peft_model, or unfreeze it."
            )
        self.clear()

    def clear(self) -> None:
        """Drop what was added up."""
        self._sums: dict[str, Tensor] = {}

    def add(self, name: str, loss: Tensor, others: Sequence[Tensor] = ()) -> tuple[Tensor | None, ...]:
        """Add the gradient of a loss to those of its name; the graph is kept.

        Returns:
            The gradients with respect to ``others``, which are not added up.
        """
        inputs = [*self.parameters, *others]
        found: Sequence[Tensor | None] = [None] * len(inputs)
        if loss.requires_grad:
            found = torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True)
        pairs = zip(self.parameters, found, strict=False)
        flat = torch.cat([(torch.zeros_like(p) if g is None else g).float().flatten() for p, g in pairs])
        self._sums[name] = self._sums[name] + flat if name in self._sums else flat
        return tuple(found[len(self.parameters) :])

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
