"""Tasks of sentence pairs and their classifier, from a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from diabat.config.errors import ConfigError, refused
from diabat.config.schema import Config
from diabat.models import PairModelOptions
from diabat.tasks import PairOptions, PairTask, pair_task

if TYPE_CHECKING:
    from diabat.models import PairClassifier
    from diabat.samplers.base import Sampler


def build_pair_task(options: PairOptions, model: PairModelOptions) -> PairTask:
    """Read and tokenize the pairs of a task with the tokenizer of a model.

    Raises:
        ConfigError: If there is no such tokenizer, or the window is too short for it.
        DataError: If the data cannot be found or read.
        ImportError: If the extra ``hf`` is not installed.
    """
    tokenizer = build_tokenizer(model)
    try:
        return pair_task(options, tokenizer)
    except ValueError as error:
        raise refused(error, "task") from error


def build_tokenizer(model: PairModelOptions) -> Any:
    """Load the tokenizer of a model.

    Raises:
        ConfigError: If there is none.
        ImportError: If the extra ``hf`` is not installed.
    """
    from diabat.tasks.hub import load_tokenizer

    argument = "model.encoder" if model.tokenizer is None else "model.tokenizer"
    try:
        return load_tokenizer(
            model.tokenizer or model.encoder, local_files_only=model.local_files_only, argument=argument
        )
    except ValueError as error:
        raise refused(error) from error


def build_pair_model(config: Config, tokenizer: Any, num_classes: int, backend: Sampler) -> PairClassifier:
    """Build the classifier of a configuration; new weights are drawn from ``config.seed``.

    Raises:
        ConfigError: If there is no such encoder, or it does not fit the task or the sampler.
        ImportError: If the extra ``hf`` is not installed.
    """
    from diabat.models import PairClassifier
    from diabat.models.encoder import load_encoder, positions_of, vocabulary_of, width_of

    options, window = config.model, config.task.window
    assert isinstance(options, PairModelOptions)
    torch.manual_seed(config.seed)
    try:
        encoder = load_encoder(
            options.encoder,
            pretrained=options.pretrained,
            changes=options.encoder_config,
            local_files_only=options.local_files_only,
        )
        limit, rows = positions_of(encoder), vocabulary_of(encoder)
        if limit is not None and window > limit:
            raise ConfigError(
                "task.window", f"expected at most {limit}, the encoder's positions, got {window}."
            )
        if len(tokenizer) > rows:
            raise ConfigError(
                "model.tokenizer", f"expected at most {rows} tokens as the encoder has, got {len(tokenizer)}."
            )
        # Its own draws: poolings of one seed start with the same classifier whatever the encoder drew.
        torch.manual_seed(config.seed)
        return PairClassifier(
            options, encoder, width_of(encoder), num_classes, window, backend, config.gradient
        )
    except ConfigError:
        raise
    except (ValueError, TypeError) as error:
        sections = {"window": "task", "sampler": "", "gradient": ""}
        raise refused(error, sections.get(getattr(error, "argument", "") or "", "model")) from error
