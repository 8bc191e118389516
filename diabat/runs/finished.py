"""Finished runs: their configuration, data and weights, evaluated and explained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.config.errors import ConfigError
from diabat.config.loading import find_run, load_config
from diabat.config.schema import Config
from diabat.models import PairClassifier, PairModelOptions, Transformer
from diabat.runs.build import (
    build_model,
    build_model_of_sizes,
    build_task,
    build_tokenizer,
    choose_device,
    use_threads,
)
from diabat.samplers.state import reset_chains, weights_of
from diabat.tasks import DataError, ExampleKind, PairOptions, Task
from diabat.training.checkpoint import copy_tensors, read_checkpoint
from diabat.training.evaluate import evaluate, own_random_numbers, predict, tally
from diabat.training.folder import BEST
from diabat.training.optimizer import autocast
from diabat.training.scores import Scores, score

if TYPE_CHECKING:
    from diabat.models import Model
    from diabat.models.explanation import DecoderExplanation, PairExplanation

M = TypeVar("M", bound="Model")


@dataclass(frozen=True, eq=False)
class Run:
    """A trained model with its chosen weights, in evaluation mode, its configuration and its task."""

    config: Config
    task: Task
    model: Model


@dataclass(frozen=True, eq=False)
class TrainedClassifier:
    """A classifier of sentence pairs without its data, in evaluation mode."""

    config: Config
    task: PairOptions
    tokenizer: Any
    model: PairClassifier


@dataclass(frozen=True)
class Evaluation:
    """Outcome of an evaluation on the examples ``split`` of a task.

    Attributes:
        metric: ``perplexity`` or ``accuracy``.
        count: Predictions that the value is the mean of.
        loss: Mean cross-entropy in nats.
        scores: Scores by class, for classifiers of pairs.
        dropped: Examples of the source that were left out because they have no agreed label.
        parts: The metric on named parts of the set; empty if the task has none.
    """

    task: str
    split: str
    metric: str
    value: float
    count: int
    loss: float
    scores: Scores | None
    dropped: int
    parts: Mapping[str, float]


def load_run(path: str | Path, overrides: Iterable[str] = (), *, trust: bool = False) -> Run:
    """Load a run with its data.

    The path is the folder of a run, of which the weights with the lowest validation loss are loaded, or one of its
    checkpoints; ``latest.safetensors`` gives the averaged weights if the run averages weights.  Overrides change the
    configuration, e.g. the path of the data; ``trust`` is as for :func:`diabat.config.load_config`.

    Raises:
        ConfigError: If the folder holds no run, or one that would have to be trusted.
        CheckpointError: If the checkpoint is damaged or missing.
        DataError: If the data cannot be found.
    """
    config, weights = _stored(path, overrides, trust)
    try:
        task = build_task(config)
    except DataError as error:
        moved = "; if the data of the run have moved, give task.data=PATH" * ("task.data" not in str(error))
        raise DataError(f"{str(error).removesuffix('.')}{moved}.") from error
    return Run(config, task, _loaded(build_model(config, task), weights, config, path))


def load_classifier(
    path: str | Path, overrides: Iterable[str] = (), *, trust: bool = False
) -> TrainedClassifier:
    """As :func:`load_run`, without data, of a classifier of sentence pairs; another run is a ConfigError."""
    config, weights = _stored(path, overrides, trust)
    task = config.task
    if not isinstance(config.model, PairModelOptions) or not isinstance(task, PairOptions):
        got = f"got the task '{task.name}'."
        raise ConfigError(f"'{path}'", f"expected a run of a classifier of sentence pairs, {got}")
    tokenizer = build_tokenizer(config)
    model = build_model_of_sizes(config, len(tokenizer), len(task.class_names), task.window)
    assert isinstance(model, PairClassifier)
    return TrainedClassifier(config, task, tokenizer, _loaded(model, weights, config, path))


def explain_run(
    path: str | Path, premise: str, hypothesis: str, overrides: Iterable[str] = (), *, trust: bool = False
) -> PairExplanation:
    """Explain the prediction of a trained classifier for one pair of sentences; needs no data.

    ``training.seed`` is the seed of coalitions and reads.  Raises ValueError if a sentence is empty, and what
    :func:`load_classifier` raises.
    """
    from diabat.models.explanation import explain_pair

    run = load_classifier(path, overrides, trust=trust)
    with _as_evaluated(run):
        return explain_pair(run.model, run.tokenizer, premise, hypothesis, run.task.class_names)


def explain_decoder_run(
    path: str | Path,
    text: str,
    overrides: Iterable[str] = (),
    *,
    position: int | None = None,
    trust: bool = False,
) -> DecoderExplanation:
    """Explain a trained decoder over a text of its task, of bracket matching a word such as ``(a(b)c)``.

    ``position`` is that of the query whose correlations are computed, None for the last one; ``training.seed`` is the
    seed of reads.  The data, which have the characters, are needed.

    Raises:
        ConfigError: If the run is not that of a decoder, and as :func:`load_run`.
        ValueError: If the text is empty or too long, has another character, or does not have this position.
    """
    from diabat.models.explanation import explain_decoder

    if examples_of_run(path) != "sequences":
        raise ConfigError(f"'{path}'", "expected a run of a decoder, got one of a classifier of pairs.")
    run = load_run(path, overrides, trust=trust)
    assert isinstance(run.model, Transformer)
    form = run.task.text
    if form is None:
        got = f"got '{run.task.name}' with {run.task.vocab_size} symbols."
        raise ConfigError(f"'{path}'", f"expected a task whose symbols have characters, {got}")
    symbols = form.encode(text)
    names = dict(enumerate(form.classes))  # without a name: targets that are ignored or beyond the classes
    targets = [names.get(target) for target in form.targets(symbols[None])[0].tolist()]
    with _as_evaluated(run), reset_chains(run.model):
        return explain_decoder(run.model, symbols, text, form.classes, targets=targets, position=position)


@contextmanager
def _as_evaluated(run: Run | TrainedClassifier) -> Iterator[None]:
    """Random numbers and precision of the run's own evaluation."""
    training, device = run.config.training, next(run.model.parameters()).device
    with own_random_numbers(run.model, training.seed), autocast(training.precision, device):
        yield


