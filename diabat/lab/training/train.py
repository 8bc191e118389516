"""The training, read downwards: optimiser, start or resumption, the loop, a step, a validation, a checkpoint."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from diabat.attention.coupled import coupling_parameters
from diabat.checkpoints import CheckpointError, read_checkpoint, reading, save_checkpoint
from diabat.checks import ArgumentError
from diabat.files import replace_file, to_json
from diabat.lab.models import Model
from diabat.lab.tasks import Task
from diabat.lab.training import folder as files
from diabat.lab.training.checkpoint import TrainState, copy_tensors, random_tensors, restore_random
from diabat.lab.training.data_parallel import Processes
from diabat.lab.training.diagnostics import numbers_in_range, observed, require_finite
from diabat.lab.training.evaluate import autocast, epoch_order, evaluate, own_random_numbers, token_loss
from diabat.lab.training.folder import TrainingInterrupted
from diabat.lab.training.options import TrainOptions
from diabat.progress import new_bar
from diabat.samplers.state import sampler_parameters, weights_of

FREE_ON_RESUME = frozenset({"max_epochs", "max_steps", "patience", "checkpoint_every"})
"""Options that may change when a run is resumed, because the steps taken so far do not depend on them."""


@dataclass(frozen=True)
class TrainResult:
    """Outcome of a run.

    Attributes:
        best_loss: Lowest validation loss in nats.
        metric: Name of the task's metric.
        best_metric, best_step: Its value at that validation, and the steps taken before it.
        epochs, steps: Completed epochs, steps taken.
        seconds: Wall-clock time of all sessions of the run.
        cpu_seconds: Processor time of all sessions, user and system, all threads of this process.
        run_dir: Folder of the run.
        sampler: What sampled the last validation of this session (:func:`diabat.lab.training.diagnostics.observed`).
    """

    best_loss: float
    metric: str
    best_metric: float
    best_step: int
    epochs: int
    steps: int
    seconds: float
    cpu_seconds: float
    run_dir: Path
    sampler: Mapping[str, Any] = field(default_factory=dict, compare=False)


def train(
    model: Model,
    task: Task,
    options: TrainOptions,
    run_dir: str | Path,
    *,
    resume: bool = False,
    progress: bool = True,
    extra_metadata: Mapping[str, Any] | None = None,
) -> TrainResult:
    """Train until epochs, steps or patience are used up; the model then has the last weights.

    All random numbers derive from ``options.seed``; the state of torch's global generators is restored.  A run that was
    killed and resumed ends with the same weights and the same metrics (except times) as one that was not.  Started by
    torchrun, several processes share every batch (see :mod:`diabat.lab.training.data_parallel`); the folder must be the
    same for all of them.

    Args:
        model: On the device to train on; its initial weights are overwritten when a run is resumed.
        task: Examples and metric.
        options: Optimiser, limits, seed.
        run_dir: Folder for config.json, metrics.jsonl and the checkpoints; must be new or empty unless ``resume``.
        resume: Continue the run in ``run_dir`` from its checkpoint.
        progress: Show a progress bar on standard error.
        extra_metadata: JSON object stored as config.json when the run starts.

    Raises:
        OutputError: If the folder cannot be written, holds a run already, holds none to resume, or is locked.
        CheckpointError: If the checkpoint is damaged, belongs to another run, or cannot be saved.
        TrainingInterrupted: After Ctrl-C or SIGTERM; the state is saved.
        TrainingError: If the loss or its gradient is not finite.
    """
    with own_random_numbers(model, options.seed), delayed_signals() as signals:
        trainer = Trainer(model, task, options, Path(run_dir))
        is_main = trainer.processes.is_main
        with files.opened(trainer.folder, resume) if is_main else nullcontext():
            trainer.begin(resume, extra_metadata or {})
            trainer.loop(signals, progress and is_main)
    return _result(trainer)


def _result(trainer: Trainer) -> TrainResult:
    state, path = trainer.state, trainer.folder / files.LATEST
    if state.best_loss is None or state.best_metric is None or state.best_step is None:
        raise CheckpointError(f"checkpoint: {path} is damaged: expected a run with a validation, got none.")
    return TrainResult(
        state.best_loss, trainer.task.metric, state.best_metric, state.best_step, state.epoch, state.step,
        state.seconds, state.cpu_seconds, trainer.folder, trainer.sampled,
    )  # fmt: skip


@contextmanager
def delayed_signals() -> Iterator[list[int]]:
    """Record the first SIGINT or SIGTERM of the block in the list; a second one raises KeyboardInterrupt.

    A step that stops half-way would leave some weights updated; job schedulers send SIGTERM before they kill.
    """
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    previous = {}
    if threading.current_thread() is threading.main_thread():  # only it receives signals and may set handlers
        for number in (signal.SIGINT, signal.SIGTERM):
            # An ignored signal stays ignored: that of a job in the background, or of a worker process.
            if signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, handle)
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def make_optimizer(model: nn.Module, options: TrainOptions) -> torch.optim.AdamW:
    """AdamW with groups for the couplings J and K and for learnable anneals, where there are some."""
    couplings = [p for p in coupling_parameters(model) if p.requires_grad]
    schedules = [p for p in sampler_parameters(model) if p.requires_grad]
    apart = {*couplings, *schedules}
    groups = (
        ([p for p in model.parameters() if p.requires_grad and p not in apart],
         options.learning_rate, options.weight_decay),
        (couplings, options.coupling_learning_rate, options.coupling_weight_decay),
        # Weight decay would pull the angles towards 0, which is not an anneal.
        (schedules, options.schedule_learning_rate, 0.0),
    )  # fmt: skip
    # One fused kernel for all parameters: otherwise small models spend most time in Python.
    optimizer = torch.optim.AdamW(
        [{"params": own, "lr": rate, "weight_decay": decay} for own, rate, decay in groups if own], fused=True
    )
    for group in optimizer.param_groups:
        for p in group["params"]:  # otherwise made at its first step; a checkpoint is copied to them
            moments = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            optimizer.state[p] = {"step": torch.zeros((), device=p.device), **moments}
    return optimizer


class Trainer:
    """A running training, see :func:`train`; the methods stand in the order in which they are called."""

    def __init__(self, model: Model, task: Task, options: TrainOptions, folder: Path) -> None:
        self.task, self.options, self.folder = task, options, folder
        self.device = next(model.parameters()).device
        self.processes = Processes(self.device)
        self.pieces = options.accumulation * self.processes.count
        self.batches = -(-len(task.train) // options.batch_size)
        self.state, self.sampled = TrainState(), dict[str, Any]()
        self._shuffle()
        self.model = model.train()
        self.fingerprint = task.train.fingerprint()
        self.train, self.validation = task.train.to(self.device), task.validation.to(self.device)
        self.optimizer = make_optimizer(model, options)

    def _shuffle(self) -> None:
        count, seed = len(self.task.train), self.options.seed
        self.order = epoch_order(count, seed, self.state.epoch).to(self.device)

    def begin(self, resume: bool, metadata: Mapping[str, Any]) -> None:
        """Continue the run in the folder, or start one: also one that was killed before its first checkpoint."""
        begun = resume and (self.folder / files.LATEST).exists()
        if begun:
            self._restore()
        self.processes.wait()  # before the first process writes files that the others look for
        if self.processes.is_main:
            if not begun:
                with files.writing(self.folder):
                    replace_file(self.folder / files.CONFIG, to_json(dict(metadata)))
            files.cut_metrics(self.folder, self.state.metrics_bytes)
        self.processes.same_weights(self.model)
        self.started = (time.monotonic() - self.state.seconds, time.process_time() - self.state.cpu_seconds)
        if not begun:
            self.save()

    def _restore(self) -> None:
        path = self.folder / files.LATEST
        tensors, facts = read_checkpoint(path)
        with reading(path):
            self._require_same_run(path, facts)
            self.state = state = TrainState(**facts["state"])
            if state.batch >= self.batches:  # such a run would never come to the end of its epoch
                expected = f"fewer than {self.batches} batches of an epoch"
                raise ArgumentError("state", f"expected {expected}, got {state.batch}")
            kept = {n: t for n, t in tensors.items() if not n.startswith(("rng/", "samplers/"))}
            copy_tensors(kept, self._tensors(), path)
            restore_random(self.model, tensors)
        self._shuffle()

    def _require_same_run(self, path: Path, facts: Mapping[str, Any]) -> None:
        for name, value in json.loads(json.dumps(asdict(self.options))).items():
            if name not in FREE_ON_RESUME and (before := facts["options"][name]) != value:
                got = f"got {value!r}; a resumed run keeps its options."
                raise CheckpointError(f"{name}: expected {before!r} as in {path}, {got}")
        if facts["data"] != self.fingerprint:
            expected, got = f"{path} (sha256 {facts['data']})", f"other data (sha256 {self.fingerprint})"
            raise CheckpointError(f"task: expected the training data of {expected}, got {got}.")

    def loop(self, signals: list[int], progress: bool) -> None:
        """Train to the end, with a checkpoint every ``checkpoint_every`` steps; stop behind a step after a signal."""
        state, options = self.state, self.options
        total = min(options.max_epochs * self.batches, options.max_steps or math.inf)
        with new_bar(shown=progress) as bar:
            row = bar.add_task(self._summary(), total=total, completed=state.step)
            while not state.finished(options):
                self.step()
                stop = any(self.processes.sum(bool(signals)))  # seen by one process it stops all of them
                if state.batch == self.batches or state.finished(options):
                    self.validate()
                if state.step % options.checkpoint_every == 0 or stop or state.finished(options):
                    self.save()
                bar.update(row, completed=state.step, description=self._summary())
                if stop and not state.finished(options):
                    saved = f"the state is saved in {self.folder}, continue with resume=True."
                    raise TrainingInterrupted(f"interrupted after step {state.step}; {saved}")

    def _summary(self) -> str:
        state, text = self.state, f"epoch {self.state.epoch + bool(self.state.batch)}"
        if state.batch:
            text += f"  loss {state.loss_sum / state.batch:.4f}"
        if state.best_metric is not None:
            text += f"  best {self.task.metric} {state.best_metric:.4f}"
        return text

    def step(self) -> None:
        """Take the next batch and update the weights."""
        state, options, model = self.state, self.options, self.model
        self.processes.reseed(options.seed, state.step)
        self.optimizer.zero_grad()
        chosen = self.order[state.batch * options.batch_size :][: options.batch_size]
        loss = self._backward(chosen)
        self.processes.sum_gradients(model.parameters())
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        # One transfer for both numbers; a gradient that is not finite never reaches the weights.
        loss_value, norm_value = torch.stack((loss, norm.to(loss.dtype))).tolist()
        (loss_value,) = self.processes.sum(loss_value)
        again = partial(self._again, chosen)
        require_finite(model, state, again, loss=loss_value, gradient=norm_value)
        self.optimizer.step()
        state.step += 1
        state.batch += 1
        state.loss_sum += loss_value
        if options.log_every and state.step % options.log_every == 0:
            self._log("step", train_loss=loss_value)

    def _backward(self, chosen: Tensor) -> Tensor:
        """Add up the gradients of this process's pieces of a batch; return its share of the mean loss."""
        total = self.train.counted(chosen)
        loss = torch.zeros((), device=self.device)
        # More pieces than examples would give empty pieces.
        for piece, counted in self._pieces(chosen):
            again = partial(self._loss, piece)
            with numbers_in_range(self.model, self.state, again):
                part = again()
            part = part * (counted / total)
            part.backward()
            loss = loss + part.detach()
        return loss

    def _pieces(self, chosen: Tensor) -> Iterator[tuple[Tensor, int]]:
        """This process's pieces of a batch, and how many targets each counts, at least one."""
        for piece in self.processes.own(chosen.tensor_split(min(self.pieces, len(chosen)))):
            if counted := self.train.counted(piece):
                yield piece, counted

    def _loss(self, piece: Tensor) -> Tensor:
        inputs, targets = self.train.batch(piece)
        with autocast(self.options.precision, self.device):
            return token_loss(self.model(inputs), targets)

    def _again(self, chosen: Tensor) -> None:
        """The forward passes of a batch once more."""
        for piece, _ in self._pieces(chosen):
            self._loss(piece)

    def validate(self) -> None:
        """Validate, keep the weights if they are the best so far, and close a complete epoch."""
        state, options, model = self.state, self.options, self.model
        how: dict[str, Any] = {"seed": options.seed, "precision": options.precision}
        again = partial(evaluate, model, self.validation, **how)
        with numbers_in_range(model, state, again):
            with observed(model) as self.sampled:
                loss, accuracy = again(processes=self.processes)
            require_finite(model, state, again, validation_loss=loss)
            metric = self.task.metric_value(loss, accuracy)
            if state.record_validation(loss, metric) and self.processes.is_main:
                facts = {"step": state.step, "val_loss": loss}
                save_checkpoint(self.folder / files.BEST, weights_of(model), facts)
        figures = {"train_loss": state.loss_sum / state.batch, "val_loss": loss, self.task.metric: metric}
        if state.batch == self.batches:
            state.epoch, state.batch, state.loss_sum = state.epoch + 1, 0, 0.0
            self._shuffle()
        self._log("epoch", **figures)
        if self.sampled:
            self._log("sampler", **self.sampled)

    def _log(self, event: str, **figures: Any) -> None:
        self._read_clocks()
        state = self.state
        times = {"wall_s": round(state.seconds, 3), "cpu_s": round(state.cpu_seconds, 3)}
        line = {"event": event, "step": state.step, "epoch": state.epoch, **figures, **times}
        if self.processes.is_main:
            with files.metrics_file(self.folder) as file:
                file.write((json.dumps(line) + "\n").encode())

    def _read_clocks(self) -> None:
        wall, cpu = self.started
        self.state.seconds, self.state.cpu_seconds = time.monotonic() - wall, time.process_time() - cpu

    def save(self) -> None:
        """Save a checkpoint to resume from."""
        if not self.processes.is_main:
            return
        self._read_clocks()
        with files.metrics_file(self.folder) as file:
            os.fsync(file.fileno())
            self.state.metrics_bytes = file.tell()
        facts = {"state": asdict(self.state), "options": asdict(self.options), "data": self.fingerprint}
        save_checkpoint(self.folder / files.LATEST, {**self._tensors(), **random_tensors(self.model)}, facts)

    def _tensors(self) -> dict[str, Tensor]:
        """Weights, and moments of the optimiser by parameter name, as they are used."""
        tensors = weights_of(self.model)
        for name, parameter in self.model.named_parameters():
            for key, moment in self.optimizer.state.get(parameter, {}).items():
                tensors[f"{key}/{name}"] = moment
        return tensors
