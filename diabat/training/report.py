"""Reports of a run: progress bar, metrics.jsonl, TensorBoard."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from diabat.files import open_file
from diabat.progress import stderr_console
from diabat.tasks import PairTask, Task
from diabat.training.errors import CheckpointError, OutputError, TrainingError
from diabat.training.options import TrainOptions
from diabat.training.state import TrainState

METRICS = "metrics.jsonl"
_REFRESH_S = 0.1


class MetricsFile:
    """Appends one JSON object per line to metrics.jsonl.

    Lines of event ``step`` hold the loss of one batch, lines of event ``epoch`` the mean training loss of an
    epoch, the validation loss and the metric; both hold ``step`` (steps taken), ``epoch`` (epochs completed),
    ``wall_s`` and ``cpu_s`` (wall-clock and processor time of the run so far).

    Args:
        run_dir: Folder of the run.
        length: Number of bytes to keep of an existing file; lines that a killed run wrote after its last checkpoint
            are removed, and are written again.

    Raises:
        CheckpointError: If the file is shorter than ``length``.
        OutputError: If it cannot be opened, or is a link.
    """

    def __init__(self, run_dir: Path, length: int) -> None:
        self._path = run_dir / METRICS
        try:
            with self._open() as file:
                got = os.fstat(file.fileno()).st_size
                if got < length:
                    raise CheckpointError(
                        f"checkpoint: {self._path} is damaged: expected at least {length} bytes, got {got}."
                    )
                os.truncate(file.fileno(), length)
        except OSError as error:
            raise OutputError(f"run_dir: cannot write {self._path} ({error.strerror}).") from error

    def _open(self) -> BinaryIO:
        """Open for appending, create if missing; a link is not followed."""
        return os.fdopen(open_file(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")

    def write(self, line: dict[str, Any]) -> None:
        """Append a line; values that are not finite become null.

        Raises:
            OutputError: If the system refuses, e.g. because the disk is full.
        """
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
        try:
            with self._open() as file:
                file.write((json.dumps(finite) + "\n").encode())
        except OSError as error:
            raise OutputError(
                f"run_dir: cannot write {self._path} ({error.strerror}); the checkpoints are intact."
            ) from error

    def sync(self) -> int:
        """Wait until the lines are on the disk; return the length of the file in bytes.

        Raises:
            OutputError: If the system refuses.
        """
        try:
            with self._open() as file:
                os.fsync(file.fileno())
                return file.tell()
        except OSError as error:
            raise OutputError(
                f"run_dir: cannot write {self._path} ({error.strerror}); the checkpoints are intact."
            ) from error


class Display:
    """Progress bar on standard error with loss, metric and time left, and TensorBoard if enabled.

    Args:
        task: The task, for the name of its metric.
        options: Options of the run.
        run_dir: Folder of the run.
        state: State of the run.
        total_steps: Largest number of steps; with early stopping the time left is an upper bound.
        progress: Whether to show the bar.
    """

    def __init__(
        self,
        task: Task | PairTask,
        options: TrainOptions,
        run_dir: Path,
        state: TrainState,
        total_steps: int,
        progress: bool,
    ) -> None:
        self._metric = task.metric
        self._state = state
        self._bar = _progress_bar() if progress else None
        self._board = _tensorboard(run_dir, state.step) if options.tensorboard else None
        self._refreshed = -math.inf
        if self._bar is not None:
            self._row = self._bar.add_task("", total=total_steps, completed=state.step, figures="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._refresh()
            self._bar.stop()
        if self._board is not None:
            self._board.close()

    def step(self) -> None:
        """Move the bar, at most ten times a second."""
        if self._bar is not None and time.monotonic() - self._refreshed > _REFRESH_S:
            self._refresh()

    def scalars(self, line: dict[str, Any]) -> None:
        """Write the numbers of a line of metrics.jsonl to TensorBoard."""
        if self._board is not None:
            for name, value in line.items():
                if isinstance(value, float):
                    self._board.add_scalar(f"{line['event']}/{name}", value, line["step"])

    def _refresh(self) -> None:
        assert self._bar is not None
        self._refreshed = time.monotonic()
        state = self._state
        figures = [f"loss {state.loss_sum / state.batch:.4f}"] if state.batch else []
        if state.best_metric is not None:
            figures.append(f"best {self._metric} {state.best_metric:.4f}")
        self._bar.update(
            self._row,
            completed=state.step,
            description=f"epoch {state.epoch + bool(state.batch)}",
            figures="  ".join(figures),
        )


def _progress_bar() -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
        console=stderr_console(),
    )


def _tensorboard(run_dir: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise TrainingError(
            "tensorboard: expected the package tensorboard, got none; pip install 'diabat[tensorboard]'."
        ) from error
    return SummaryWriter(str(run_dir / "tensorboard"), purge_step=step)
