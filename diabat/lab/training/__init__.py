"""Training: one loop, checkpoints written atomically, metrics as JSON lines."""

from diabat.checkpoints import CheckpointError, OutputError, TrainingError
from diabat.lab.training.checkpoint import is_finished, load_model
from diabat.lab.training.evaluate import evaluate
from diabat.lab.training.folder import TrainingInterrupted
from diabat.lab.training.options import PROTOCOLS, TrainOptions
from diabat.lab.training.train import TrainResult, train

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
