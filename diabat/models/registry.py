"""Registry of models by name: options and builder of each.  A new model is one more entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from diabat.checks import ArgumentError
from diabat.models.pairs import PairClassifier, PairModelOptions
from diabat.models.transformer import Transformer
from diabat.models.transformer_options import TransformerOptions
from diabat.tasks.hub import load_tokenizer
from diabat.tasks.registry import ExampleKind

if TYPE_CHECKING:
    from diabat.samplers.base import Sampler
    from diabat.tasks import PairTask, Task


class ModelOptions(Protocol):
    """Properties of the options of every model."""

    @property
    def name(self) -> str:
        """Name of the model."""

    @property
    def mode(self) -> str:
        """Terms of the exponent, or a control without them."""

    @property
    def attention(self) -> str:
        """Short description of the attention or pooling."""

    @property
    def uses_sampler(self) -> bool:
        """Whether the model calls a sampler for marginals."""


@dataclass(frozen=True)
class ModelKind:
    """A kind of model.

    Attributes:
        options: Class of its options, whose field ``name`` is the name of the model.
        build: Builds the model from its options, a task, a sampler, a gradient estimator and a seed of the weights,
            which reseeds torch's global generator.
        examples: Kind of examples that the model takes.
        tokenizer: Loads the tokenizer of the options, for ``pairs``.
        sampler: Default backend and options.
    """

    options: type
    build: Callable[[Any, Any, Sampler, str, int], Transformer | PairClassifier]
    examples: ExampleKind = "sequences"
    tokenizer: Callable[[Any], Any] | None = None
    sampler: Mapping[str, Any] = field(default_factory=dict)


def _transformer(
    options: TransformerOptions, task: Task, sampler: Sampler, gradient: str, seed: int
) -> Transformer:
    torch.manual_seed(seed)
    sizes = (task.vocab_size, task.num_classes, task.window)
    try:
        return Transformer(options, *sizes, sampler=sampler, gradient=gradient)
    except ArgumentError as error:
        if error.argument != "window" or options.attention_window is None:
            raise
        raise type(error)("attention_window", error.reason) from error  # the option that gave the window


def pair_tokenizer(options: PairModelOptions) -> Any:
    """Load the tokenizer of a pair classifier.

    Raises:
        ValueError: If there is none; the argument is ``tokenizer`` or ``encoder``.
        ImportError: If the extra ``hf`` is not installed.
    """
    return load_tokenizer(
        options.tokenizer or options.encoder,
        local_files_only=options.local_files_only,
        argument="encoder" if options.tokenizer is None else "tokenizer",
    )


def _pairs(
    options: PairModelOptions, task: PairTask, sampler: Sampler, gradient: str, seed: int
) -> PairClassifier:
    return pair_classifier(options, task.tokenizer, task.num_classes, task.window, sampler, gradient, seed)


def pair_classifier(
    options: PairModelOptions,
    tokenizer: Any,
    num_classes: int,
    window: int,
    sampler: Sampler,
    gradient: str,
    seed: int,
) -> PairClassifier:
    """Load the encoder of a pair classifier and build it; new weights are drawn from ``seed``.

    Raises:
        ValueError: If there is no such encoder, or it does not fit the window, the tokenizer or the sampler.
        ImportError: If the extra ``hf`` is not installed.
    """
    from diabat.models.encoder import load_encoder, positions_of, vocabulary_of, width_of

    torch.manual_seed(seed)
    encoder = load_encoder(
        options.encoder,
        pretrained=options.pretrained,
        changes=options.encoder_config,
        local_files_only=options.local_files_only,
    )
    limit, rows = positions_of(encoder), vocabulary_of(encoder)
    if limit is not None and window > limit:
        raise ArgumentError("window", f"expected at most {limit}, the encoder's positions, got {window}.")
    if len(tokenizer) > rows:
        raise ArgumentError(
            "tokenizer", f"expected at most {rows} tokens as the encoder has, got {len(tokenizer)}."
        )
    # Reseed: poolings of one seed start with the same classifier, whatever the encoder has drawn.
    torch.manual_seed(seed)
    return PairClassifier(options, encoder, width_of(encoder), num_classes, window, sampler, gradient)


MODELS: Mapping[str, ModelKind] = {
    "transformer": ModelKind(TransformerOptions, _transformer),
    # Mean field as in the paper on sentence pairs (arXiv:2603.18761, sec. 7.3).
    "pairs": ModelKind(
        PairModelOptions,
        _pairs,
        examples="pairs",
        tokenizer=pair_tokenizer,
        sampler={"backend": "mean_field", "damping": 0.7, "max_iterations": 25, "tolerance": 1e-4},
    ),
}


def models_for(examples: ExampleKind) -> list[str]:
    """Names of the models that take these examples; the first is the default."""
    return [name for name, kind in MODELS.items() if kind.examples == examples]