def examples_of_run(path: str | Path) -> ExampleKind:
    """``sequences`` or ``pairs``, which the model of a run takes; ConfigError if the folder holds no run."""
    return load_config(_parts(Path(path))[0], trust=True).model.examples


def evaluate_run(run: Run, split: str = "validation") -> Evaluation:
    """Evaluate a run on one of its sets: ``train``, ``validation`` or ``test``; ArgumentError if it is not there."""
    task, training = run.task, run.config.training
    if split not in task.sets:
        there = ", ".join(task.sets)
        raise ArgumentError("split", f"expected one of {there} for the task '{task.name}', got '{split}'.")
    examples = task.sets[split].to(next(run.model.parameters()).device)
    options: dict[str, Any] = {"seed": training.seed, "precision": training.precision}
    if task.classes is None:
        scores, (loss, accuracy) = None, evaluate(run.model, examples, **options)
        count = examples.counted(torch.arange(len(examples)))
    else:
        scores = score(*predict(run.model, examples, **options), task.classes)
        loss, accuracy, count = scores.loss, scores.accuracy, scores.count
    parts = {}
    if task.parts is not None:
        logits, _ = predict(run.model, examples, **options)
        for name, part in task.parts(task.sets[split]).items():
            total, right, number = tally(logits, part.targets)
            parts[name] = task.metric_value(total / number, right / number)
    value, dropped = task.metric_value(loss, accuracy), task.dropped.get(split, 0)
    return Evaluation(task.name, split, task.metric, value, count, loss, scores, dropped, parts)


def _loaded(model: M, weights: dict[str, Tensor], config: Config, path: str | Path) -> M:
    """The model with these weights, on its device, in evaluation mode."""
    copy_tensors(weights, weights_of(model), Path(path))
    return model.to(choose_device(config)).eval()


def _stored(path: str | Path, overrides: Iterable[str], trust: bool) -> tuple[Config, dict[str, Tensor]]:
    """Read configuration and weights of a run or checkpoint, and set torch's number of threads."""
    stored, checkpoint = _parts(Path(path))
    config = load_config(stored, overrides, trust=trust)
    use_threads(config)
    tensors, _ = read_checkpoint(checkpoint)
    weights = {name: tensor for name, tensor in tensors.items() if "/" not in name}
    averaged = {n.removeprefix("average/"): t for n, t in tensors.items() if n.startswith("average/")}
    return config, weights | averaged


def _parts(path: Path) -> tuple[Path, Path]:
    """Configuration of a run, and the checkpoint that the path means."""
    return find_run(path), path if path.suffix == ".safetensors" else path / BEST
