"""From a configuration to live objects."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from diabat.config.errors import ConfigError, refused
from diabat.config.schema import Config
from diabat.config.sections import SamplerChoice
from diabat.models import PairModelOptions
from diabat.samplers.registry import sampler
from diabat.tasks import PairOptions, PairTask
from diabat.tasks import build_task as task_from_options

if TYPE_CHECKING:
    from diabat.models import Model
    from diabat.samplers.base import Sampler
    from diabat.tasks import Task
    from diabat.training import TrainResult


def use_threads(config: Config) -> None:
    """Give torch the number of CPU threads that the configuration asks for."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)


def choose_device(config: Config) -> torch.device:
    """Return the device that the configuration asks for; under torchrun each process has its own.

    Raises:
        ConfigError: If there is no CUDA device and one is asked for.
    """
    available = torch.cuda.is_available()
    if config.device == "cuda" and not available:
        raise ConfigError("device", "expected a CUDA device, got none; use device=cpu or device=auto.")
    if config.device == "cpu" or not available:
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def build_sampler(choice: SamplerChoice, key: str = "sampler") -> Sampler:
    """Build a backend.

    Args:
        choice: Backend and options.
        key: Dotted key of the section, for errors.

    Raises:
        ConfigError: If the backend refuses the value of an option.
    """
    try:
        return sampler(choice.backend, **choice.options)
    except (ValueError, TypeError, OSError) as error:
        raise refused(error, key) from error


def build_task(config: Config) -> Task | PairTask:
    """Build the task, reading its data.

    Raises:
        DataError: If the data cannot be found, verified or downloaded.
        ConfigError: If the tokenizer of sentence pairs cannot be loaded.
        ImportError: If sentence pairs need the extra ``hf`` and it is not installed.
    """
    if isinstance(config.task, PairOptions) and isinstance(config.model, PairModelOptions):
        from diabat.runs.build_pairs import build_pair_task

        return build_pair_task(config.task, config.model)
    assert not isinstance(config.task, PairOptions)  # the schema sees to it that task and model fit
    return task_from_options(config.task)


def build_model(config: Config, task: Task | PairTask, backend: Sampler | None = None) -> Model:
    """Build the model of a task with weights drawn from ``config.seed``; reseeds torch's global generator.

    Args:
        config: The configuration.
        task: Gives vocabulary, classes and window.
        backend: The sampler, built from the configuration if None.

    Raises:
        ConfigError: If sampler, mode and gradient do not fit together, or an encoder cannot be loaded.
    """
    from diabat.models import Transformer

    backend = build_sampler(config.sampler) if backend is None else backend
    if isinstance(config.model, PairModelOptions) or isinstance(task, PairTask):
        from diabat.runs.build_pairs import build_pair_model

        assert isinstance(task, PairTask)
        return build_pair_model(config, task.tokenizer, task.num_classes, backend)
    torch.manual_seed(config.seed)
    try:
        return Transformer(
            config.model,
            task.vocab_size,
            task.num_classes,
            task.window,
            sampler=backend,
            gradient=config.gradient,
        )
    except (ValueError, TypeError) as error:
        # The attention layer speaks of its own arguments; the user set them in the sections model and task.
        sections = {"mode": "model", "embed_dim": "model", "window": "task"}
        raise refused(error, sections.get(getattr(error, "argument", "") or "", "")) from error


def run_training(config: Config, *, resume: bool = False, progress: bool = True) -> TrainResult:
    """Train what the configuration describes, into ``config.output``.

    Args:
        config: The configuration; it is stored with the run.
        resume: Continue the run in the folder.
        progress: Show a progress bar on standard error.

    Raises:
        ConfigError: If sampler, mode and gradient do not fit together.
        DataError: If the data cannot be found, verified or downloaded.
        TrainingError: As :func:`diabat.training.train`.
    """
    from diabat.training import train

    use_threads(config)
    device = choose_device(config)
    backend = build_sampler(config.sampler)  # first: it is quick and may refuse its options
    task = build_task(config)
    model = build_model(config, task, backend).to(device)
    metadata = config.model_dump(mode="json")
    return train(
        model,
        task,
        config.training,
        config.output,
        resume=resume,
        progress=progress,
        extra_metadata=metadata,
    )
