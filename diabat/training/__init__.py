"""Training: one loop, atomic checkpoints, metrics as JSON lines."""

from diabat.training.checkpoint import load_model
from diabat.training.errors import CheckpointError, OutputError, TrainingError, TrainingInterrupted
from diabat.training.evaluate import evaluate
from diabat.training.folder import is_finished
from diabat.training.loop import TrainResult, train
from diabat.training.options import PROTOCOLS, TrainOptions

__all__ = [
    "PROTOCOLS",
    "CheckpointError",
    "OutputError",
    "TrainOptions",
    "TrainResult",
    "TrainingError",
    "TrainingInterrupted",
    "evaluate",
    "is_finished",
    "load_model",
    "train",
]
