"""Errors of a run; every message is one sentence that tells what to do."""

from __future__ import annotations


class TrainingError(RuntimeError):
    """The run cannot continue."""


class OutputError(TrainingError):
    """The run folder is locked, cannot be written, contains another run, or contains no run to resume."""


class CheckpointError(TrainingError):
    """A checkpoint is missing, damaged, of another run, or could not be saved."""


class TrainingInterrupted(TrainingError):  # noqa: N818 (it is not an error of the run)
    """The run was stopped by Ctrl-C or SIGTERM; its state is saved."""
