"""One run: model, optimiser, clock and state, and the operations on them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diabat.models import Model
from diabat.samplers.state import weights_of
from diabat.tasks import PairTask, Task
from diabat.tasks.base import Examples
from diabat.training.batches import bucketed_order, epoch_order, require_trainable, require_within_limits
from diabat.training.checkpoint import save_checkpoint
from diabat.training.data_parallel import Processes
from diabat.training.diagnostics import game_figures, numbers_in_range, require_finite
from diabat.training.errors import CheckpointError
from diabat.training.evaluate import batches_of, evaluate
from diabat.training.folder import FORMAT, continue_run, start_run
from diabat.training.options import TrainOptions
from diabat.training.recipe import Average, Rates, Scaler, autocast, require_mixable, training_loss
from diabat.training.report import MetricsFile
from diabat.training.state import TrainState, fingerprint, make_optimizer, training_tensors


class Clock:
    """Measures time from the values stored in a state; if the system clock is set back, times do not decrease.

    Processor time is that of this process with all its threads, user and system; processes that a sampler starts are
    not included.
    """

    def __init__(self, state: TrainState) -> None:
        self._wall, self._cpu = time.monotonic(), time.process_time()
        self._seconds, self._cpu_seconds = state.seconds, state.cpu_seconds

    def read(self, state: TrainState) -> None:
        """Write the times so far into a state."""
        wall, cpu = time.monotonic(), time.process_time()
        self._seconds += max(0.0, wall - self._wall)
        if self._cpu_seconds is not None:
            self._cpu_seconds += max(0.0, cpu - self._cpu)
        self._wall, self._cpu = wall, cpu
        state.seconds, state.cpu_seconds = self._seconds, self._cpu_seconds


class Trainer:
    """A running training.

    Args:
        model: On the device to train on.
        task: Examples and metric.
        options: Optimiser, limits, seed.
        folder: Folder of the run.
        resume: Whether to look for a checkpoint in it first.
        metadata: JSON object for config.json.
        processes: The processes that share the work.
    """

    def __init__(
        self,
        model: Model,
        task: Task | PairTask,
        options: TrainOptions,
        folder: Path,
        resume: bool,
        metadata: Mapping[str, Any],
        processes: Processes,
    ) -> None:
        require_mixable(model, options)
        require_trainable(model, task.train, options, processes.count)
        require_within_limits(model, task.validation, batches_of(task.validation))
        self.model: Model = model.train()
        self.task, self.options, self.folder, self.processes = task, options, folder, processes
        self.device = next(model.parameters()).device
        self.optimizer = make_optimizer(model, options)
        self.average = Average(model, options.ema_decay)
        self.scaler = Scaler(options.precision, self.device)
        self.data = fingerprint(task.train)
        self.train: Examples = task.train.to(self.device)
        self.validation: Examples = task.validation.to(self.device)
        self.batches = -(-len(self.train) // options.batch_size)
        self.rates = Rates(self.optimizer, options, self.batches)
        self.order: Tensor | None = None
        self._open(resume, metadata)

    def _open(self, resume: bool, metadata: Mapping[str, Any]) -> None:
        """Continue the run in the folder, or start one."""
        # A run that was killed before its first checkpoint starts again: nothing is lost.
        found = None
        if resume:
            parts = (self.model, self.optimizer, self.average, self.scaler)
            found = continue_run(self.folder, parts, self.options, self.data)
            if found is not None and found.batch >= self.batches:
                raise CheckpointError(
                    f"checkpoint: expected fewer than {self.batches} batches of the current epoch to be taken, got "
                    f"{found.batch} in {self.folder}."
                )
        self.processes.wait()  # before the first process writes files that the others check for
        self.state = found or TrainState()
        if found is None and self.processes.is_main:
            start_run(self.folder, metadata, resume)
        self.processes.same_weights(self.model)
        self.clock = Clock(self.state)
        self.metrics = MetricsFile(self.folder, self.state.metrics_bytes) if self.processes.is_main else None
        if found is None:
            self.save()

    @property
    def total_steps(self) -> int:
        """Largest number of steps."""
        limit = self.options.max_epochs * self.batches
        return limit if self.options.max_steps is None else min(limit, self.options.max_steps)

    @property
    def epoch_is_complete(self) -> bool:
        """Whether every batch of the epoch was taken."""
        return self.state.batch == self.batches

    def step(self) -> None:
        """Take the next batch and update the weights."""
        state, options, model = self.state, self.options, self.model
        self.processes.reseed(options.seed, state.step)
        self.rates.set(state.step, state.epoch)
        self.optimizer.zero_grad()
        loss = self._gradients(self._next_batch())
        self.processes.sum_gradients(model.parameters())
        self.scaler.unscale(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        # One transfer for both numbers; a gradient that is not finite never reaches the weights.
        loss_value, norm_value = torch.stack((loss, norm.to(loss.dtype))).tolist()
        (loss_value,) = self.processes.sum(loss_value)
        require_finite(model, state, loss=loss_value)
        if not self.scaler.active or self.scaler.exhausted:
            require_finite(model, state, gradient=norm_value)
        self.scaler.step(self.optimizer)
        self.average.update()
        state.step += 1
        state.batch += 1
        state.loss_sum += loss_value
        if options.log_every and state.step % options.log_every == 0:
            self._log("step", train_loss=loss_value)

    def _next_batch(self) -> Tensor:
        """Indices of the examples of a step, int64 [B]."""
        seed, epoch, size = self.options.seed, self.state.epoch, self.options.batch_size
        if self.order is None:
            lengths = self.train.lengths
            if lengths is None:
                order = epoch_order(seed, epoch, len(self.train))
            else:
                order = bucketed_order(seed, epoch, lengths, size)
            self.order = order.to(self.device)
        return self.order[self.state.batch * size :][:size]

    def _gradients(self, chosen: Tensor) -> Tensor:
        """Add up the gradients of this process's pieces of a batch; return its share of the mean loss."""
        # More pieces than examples would give empty pieces.
        pieces = chosen.tensor_split(min(self.options.accumulation * self.processes.count, len(chosen)))
        total = self.train.counted(chosen) if len(pieces) > 1 else 0
        loss = torch.zeros((), device=self.device)
        for piece in self.processes.own(pieces):
            share = self.train.counted(piece) / total if total else 1.0
            if not len(piece) or not share:
                continue
            inputs, targets = self.train.batch(piece)
            with numbers_in_range(self.model, self.state), autocast(self.options.precision, self.device):
                part = training_loss(self.model, inputs, targets, self.options)
            part = part if share == 1.0 else part * share
            self.scaler.backward(part)
            loss = loss + part.detach()
        return loss

    def validate(self) -> dict[str, Any]:
        """Validate, keep the weights if they are the best so far, and close a complete epoch."""
        state, options = self.state, self.options
        with numbers_in_range(self.model, state), self.average.applied():
            loss, accuracy = evaluate(
                self.model,
                self.validation,
                seed=options.seed,
                precision=options.precision,
                processes=self.processes,
            )
            require_finite(self.model, state, validation_loss=loss)
            games = game_figures(self.model, self.validation, seed=options.seed, precision=options.precision)
            metric = self.task.metric_value(loss, accuracy)
            if state.record_validation(loss, metric) and self.processes.is_main:
                facts = {"epoch": state.epoch, "val_loss": loss, self.task.metric: metric}
                save_checkpoint(self.folder, "best", state.step, {"model": weights_of(self.model)}, facts)
        figures = {"train_loss": state.loss_sum / state.batch, "val_loss": loss, self.task.metric: metric}
        figures |= games
        if self.epoch_is_complete:
            state.epoch, state.batch, state.loss_sum, self.order = state.epoch + 1, 0, 0.0, None
        return self._log("epoch", **figures)

    def _log(self, event: str, **figures: float) -> dict[str, Any]:
        self.clock.read(self.state)
        line: dict[str, Any] = {"event": event, "step": self.state.step, "epoch": self.state.epoch}
        cpu = self.state.cpu_seconds
        line |= {**figures, "wall_s": round(self.state.seconds, 3)}
        line |= {"cpu_s": None if cpu is None else round(cpu, 3)}
        if self.metrics is not None:
            self.metrics.write(line)
        return line

    def save(self) -> None:
        """Save a checkpoint to resume from."""
        self.clock.read(self.state)
        if self.metrics is None:
            return
        self.state.metrics_bytes = self.metrics.sync()
        tensors = {
            "model": weights_of(self.model),
            "training": training_tensors(self.model, self.optimizer) | self.scaler.tensors(),
        }
        if averages := self.average.tensors():
            tensors["average"] = averages
        facts = {
            "format": FORMAT,
            "state": asdict(self.state),
            "options": asdict(self.options),
            "data": self.data,
        }
        save_checkpoint(self.folder, "step", self.state.step, tensors, facts)
