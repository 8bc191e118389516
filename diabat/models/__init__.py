"""Models whose attention is an Ising model."""

from collections.abc import Mapping

from diabat.models.base import Model, ModelOptions
from diabat.models.decoding import ModelState
from diabat.models.pairs import POOLINGS, PairClassifier, PairModelOptions
from diabat.models.transformer import Transformer, TransformerOptions

MODELS: Mapping[str, type[ModelOptions]] = {"transformer": TransformerOptions, "pairs": PairModelOptions}
"""Options of every model by its name, which build it; the first for a kind of examples is its default."""

__all__ = [
    "MODELS",
    "POOLINGS",
    "Model",
    "ModelOptions",
    "ModelState",
    "PairClassifier",
    "PairModelOptions",
    "Transformer",
    "TransformerOptions",
]
