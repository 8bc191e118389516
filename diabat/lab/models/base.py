"""What every model has: options, which build it, what a training asks of it, and the state of its decoding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from diabat.attention.decoding import DecodingState
from diabat.checks import ArgumentError, ArgumentTypeError
from diabat.lab.tasks.base import Answers

if TYPE_CHECKING:
    from diabat.attention.layer import IsingLayer
    from diabat.samplers.base import Sampler


class Model(nn.Module):
    """Maps symbols [B, T] to logits [B, T, C], or [B, 1, C] if its answers are of whole sequences."""

    options: ModelOptions

    def attention_layers(self) -> Sequence[IsingLayer]:
        """Layers with fields and couplings, first one first."""
        return []

    def check_lengths(self, symbols: Tensor, batch_size: int) -> None:
        """Raise UnsupportedError for sequences [N, T] whose batches the sampler would refuse, before the first step."""


class ModelOptions(ABC):
    """What the options of every model have: a frozen dataclass whose field ``name`` is the name of the model."""

    answers: ClassVar[Answers] = "positions"
    """What has logits."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the model."""

    @property
    @abstractmethod
    def mode(self) -> str:
        """Terms of the exponent, or a control without them."""

    @property
    def described(self) -> str:
        """What the attention is, in reports."""
        return self.mode

    @property
    @abstractmethod
    def uses_sampler(self) -> bool:
        """Whether the model calls a sampler for marginals."""

    @abstractmethod
    def build(
        self, vocab_size: int, num_classes: int, window: int, sampler: Sampler, gradient: str, seed: int
    ) -> Model:
        """Build the model of sequences up to ``window``, weights drawn from a seed; reseeds torch's global generator.

        ``gradient`` is the estimator of the sampler; ValueError if sizes, sampler and gradient do not fit together.
        """


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
        """Select sequences, e.g. the beams that survive; rows int64 [B'] (else ValueError) are those they continue."""
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
