"""Build samplers, tasks and models from a configuration, and train them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from diabat.documents.errors import ConfigError, of_section, refused
from diabat.lab.config.loading import load_config, to_plain
from diabat.lab.config.schema import Config, SamplerChoice
from diabat.lab.training import TrainResult, train
from diabat.lab.training.evaluate import BATCH
from diabat.lab.training.folder import CONFIG
from diabat.lab.training.train import FREE_ON_RESUME
from diabat.samplers.registry import sampler
from diabat.version import __version__

if TYPE_CHECKING:
    from diabat.lab.models import Model
    from diabat.lab.tasks import Task
    from diabat.samplers.base import Sampler


ELSEWHERE: Mapping[str | None, str] = {
    None: "",
    "window": "task.window",
    **{name: name for name in ("sampler", "gradient", "fields", "couplings", "three_body")},
}
"""Arguments of tasks and layers that are keys of another section, or that belong to a problem and are not keys."""


def use_threads(config: Config) -> None:
    """Set torch's number of CPU threads from the configuration."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)


def choose_device(config: Config) -> torch.device:
    """The device of the configuration, under torchrun one per process; ConfigError if CUDA is required but missing."""
    available = torch.cuda.is_available()
    if config.device == "cuda" and not available:
        raise ConfigError("device", "a CUDA device", "none; use device=cpu or device=auto")
    if config.device == "cpu" or not available:
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def build_sampler(choice: SamplerChoice, key: str = "sampler") -> Sampler:
    """Build a backend; ConfigError, under the dotted key of its section, if it refuses the value of an option."""
    try:
        return sampler(choice.backend, **choice.options)
    except (ValueError, TypeError, OSError) as error:
        raise refused(error, key) from error


def build_task(config: Config) -> Task:
    """Build the task, reading its data.

    Raises:
        DataError: If the data cannot be found, verified or downloaded.
        ConfigError: If the task refuses an option.
    """
    with of_section("task", ELSEWHERE):
        return config.task.build()


def build_model(config: Config, task: Task, backend: Sampler | None = None) -> Model:
    """Build the model of a task with weights drawn from ``config.seed``; reseeds torch's global generator.

    The sampler is built from the configuration if ``backend`` is None.

    Raises:
        ConfigError: If sampler, mode and gradient do not fit together.
    """
    backend = build_sampler(config.sampler) if backend is None else backend
    sizes = (task.vocab_size, task.num_classes, task.window)
    with of_section("model", ELSEWHERE):
        return config.model.build(*sizes, backend, config.gradient, config.seed)


# They change no answer: a run that spent its budget goes on with more.
_PAID = ("max_reads", "max_qpu_seconds", "retries", "retry_wait_s")
_FREE = {"task.data", "task.symbols", *(f"training.{name}" for name in FREE_ON_RESUME)}
_FREE |= {f"sampler.{name}" for name in _PAID}
_BUILT = {"task.words", "task.classes", "task.window"}  # which a run stores where they are left to the data
_SECTIONS = ("seed", "task", "model", "sampler", "gradient", "training")


def run_training(config: Config, *, resume: bool = False, progress: bool = True) -> TrainResult:
    """Train what the configuration describes into ``config.output``, or continue the run in that folder.

    The configuration is stored with the run; ``progress`` shows a bar on standard error.

    Raises:
        ConfigError: If sampler, mode and gradient do not fit together.
        DataError: If the data cannot be found, verified or downloaded.
        TrainingError: As :func:`diabat.lab.training.train`.
    """
    use_threads(config)
    device = choose_device(config)
    backend = build_sampler(config.sampler)  # first: it is quick and may refuse its options
    task = build_task(config)
    model = build_model(config, task, backend).to(device)
    with of_section():
        for name, split in task.sets.items():
            model.check_lengths(split.inputs, config.training.batch_size if name == "train" else BATCH)
    stored = to_plain(config.model_copy(update={"task": config.task.as_built(task)}))
    used = {key: value for key, value in stored.items() if key not in ("fidelity", "anneal")}
    used["resolved"] = {"diabat": __version__, **backend.resolved}
    options = {"resume": resume, "progress": progress}
    return train(model, task, config.training, config.output, **options, extra_metadata=used)


def require_same_run(config: Config) -> None:
    """Refuse to resume a run under another configuration, naming the key; limits, budgets and paths may change.

    The training loop itself compares its options (including those that depend on each other), the data and the
    shapes of the weights; the sampler and the estimator are compared only here.
    """
    stored = config.output / CONFIG
    if not stored.is_file():
        return  # the training loop reports that there is nothing to resume
    before, now = to_plain(load_config(stored, trust=True)), to_plain(config)
    for section in _SECTIONS:
        old, new = before[section], now[section]
        pairs = {section: (old, new)}
        if isinstance(old, dict):
            pairs = {f"{section}.{key}": (old.get(key), new.get(key)) for key in old | new}
        for place, (was, value) in pairs.items():
            if was != value and place not in _FREE and not (value is None and place in _BUILT):
                got = f"{value!r}; a resumed run keeps its configuration"
                raise ConfigError(place, f"{was!r} as in the run in '{config.output}'", got)
