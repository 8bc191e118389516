"""What can go wrong in a run; every message is one sentence that a person can act on."""

from __future__ import annotations


class TrainingError(RuntimeError):
    """The run cannot go on."""


class OutputError(TrainingError):
    """The run folder cannot be written, holds another run, or holds none to resume."""


class CheckpointError(TrainingError):
    """A checkpoint is missing, damaged, of another run, or could not be saved."""


class TrainingInterrupted(TrainingError):  # noqa: N818 (it is no fault of the run)
    """The run was stopped by Ctrl-C or SIGTERM; its state is saved."""
