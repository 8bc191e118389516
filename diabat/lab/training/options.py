"""Options of a training run, and the published values of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from diabat.checks import check_choice, check_number, keep_count

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class TrainOptions:
    """Options of a run; the defaults are the published Tiny Shakespeare protocol.

    Attributes:
        learning_rate: AdamW learning rate of everything except the couplings.
        coupling_learning_rate: AdamW learning rate of J, K and biases per offset.
        schedule_learning_rate: AdamW learning rate of learnable anneals, radians per step; they do not decay.
        weight_decay: Decoupled weight decay of everything except the couplings.
        coupling_weight_decay: Decoupled weight decay of J, K and biases per offset.
        clip: Largest Euclidean norm of the gradient of all parameters together.
        batch_size: Sequences per step, over all processes; the last batch of an epoch may be smaller.
        accumulation: Number of pieces in which the sequences of a step are computed one by one, to save memory.
        max_epochs: Passes over the training data at most.
        max_steps: Steps at most, None for no limit.
        patience: Epochs without a lower validation loss after which the run stops.
        precision: ``float32``, or ``bfloat16`` in forward passes (autocast).
        checkpoint_every: Steps between two checkpoints.
        seed: Seed of the order of the data, of dropout and of the samplers.
        log_every: Steps between two ``step`` lines in metrics.jsonl, 0 for lines at the end of epochs only.
    """

    learning_rate: float = 1e-3
    coupling_learning_rate: float = 3e-5
    schedule_learning_rate: float = 1e-3
    weight_decay: float = 0.01
    coupling_weight_decay: float = 0.01
    clip: float = 1.0
    batch_size: int = 64
    accumulation: int = 1
    max_epochs: int = 200
    max_steps: int | None = None
    patience: int = 20
    precision: Precision = "float32"
    checkpoint_every: int = 1_000
    seed: int = 0
    log_every: int = 0

    def __post_init__(self) -> None:
        rates = ("learning_rate", "coupling_learning_rate", "schedule_learning_rate")
        for name in (*rates, "weight_decay", "coupling_weight_decay"):
            check_number(name, getattr(self, name), "[0, inf)")
        check_number("clip", self.clip, "(0, inf]")
        for name in ("batch_size", "accumulation", "max_epochs", "max_steps", "patience", "checkpoint_every"):
            keep_count(self, name, optional=name == "max_steps")
        keep_count(self, "log_every", least=0)
        keep_count(self, "seed", least=0, most=2**31 - 1)
        check_choice("precision", self.precision, get_args(Precision))


# Written out, so that another default moves no table of the paper.
_PUBLISHED = TrainOptions(
    learning_rate=1e-3, coupling_learning_rate=3e-5, weight_decay=0.01, coupling_weight_decay=0.01,
    clip=1.0, batch_size=64, max_epochs=200, patience=20,
)  # fmt: skip
PROTOCOLS: Mapping[str, TrainOptions] = {
    "shakespeare": _PUBLISHED,
    "brackets": replace(_PUBLISHED, learning_rate=3e-4, coupling_learning_rate=1e-4),
}
"""Published options by the name of the task; options that the paper does not give have default values."""
