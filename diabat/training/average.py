"""Exponential moving average of the weights, which is what is evaluated and kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from diabat.checks import ArgumentError


class Average:
    """θ̄ ← decay · θ̄ + (1 - decay) · θ after every step, from the initial weights on.

    It forgets over 1 / (1 - decay) steps; a run that is shorter is dominated by its initial weights.

    Args:
        model: Its trainable parameters are averaged.
        decay: In 0 .. 1 (exclusive); 0 is no averaging at all, and costs nothing.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._lerp = get_ema_multi_avg_fn(decay)
        self._live = {n: p for n, p in model.named_parameters() if p.requires_grad} if decay else {}
        self._mean = {name: parameter.detach().clone() for name, parameter in self._live.items()}

    def update(self) -> None:
        """Take note of the weights after a step."""
        if self._mean:
            # AveragedModel would copy what is not trained as well, and take the first step for the average.
            self._lerp(list(self._mean.values()), [p.detach() for p in self._live.values()], 1)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the averages in place of the weights for the block."""
        before = {name: parameter.detach().clone() for name, parameter in self._live.items()}
        self._copy(self._mean)
        try:
            yield
        finally:
            self._copy(before)

    def tensors(self) -> dict[str, Tensor]:
        """Averages by parameter name, for a checkpoint; empty without averaging."""
        return dict(self._mean)

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what :meth:`tensors` gave.

        Raises:
            KeyError: If one is missing.
            ValueError: If one has another shape.
        """
        for name, mean in self._mean.items():
            if (tensor := tensors[name]).shape != mean.shape:  # it would be repeated
                raise ArgumentError(name, f"expected {list(mean.shape)}, got {list(tensor.shape)}")
            mean.copy_(tensor)

    @torch.no_grad()
    def _copy(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self._live[name].copy_(tensor)
