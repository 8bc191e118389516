"""What every model has: its options, which build it, and what a training asks of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from diabat.tasks.base import ExampleKind

if TYPE_CHECKING:
    from diabat.attention.coupled import CoupledHeads
    from diabat.samplers.base import Sampler


class Model(nn.Module):
    """Maps inputs of a task to logits [B, T, C] or [B, C]."""

    options: ModelOptions

    mixes: ClassVar[bool] = False
    """Whether ``forward`` takes the argument ``mixed`` of mixup."""

    def attention_layers(self) -> Sequence[CoupledHeads]:
        """Layers with fields and couplings, first one first."""
        return []

    def check_batches(self, examples: Any, batches: Sequence[Tensor]) -> None:
        """Refuse forward passes over some of the examples (indices, int64 [B]) that exceed the limits of the sampler.

        Raises:
            UnsupportedError: Naming the longest pass.
        """


class ModelOptions(ABC):
    """What the options of every model have: a frozen dataclass whose field ``name`` is the name of the model.

    Attributes:
        examples: Kind of examples that the model takes.
        sampler: Default backend and its options.
    """

    examples: ClassVar[ExampleKind] = "sequences"
    sampler: ClassVar[Mapping[str, Any]] = {}

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the model."""

    @property
    @abstractmethod
    def mode(self) -> str:
        """Terms of the exponent, or a control without them."""

    @property
    def attention(self) -> str:
        """Short description of the attention or pooling."""
        return self.mode

    @property
    @abstractmethod
    def uses_sampler(self) -> bool:
        """Whether the model calls a sampler for marginals."""

    def load_tokenizer(self) -> Any:
        """Load the tokenizer of the model; None if it has none.

        Raises:
            ValueError: If it cannot be loaded.
            ImportError: If the extra ``hf`` is not installed.
        """
        return None

    @abstractmethod
    def build(
        self, vocab_size: int, num_classes: int, window: int, sampler: Sampler, gradient: str, seed: int
    ) -> Model:
        """Build the model with weights drawn from a seed; reseeds torch's global generator.

        Args:
            vocab_size: Number of input symbols.
            num_classes: Number of classes C.
            window: Largest length T of an example.
            sampler: Backend of the marginals.
            gradient: Gradient estimator of the backend.
            seed: Seed of the weights.

        Raises:
            ValueError: If sizes, sampler and gradient do not fit together.
            ImportError: If the extra ``hf`` is needed and not installed.
        """
