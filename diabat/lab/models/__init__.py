"""Models whose attention is an Ising model."""

from collections.abc import Mapping

from diabat.lab.models.base import Model, ModelOptions, ModelState
from diabat.lab.models.pairs import PairClassifier, PairClassifierOptions
from diabat.lab.models.transformer import Transformer, TransformerOptions

MODELS: Mapping[str, type[ModelOptions]] = {"transformer": TransformerOptions, "pairs": PairClassifierOptions}
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
