"""The training loop; Ctrl-C stops it between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from diabat.models import Model
from diabat.tasks import PairTask, Task
from diabat.training.data_parallel import Processes
from diabat.training.errors import TrainingInterrupted
from diabat.training.evaluate import own_random_numbers
from diabat.training.folder import locked, prepare_folder
from diabat.training.options import TrainOptions
from diabat.training.report import Display
from diabat.training.trainer import Trainer

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptFlag:
    """Delays the first SIGINT or SIGTERM until the current step is complete; a second one stops at once.

    A step that stops half-way would leave some weights updated and others not.  Job schedulers send SIGTERM before
    they kill a process.

    Attributes:
        requested: Whether a signal has been received.
    """

    def __init__(self) -> None:
        self.requested = False
        # Only the main thread receives signals and may set handlers.
        self._active = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        if self._active:
            # An ignored signal stays ignored: that of a job in the background, or of a worker process.
            chosen = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            self._previous = {number: signal.signal(number, self._handle) for number in chosen}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._active:
            for number, handler in self._previous.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@dataclass(frozen=True)
class TrainResult:
    """Outcome of a run.

    Attributes:
        best_loss: Lowest validation loss in nats.
        metric: Name of the task's metric.
        best_metric: Its value at that validation.
        best_step: Steps taken before it.
        epochs: Completed epochs.
        steps: Steps taken.
        seconds: Wall-clock time of all sessions of the run.
        cpu_seconds: Processor time of all sessions, user and system, all threads of this process; None for a run that
            was started by an older version.
        run_dir: Folder of the run.
        dropped: Examples that were left out of each set because they have no agreed label.
    """

    best_loss: float
    metric: str
    best_metric: float
    best_step: int
    epochs: int
    steps: int
    seconds: float
    cpu_seconds: float | None
    run_dir: Path
    dropped: Mapping[str, int] = field(default_factory=dict)


def train(
    model: Model,
    task: Task | PairTask,
    options: TrainOptions,
    run_dir: str | Path,
    *,
    resume: bool = False,
    progress: bool = True,
    extra_metadata: Mapping[str, Any] | None = None,
) -> TrainResult:
    """Train until epochs, steps or patience are used up; the model then has the last weights.

    All random numbers derive from ``options.seed``; the state of torch's global generators is restored.
    A run that was killed and resumed ends with the same weights and the same metrics (except wall time) as
    one that was not.  Started by torchrun, several processes share every batch (see
    :mod:`diabat.training.data_parallel`); the folder must be the same for all of them.

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
        OutputError: If the folder cannot be written, holds a run already, holds none to resume, or another process
            trains in it.
        CheckpointError: If a checkpoint is damaged, belongs to another run, or cannot be saved.
        TrainingInterrupted: After Ctrl-C or SIGTERM; the state is saved.
        TrainingError: If the loss or its gradient is not finite.
    """
    folder = Path(run_dir)
    with own_random_numbers(model, options.seed), InterruptFlag() as interrupt:
        processes = Processes(next(model.parameters()).device)
        with _ours(folder, resume) if processes.is_main else nullcontext():
            trainer = Trainer(model, task, options, folder, resume, extra_metadata or {}, processes)
            shown = options if processes.is_main else replace(options, tensorboard=False)
            bar = progress and processes.is_main
            with Display(task, shown, folder, trainer.state, trainer.total_steps, bar) as display:
                _run(trainer, display, interrupt)
    return _result(trainer)


@contextmanager
def _ours(folder: Path, resume: bool) -> Iterator[None]:
    """Make or find the folder of the run, and keep other processes out of it."""
    made = not folder.exists()
    prepare_folder(folder, resume)
    try:
        with locked(folder):
            yield
    except BaseException:
        if made:  # refused before anything was put into it; a folder with files stays
            with suppress(OSError):
                folder.rmdir()
        raise


def _run(trainer: Trainer, display: Display, interrupt: InterruptFlag) -> None:
    state, options, processes = trainer.state, trainer.options, trainer.processes
    while not state.finished(options):
        trainer.step()
        if processes.count > 1 and any(processes.sum(interrupt.requested)):
            interrupt.requested = True  # Ctrl-C seen by one process stops all of them at this step
        display.step()
        if trainer.epoch_is_complete or state.finished(options):
            display.scalars(trainer.validate())
        due = state.step % options.checkpoint_every == 0
        if due or interrupt.requested or state.finished(options):
            trainer.save()
        if interrupt.requested and not state.finished(options):
            raise TrainingInterrupted(
                f"interrupted after step {state.step}; the state is saved in {trainer.folder}, "
                "continue with resume=True."
            )


def _result(trainer: Trainer) -> TrainResult:
    state = trainer.state
    assert state.best_loss is not None
    assert state.best_metric is not None
    assert state.best_step is not None
    return TrainResult(
        best_loss=state.best_loss,
        metric=trainer.task.metric,
        best_metric=state.best_metric,
        best_step=state.best_step,
        epochs=state.epoch,
        steps=state.step,
        seconds=state.seconds,
        cpu_seconds=state.cpu_seconds,
        run_dir=trainer.folder,
        dropped=trainer.task.dropped,
    )
