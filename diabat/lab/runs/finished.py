"""Finished runs: their configuration, data and weights, evaluated and explained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from diabat.attention.coupled import couplings_of
from diabat.checkpoints import read_checkpoint
from diabat.checks import ArgumentError
from diabat.documents.errors import ConfigError
from diabat.lab.config.loading import find_run, load_config
from diabat.lab.config.schema import Config
from diabat.lab.models import PairClassifier, Transformer
from diabat.lab.models.learned_couplings import LearnedCouplings
from diabat.lab.runs.build import build_model, build_sampler, build_task, choose_device, use_threads
from diabat.lab.tasks import DataError, Task
from diabat.lab.training.checkpoint import copy_tensors
from diabat.lab.training.evaluate import autocast, evaluate, own_random_numbers, predict, tally
from diabat.lab.training.folder import BEST
from diabat.samplers.state import reset_chains, weights_of

if TYPE_CHECKING:
    from diabat.lab.models import Model
    from diabat.lab.models.explanation import DecoderExplanation
    from diabat.lab.models.pair_explanation import PairExplanation


@dataclass(frozen=True, eq=False)
class Run:
    """A trained model with its chosen weights, in evaluation mode, its configuration and its task."""

    config: Config
    task: Task
    model: Model


@dataclass(frozen=True)
class Evaluation:
    """Outcome of an evaluation on the sequences ``split`` of a task.

    Attributes:
        metric: ``perplexity`` or ``accuracy``.
        count: Predictions that the value is the mean of.
        loss: Mean cross-entropy in nats.
        parts: The metric on named parts of the set; empty if the task has none.
    """

    task: str
    split: str
    metric: str
    value: float
    count: int
    loss: float
    parts: Mapping[str, float]


def load_run(path: str | Path, overrides: Iterable[str] = (), *, trust: bool = False) -> Run:
    """Load a run with its data.

    The path is the folder of a run, of which the weights with the lowest validation loss are loaded, or one of its
    checkpoints.  Overrides change the configuration, e.g. the path of the data; ``trust`` is as for
    :func:`diabat.lab.config.load_config`.

    Raises:
        ConfigError: If the folder holds no run, or one that would have to be trusted.
        CheckpointError: If the checkpoint is damaged or missing.
        DataError: If the data cannot be found.
    """
    path = Path(path)
    config = load_config(find_run(path), overrides, trust=trust)
    use_threads(config)
    tensors, _ = read_checkpoint(path if path.suffix == ".safetensors" else path / BEST)
    weights = {name: tensor for name, tensor in tensors.items() if "/" not in name}
    try:
        task = build_task(config)
    except DataError as error:
        moved = "; if the data of the run have moved, give task.data=PATH" * ("task.data" not in str(error))
        raise DataError(f"{str(error).removesuffix('.')}{moved}.") from error
    backend = build_sampler(config.sampler)
    # An evaluation takes no gradient, and other engines or reads may not have that of the training.
    fits = config.gradient in backend.capabilities.gradients
    model = build_model(config if fits else config.model_copy(update={"gradient": "auto"}), task, backend)
    copy_tensors(weights, weights_of(model), path)
    return Run(config, task, model.to(choose_device(config)).eval())


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
        ConfigError: If the symbols of the task have no characters, and as :func:`load_run`.
        ValueError: If the text is empty or too long, has another character, or does not have this position.
    """
    from diabat.lab.models.explanation import explain_decoder

    run = load_run(path, overrides, trust=trust)
    form = run.task.text
    if form is None:
        got = f"'{run.task.name}' with {run.task.vocab_size} symbols"
        raise ConfigError(f"'{path}'", "a task whose symbols have characters", got)
    assert isinstance(run.model, Transformer)
    symbols = form.encode(text)
    names = dict(enumerate(form.classes))  # without a name: targets that are ignored or beyond the classes
    targets = [names.get(target) for target in form.targets(symbols[None])[0].tolist()]
    with _as_evaluated(run):
        return explain_decoder(run.model, symbols, text, form.classes, targets=targets, position=position)


def explain_pair_run(
    path: str | Path, *sentences: str, overrides: Iterable[str] = (), trust: bool = False
) -> PairExplanation:
    """Explain a trained classifier over two sentences, or one if its task has single ones.

    ``training.seed`` is the seed of coalitions and reads.

    Raises:
        ConfigError: If the task has no sentences, and as :func:`load_run`.
        ValueError: If there are more or fewer sentences, one has no word, or they are too long.
    """
    from diabat.lab.models.pair_explanation import explain_pair

    run = load_run(path, overrides, trust=trust)
    form = run.task.sentences
    if form is None:
        raise ConfigError(f"'{path}'", "a task of sentences", f"'{run.task.name}'")
    assert isinstance(run.model, PairClassifier)
    symbols = form.encode(*sentences)
    with _as_evaluated(run):
        return explain_pair(run.model, symbols, form.tokens(symbols), form.classes)


def learned_couplings(
    *paths: str | Path, overrides: Iterable[str] = (), trust: bool = False
) -> LearnedCouplings:
    """J of a trained model, or of several that differ in their seed.  What is held has its value.

    Raises:
        ConfigError: If a model learns no J between positions, or one unlike that of the first, and as
            :func:`load_run`.
    """
    learned: list[LearnedCouplings] = []
    for path in paths:
        run = load_run(path, overrides, trust=trust)
        attention, parts = run.config.model.described, couplings_of(run.model).values()
        J = [J.detach().float().cpu() for part in parts if (J := part.values()) is not None]
        # In mode J weights are uniform, whatever J is; a window of one key has no pairs.
        if not J or not J[0].numel() or run.config.model.mode == "J":
            got = f"one with attention {attention}"
            raise ConfigError(f"'{path}'", "a run that learns J of positions", got)
        distance = next(iter(parts)).by_pair()[1]
        learned.append(LearnedCouplings(attention, distance, torch.stack(J)[None]))
        if learned[0].layout != learned[-1].layout:
            raise ConfigError(f"'{path}'", f"{learned[0].layout}, as in '{paths[0]}'", learned[-1].layout)
    J_of_all = torch.cat([one.couplings for one in learned])
    return LearnedCouplings(learned[0].attention, learned[0].distance, J_of_all)


@contextmanager
def _as_evaluated(run: Run) -> Iterator[None]:
    """Random numbers and precision of the run's own evaluation."""
    training, device = run.config.training, next(run.model.parameters()).device
    with (
        own_random_numbers(run.model, training.seed),
        autocast(training.precision, device),
        reset_chains(run.model),
    ):
        yield


def evaluate_run(run: Run, split: str = "validation") -> Evaluation:
    """Evaluate a run on one of its sets: ``train``, ``validation`` or ``test``; ArgumentError if it is not there."""
    task, training = run.task, run.config.training
    if split not in task.sets:
        there = ", ".join(task.sets)
        raise ArgumentError("split", f"one of {there} for the task '{task.name}'", f"'{split}'")
    sequences = task.sets[split].to(next(run.model.parameters()).device)
    options: dict[str, Any] = {"seed": training.seed, "precision": training.precision}
    loss, accuracy = evaluate(run.model, sequences, **options)
    count, parts = sequences.counted(torch.arange(len(sequences))), {}
    if task.parts is not None:
        logits = predict(run.model, sequences, **options)
        for name, part in task.parts(task.sets[split]).items():
            total, right, number = tally(logits, part.targets)
            parts[name] = task.metric_value(total / number, right / number)
    value = task.metric_value(loss, accuracy)
    return Evaluation(task.name, split, task.metric, value, count, loss, parts)
