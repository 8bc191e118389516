"""Options of a training run, and the published values for each task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from diabat.checks import check_choice, check_count, check_number

Precision = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class TrainOptions:
    """Options of a run; the defaults are the published Tiny Shakespeare protocol.

    Attributes:
        learning_rate: AdamW learning rate of everything except the couplings.
        coupling_learning_rate: AdamW learning rate of J, K and biases per offset.
        head_learning_rate: AdamW learning rate of the parts on top of an encoder (pooling, classifier, head); None
            takes ``learning_rate``.
        schedule_learning_rate: AdamW learning rate of learnable anneals, radians per step; they do not decay.
        weight_decay: Decoupled weight decay of everything except the couplings.
        coupling_weight_decay: Decoupled weight decay of J, K and biases per offset.
        clip: Largest Euclidean norm of the gradient of all parameters together.
        batch_size: Sequences per step, over all processes; the last batch of an epoch may be smaller.
        accumulation: Number of pieces in which the sequences of a step are computed one by one, to save memory.
        max_epochs: Passes over the training data at most.
        max_steps: Steps at most, None for no limit.
        patience: Epochs without a lower validation loss after which the run stops.
        warmup: Share in 0 .. 1 of the steps of ``max_epochs`` epochs over which the learning rates rise linearly.
        decay_epochs: Numbers of completed epochs after which the learning rates are multiplied by ``decay``.
        decay: Factor of the learning rates at ``decay_epochs``, in 0 .. 1.
        label_smoothing: Probability in 0 .. 1 (exclusive) that the targets give to a random class.
        mixup: Parameter of the Beta distribution of mixup on pooled representations, 0 for none.
        ema_decay: Decay per step of a moving average of the weights; the average is validated and saved as best.  0
            for none.
        precision: ``float32``, or the type of autocast: ``bfloat16``, or ``float16`` with scaled losses.
        checkpoint_every: Steps between two checkpoints.
        seed: Seed of the order of the data, of dropout and of the samplers.
        log_every: Steps between two ``step`` lines in metrics.jsonl, 0 for lines at the end of epochs only.
    """

    learning_rate: float = 1e-3
    coupling_learning_rate: float = 3e-5
    head_learning_rate: float | None = None
    schedule_learning_rate: float = 1e-3
    weight_decay: float = 0.01
    coupling_weight_decay: float = 0.01
    clip: float = 1.0
    batch_size: int = 64
    accumulation: int = 1
    max_epochs: int = 200
    max_steps: int | None = None
    patience: int = 20
    warmup: float = 0.0
    decay_epochs: tuple[int, ...] = ()
    decay: float = 0.1
    label_smoothing: float = 0.0
    mixup: float = 0.0
    ema_decay: float = 0.0
    precision: Precision = "float32"
    checkpoint_every: int = 1_000
    seed: int = 0
    log_every: int = 0

    def __post_init__(self) -> None:
        rates = ("learning_rate", "coupling_learning_rate", "schedule_learning_rate", "head_learning_rate")
        for name in (*rates, "weight_decay", "coupling_weight_decay", "mixup"):
            check_number(name, getattr(self, name), "[0, inf)", optional=name == "head_learning_rate")
        check_number("clip", self.clip, "(0, inf]")
        for name in ("warmup", "decay"):
            check_number(name, getattr(self, name), "[0, 1]")
        for name in ("label_smoothing", "ema_decay"):
            check_number(name, getattr(self, name), "[0, 1)")
        for name in ("batch_size", "accumulation", "max_epochs", "max_steps", "patience", "checkpoint_every"):
            check_count(name, getattr(self, name), optional=name == "max_steps")
        for epoch in self.decay_epochs:
            check_count("decay_epochs", epoch)
        check_count("log_every", self.log_every, least=0)
        check_count("seed", self.seed, least=0, most=2**31 - 1)
        check_choice("precision", self.precision, get_args(Precision))


PROTOCOLS: Mapping[str, TrainOptions] = MappingProxyType(
    {
        "shakespeare": TrainOptions(),
        "brackets": TrainOptions(learning_rate=3e-4, coupling_learning_rate=1e-4),
        "pairs": TrainOptions(  # arXiv:2603.18761, sec. 7.3
            learning_rate=3e-5,
            weight_decay=0.02,
            coupling_weight_decay=0.02,
            batch_size=32,
            accumulation=2,
            warmup=0.1,
            decay_epochs=(3, 4),
            label_smoothing=0.1,
            mixup=0.2,
            ema_decay=0.999,
            max_epochs=5,
        ),
    }
)
"""Published options by the name of the task or the model; options that the papers do not give have default values."""
