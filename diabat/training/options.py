"""Options of a training run, and the published values for each task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class TrainOptions:
    """Options of a run; the defaults are the published Tiny Shakespeare protocol.

    Attributes:
        learning_rate: AdamW learning rate of everything except the couplings.
        coupling_learning_rate: AdamW learning rate of J and K.
        schedule_learning_rate: AdamW learning rate of learnable anneals, radians per step; they do not decay.
        weight_decay: Decoupled weight decay of everything except the couplings.
        coupling_weight_decay: Decoupled weight decay of J and K.
        clip: Largest Euclidean norm of the gradient of all parameters together.
        batch_size: Sequences per step; the last batch of an epoch may be smaller.
        max_epochs: Passes over the training data at most.
        max_steps: Steps at most, None for no limit.
        patience: Epochs without a lower validation loss after which the run stops.
        checkpoint_every: Steps between two checkpoints.
        seed: Seed of the order of the data, of dropout and of the samplers.
        log_every: Steps between two ``step`` lines in metrics.jsonl, 0 for lines at the end of epochs only.
        tensorboard: Also write TensorBoard event files into the run folder (needs the extra ``tensorboard``).
    """

    learning_rate: float = 1e-3
    coupling_learning_rate: float = 3e-5
    schedule_learning_rate: float = 1e-3
    weight_decay: float = 0.01
    coupling_weight_decay: float = 0.01
    clip: float = 1.0
    batch_size: int = 64
    max_epochs: int = 200
    max_steps: int | None = None
    patience: int = 20
    checkpoint_every: int = 1_000
    seed: int = 0
    log_every: int = 0
    tensorboard: bool = False

    def __post_init__(self) -> None:
        rates = ("learning_rate", "coupling_learning_rate", "schedule_learning_rate")
        for name in (*rates, "weight_decay", "coupling_weight_decay"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name}: expected a finite number >= 0, got {getattr(self, name)}.")
        if not self.clip > 0:
            raise ValueError(f"clip: expected a number > 0, got {self.clip}.")
        for name in ("batch_size", "max_epochs", "patience", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected an integer >= 1, got {getattr(self, name)}.")
        if self.max_steps is not None and self.max_steps < 1:
            raise ValueError(f"max_steps: expected an integer >= 1 or None, got {self.max_steps}.")
        if self.log_every < 0:
            raise ValueError(f"log_every: expected an integer >= 0, got {self.log_every}.")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed: expected an integer in 0 .. 2^31 - 1, got {self.seed}.")


PROTOCOLS: Mapping[str, TrainOptions] = MappingProxyType(
    {
        "shakespeare": TrainOptions(),
        "brackets": TrainOptions(learning_rate=3e-4, coupling_learning_rate=1e-4),
    }
)
"""Published options by the name of the task; what the paper leaves open has the default value."""
