"""The state of decoding a whole model: the states of its attention layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diabat.attention.decoding import DecodingState
from diabat.checks import ArgumentError, ArgumentTypeError


@dataclass(frozen=True, eq=False)
class ModelState:
    """States of all attention layers after the same tokens.

    ``Transformer.step`` leaves the state it is given as it is, so that several continuations can start from one.
    """

    layers: tuple[DecodingState, ...]
    """State of each layer, first block first."""

    @property
    def position(self) -> Tensor:
        """Position of the next token, int64 []."""
        return self.layers[0].position

    def reorder(self, rows: Tensor) -> ModelState:
        """Select sequences, e.g. the beams that survive; rows int64 [B'] are those that the new ones continue.

        Raises:
            ValueError: If the rows are not int64 with one dimension.
        """
        return ModelState(tuple(layer.reorder(rows) for layer in self.layers))

    def to(self, device: torch.device | str) -> ModelState:
        """Move all tensors."""
        return ModelState(tuple(layer.to(device) for layer in self.layers))


def check_symbols(argument: str, value: Any, shape: str) -> None:
    """Refuse anything but int64 of a shape such as "[B, L]", without empty dimensions."""
    is_tensor = isinstance(value, Tensor)
    if not is_tensor or value.dtype != torch.int64 or value.ndim != shape.count(",") + 1 or not value.numel():
        got = f"{value.dtype} {list(value.shape)}" if is_tensor else type(value).__name__
        raise ArgumentError(argument, f"int64 {shape} without empty dimensions", got)


def check_state(state: Any, num_layers: int) -> None:
    """Refuse anything but None or a state of a model of so many layers."""
    if not isinstance(state, ModelState | None):
        raise ArgumentTypeError("state", "a ModelState or None", type(state).__name__)
    if state is not None and len(state.layers) != num_layers:
        raise ArgumentError("state", f"the states of {num_layers} layers", f"those of {len(state.layers)}")
