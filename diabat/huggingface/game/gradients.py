"""Gradients of several losses with respect to the same parameters, added up over micro-batches and processes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from diabat.samplers.base import UnsupportedError


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
    """One gradient vector per loss, over all trained parameters of a model.

    Args:
        model: Its parameters with ``requires_grad``.

    Raises:
        UnsupportedError: There are none.
    """

    def __init__(self, model: nn.Module) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise UnsupportedError(
                "model", "expected trained parameters, got none; wrap it with get_peft_model, or unfreeze it."
            )
        self._sums: dict[str, list[Tensor | None]] = {}

    def clear(self) -> None:
        """Drop what was added up."""
        self._sums = {}

    def add(self, name: str, loss: Tensor, others: Sequence[Tensor] = ()) -> tuple[Tensor | None, ...]:
        """Add the gradient of a loss to those of its name; the graph is kept.

        Returns:
            The gradients with respect to ``others``, which are not added up.
        """
        inputs = [*self.parameters, *others]
        found: Sequence[Tensor | None] = [None] * len(inputs)
        if loss.requires_grad:
            found = torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True)
        count = len(self.parameters)
        former = self._sums.get(name, [None] * count)
        self._sums[name] = [_sum(a, b) for a, b in zip(former, found[:count], strict=True)]
        return tuple(found[count:])

    def rows(self) -> tuple[list[str], Tensor]:
        """Names and gradients [K, P] in float32, the mean over processes; parameters without gradient have 0."""
        flat = [
            torch.cat([
                torch.zeros(p.numel(), device=p.device) if g is None else g.float().flatten()
                for p, g in zip(self.parameters, gradients, strict=True)
            ])
            for gradients in self._sums.values()
        ]  # fmt: skip
        return list(self._sums), mean_over_ranks(torch.stack(flat))

    def surrogate(self, value: Tensor, gradient: Tensor | None) -> Tensor:
        """Scalar with a value and, for its gradient, the vector [P] that is given; None for zero.

        It depends on every parameter, as DistributedDataParallel expects of a loss.
        """
        sizes = [p.numel() for p in self.parameters]
        parts = [None] * len(sizes) if gradient is None else gradient.split(sizes)
        total = value.detach()
        for parameter, part in zip(self.parameters, parts, strict=True):
            if part is None:
                product = (parameter * torch.zeros_like(parameter)).sum()
            else:
                product = (parameter * part.view_as(parameter).to(parameter.dtype)).sum()
            total = total + (product - product.detach())
        return total


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b
