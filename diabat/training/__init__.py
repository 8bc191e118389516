"""Training: one loop, checkpoints written atomically, metrics as JSON lines."""

from diabat.training.checkpoint import is_finished, load_model
from diabat.training.evaluate import evaluate
from diabat.training.folder import CheckpointError, OutputError, TrainingError, TrainingInterrupted
from diabat.training.options import PROTOCOLS, TrainOptions
from diabat.training.train import TrainResult, train

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
