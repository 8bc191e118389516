"""Mixed precision: autocast, and loss scaling where half precision needs it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.training.options import Precision

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """Context of a forward pass; weights and gradients stay in float32."""
    dtype = _DTYPES[precision]
    enabled = dtype != torch.float32
    return torch.autocast(device.type, dtype=dtype if enabled else None, enabled=enabled)


class Scaler:
    """Scales the loss of float16 runs, so that small gradients do not vanish; otherwise does nothing.

    Args:
        precision: Precision of the run.
        device: Device of the model.
    """

    def __init__(self, precision: Precision, device: torch.device) -> None:
        self.active = precision == "float16"
        self._scaler = torch.amp.GradScaler(device.type, enabled=self.active)

    def backward(self, loss: Tensor) -> None:
        """Differentiate the (scaled) loss."""
        self._scaler.scale(loss).backward()

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Bring the gradients to their true size."""
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the weights, unless a gradient overflowed: then the step is left out and the scale halved."""
        self._scaler.step(optimizer)
        self._scaler.update()

    @property
    def exhausted(self) -> bool:
        """Whether halving cannot be the remedy any more."""
        return self._scaler.get_scale() < 1

    def tensors(self) -> dict[str, Tensor]:
        """State for a checkpoint; empty if nothing is scaled."""
        state = self._scaler.state_dict()
        return {
            f"scaler.{key}": torch.tensor(state[key], dtype=torch.float64) for key in _STATE if key in state
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what :meth:`tensors` gave.

        Raises:
            KeyError: If one is missing.
            ValueError: If one is no finite number >= 0.
        """
        if self.active:
            values = {key: tensors[f"scaler.{key}"] for key in _STATE}
            for key, value in values.items():
                if value.numel() != 1 or not 0 <= float(value) < math.inf:
                    raise ArgumentError(
                        f"scaler.{key}",
                        f"expected a finite number >= 0, got {value.flatten().tolist()!r:.60}",
                    )
            saved = {"scale": float(values["scale"]), "_growth_tracker": int(values["_growth_tracker"])}
            self._scaler.load_state_dict({**self._scaler.state_dict(), **saved})


_STATE = ("scale", "_growth_tracker")
