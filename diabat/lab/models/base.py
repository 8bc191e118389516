"""What every model has: its options, which build it, and what a training asks of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor, nn

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
        """Refuse sequences [N, T] whose batches the sampler would refuse, before the first step.

        Raises:
            UnsupportedError: If they are too long.
        """


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
        """Build the model with weights drawn from a seed; reseeds torch's global generator.

        Args:
            vocab_size: Number of input symbols.
            num_classes: Number of classes C.
            window: Largest length T of a sequence.
            sampler: Backend of the marginals.
            gradient: Gradient estimator of the backend.
            seed: Seed of the weights.

        Raises:
            ValueError: If sizes, sampler and gradient do not fit together.
        """
