"""The state of decoding a whole model: the states of its attention layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from diabat.attention.decoding import DecodingState
from diabat.checks import ArgumentError, ArgumentTypeError


@dataclass(frozen=True, eq=False)
class ModelState:
    """States of all attention layers after the same tokens.

    ``Transformer.step`` returns a new state and leaves the old one as it is, so that several continuations can start
    from one state.

    Attributes:
        layers: State of each layer, first block first.
    """

    layers: tuple[DecodingState, ...]

    @property
    def position(self) -> Tensor:
        """Position of the next token, int64 []."""
        return self.layers[0].position

    def reorder(self, rows: Tensor) -> ModelState:
        """Select sequences, e.g. the beams that survive.

        Args:
            rows: int64 [B'], index of the sequence that each new one continues.

        Raises:
            ValueError: If it is not int64 with one dimension.
        """
        return ModelState(tuple(layer.reorder(rows) for layer in self.layers))

    def to(self, device: torch.device | str) -> ModelState:
        """Move all tensors."""
        return ModelState(tuple(layer.to(device) for layer in self.layers))


def check_symbols(symbols: Tensor, dimensions: int, argument: str = "symbols") -> None:
    """Refuse anything but symbols, int64 [n] or [B, L] without empty dimensions.

    Raises:
        ValueError: Names the argument.
    """
    tensor = isinstance(symbols, Tensor)
    if not tensor or symbols.dtype != torch.int64 or symbols.ndim != dimensions or 0 in symbols.shape:
        got = f"{symbols.dtype} {list(symbols.shape)}" if tensor else type(symbols).__name__
        form = {1: "[n]", 2: "[B, L]"}[dimensions]
        raise ArgumentError(argument, f"expected int64 {form} without empty dimensions, got {got}.")


def check_tokens_of_step(token: Tensor, state: ModelState | None, num_layers: int) -> None:
    """Refuse anything but one symbol of every sequence, and a state of another model.

    Raises:
        ValueError: Names the argument.
    """
    if not isinstance(token, Tensor) or token.dtype != torch.int64 or token.ndim != 1 or not len(token):
        got = f"{token.dtype} {list(token.shape)}" if isinstance(token, Tensor) else type(token).__name__
        raise ArgumentError("token", f"expected one symbol of every sequence, int64 [B], got {got}.")
    if state is None:
        return
    if not isinstance(state, ModelState):
        raise ArgumentTypeError("state", f"expected a ModelState or None, got {type(state).__name__}.")
    if len(state.layers) != num_layers:
        raise ArgumentError(
            "state", f"expected the states of {num_layers} layers, got those of {len(state.layers)}."
        )
