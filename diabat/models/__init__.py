"""Models whose attention is an Ising model."""

from diabat.models.decoding import ModelState
from diabat.models.pairs import POOLINGS, PairClassifier, PairModelOptions
from diabat.models.registry import MODELS, ModelKind, ModelOptions
from diabat.models.transformer import Transformer
from diabat.models.transformer_options import TransformerOptions

Model = Transformer | PairClassifier
"""What the training loop trains."""

__all__ = [
    "MODELS",
    "POOLINGS",
    "Model",
    "ModelKind",
    "ModelOptions",
    "ModelState",
    "PairClassifier",
    "PairModelOptions",
    "Transformer",
    "TransformerOptions",
]
