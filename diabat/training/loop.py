"""The training loop."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diabat.models.transformer import Transformer
from diabat.tasks.base import Task
from diabat.training.checkpoint import save_checkpoint
from diabat.training.diagnostics import numbers_in_range, require_finite
from diabat.training.errors import TrainingInterrupted
from diabat.training.evaluate import evaluate, own_random_numbers, token_loss
from diabat.training.interrupt import InterruptFlag
from diabat.training.options import TrainOptions
from diabat.training.report import Display, MetricsFile
from diabat.training.runs import FORMAT, continue_run, start_run
from diabat.training.state import epoch_order, fingerprint, make_optimizer, training_tensors


@dataclass(frozen=True)
class TrainResult:
    """Outcome of a run.

    Attributes:
        best_loss: Lowest validation loss in nats.
        best_metric: The task's metric at that validation.
        best_step: Steps taken before it.
        epochs: Completed epochs.
        steps: Steps taken.
        seconds: Wall-clock time of all sessions of the run.
        run_dir: Folder of the run.
    """

    best_loss: float
    best_metric: float
    best_step: int
    epochs: int
    steps: int
    seconds: float
    run_dir: Path


def train(
    model: Transformer,
    task: Task,
    options: TrainOptions,
    run_dir: str | Path,
    *,
    resume: bool = False,
    progress: bool = True,
    extra_metadata: Mapping[str, Any] | None = None,
) -> TrainResult:
    """Train until epochs, steps or patience are used up; the model is left with the last weights.

    Everything random derives from ``options.seed``; torch's global generators are given back as they were.
    A run that was killed and resumed ends with the same weights and the same metrics (except wall time) as
    one that was not.

    Args:
        model: On the device to train on; its initial weights are overwritten when a run is resumed.
        task: Sequences and metric.
        options: Optimiser, limits, seed.
        run_dir: Folder for config.json, metrics.jsonl and checkpoints/; must be new or empty unless
            ``resume``.
        resume: Continue the run in ``run_dir`` from its newest checkpoint.
        progress: Show a progress bar on standard error.
        extra_metadata: JSON object stored as config.json when the run starts.

    Raises:
        OutputError: If the folder cannot be written, holds a run already, or holds none to resume.
        CheckpointError: If a checkpoint is damaged, belongs to another run, or cannot be saved.
        TrainingInterrupted: After Ctrl-C; the state is saved.
        TrainingError: If the loss or its gradient is not finite.
    """
    folder = Path(run_dir)
    with own_random_numbers(model, options.seed), InterruptFlag() as interrupt:
        trainer = _Trainer(model, task, options, folder, resume, extra_metadata or {})
        state = trainer.state
        with Display(task, options, folder, state, trainer.total_steps, progress) as display:
            while not state.finished(options):
                trainer.step()
                display.step()
                if trainer.epoch_is_complete or state.finished(options):
                    display.scalars(trainer.validate())
                due = state.step % options.checkpoint_every == 0
                if due or interrupt.requested or state.finished(options):
                    trainer.save()
                if interrupt.requested and not state.finished(options):
                    raise TrainingInterrupted(
                        f"interrupted after step {state.step}; the state is saved in {folder}, "
                        "continue with --resume (resume=True)."
                    )
    return trainer.result()


class _Trainer:
    """One run: its model, optimiser and state, and the things that happen to them."""

    def __init__(
        self,
        model: Transformer,
        task: Task,
        options: TrainOptions,
        folder: Path,
        resume: bool,
        metadata: Mapping[str, Any],
    ) -> None:
        self.model, self.task, self.options, self.folder = model.train(), task, options, folder
        self.optimizer = make_optimizer(model, options)
        self.data = fingerprint(task)
        # A run that was killed before its first checkpoint starts again: it has lost nothing.
        found = continue_run(folder, model, self.optimizer, options, self.data) if resume else None
        self.state = found or start_run(folder, metadata, resume)
        self.started = time.monotonic() - self.state.seconds
        self.metrics = MetricsFile(folder, self.state.metrics_bytes)
        device = next(model.parameters()).device
        self.train, self.validation = task.train.to(device), task.validation.to(device)
        self.batches = -(-len(self.train) // options.batch_size)
        self.order: Tensor | None = None
        if found is None:
            self.save()

    @property
    def total_steps(self) -> int:
        """Steps at most."""
        limit = self.options.max_epochs * self.batches
        return limit if self.options.max_steps is None else min(limit, self.options.max_steps)

    @property
    def epoch_is_complete(self) -> bool:
        """Whether every batch of the epoch was taken."""
        return self.state.batch == self.batches

    def step(self) -> None:
        """Take the next batch and update the weights."""
        state, options, model = self.state, self.options, self.model
        if self.order is None:
            order = epoch_order(options.seed, state.epoch, len(self.train))
            self.order = order.to(self.train.inputs.device)
        chosen = self.order[state.batch * options.batch_size :][: options.batch_size]
        with numbers_in_range(model, state):
            loss = token_loss(model(self.train.inputs[chosen]), self.train.targets[chosen])
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        # One transfer for both numbers; a gradient that is not finite never reaches the weights.
        loss_value, norm_value = torch.stack((loss.detach(), norm.to(loss.dtype))).tolist()
        require_finite(model, state, loss=loss_value, gradient=norm_value)
        self.optimizer.step()
        state.step += 1
        state.batch += 1
        state.loss_sum += loss_value
        if options.log_every and state.step % options.log_every == 0:
            self._log("step", train_loss=loss_value)

    def validate(self) -> dict[str, Any]:
        """Validate, keep the weights if they are the best so far, and close a complete epoch."""
        state = self.state
        with numbers_in_range(self.model, state):
            loss, accuracy = evaluate(self.model, self.validation, seed=self.options.seed)
        require_finite(self.model, state, validation_loss=loss)
        metric = self.task.metric_value(loss, accuracy)
        train_loss = state.loss_sum / state.batch
        if state.record_validation(loss, metric):
            facts = {"epoch": state.epoch, "val_loss": loss, self.task.metric: metric}
            save_checkpoint(self.folder, "best", state.step, {"model": self.model.state_dict()}, facts)
        figures = {"train_loss": train_loss, "val_loss": loss, self.task.metric: metric}
        if self.epoch_is_complete:
            state.epoch, state.batch, state.loss_sum, self.order = state.epoch + 1, 0, 0.0, None
        return self._log("epoch", **figures)

    def _log(self, event: str, **figures: float) -> dict[str, Any]:
        self.state.seconds = time.monotonic() - self.started
        line: dict[str, Any] = {"event": event, "step": self.state.step, "epoch": self.state.epoch}
        line |= {**figures, "wall_s": round(self.state.seconds, 3)}
        self.metrics.write(line)
        return line

    def save(self) -> None:
        """Save a checkpoint to resume from."""
        self.state.seconds = time.monotonic() - self.started
        self.state.metrics_bytes = self.metrics.sync()
        tensors = {
            "model": self.model.state_dict(),
            "training": training_tensors(self.model, self.optimizer),
        }
        facts = {
            "format": FORMAT,
            "state": asdict(self.state),
            "options": asdict(self.options),
            "data": self.data,
        }
        save_checkpoint(self.folder, "step", self.state.step, tensors, facts)

    def result(self) -> TrainResult:
        """Summarise the run."""
        state = self.state
        assert state.best_loss is not None
        assert state.best_metric is not None
        assert state.best_step is not None
        return TrainResult(
            best_loss=state.best_loss,
            best_metric=state.best_metric,
            best_step=state.best_step,
            epochs=state.epoch,
            steps=state.step,
            seconds=state.seconds,
            run_dir=self.folder,
        )
