"""Models whose attention is an Ising model."""

from collections.abc import Mapping

from diabat.models.base import Model, ModelOptions
from diabat.models.decoding import ModelState
from diabat.models.pairs import PairClassifier, PairClassifierOptions
from diabat.models.transformer import Transformer, TransformerOptions

MODELS: Mapping[str, type[ModelOptions]] = {
    "transformer": TransformerOptions,
    "pairs": PairClassifierOptions,
}
"""Options of every model by its name, which build it; the default has the name of the task, or is the first."""

__all__ = [
    "MODELS",
    "Model",
    "ModelOptions",
    "ModelState",
    "PairClassifier",
    "PairClassifierOptions",
    "Transformer",
    "TransformerOptions",
]
