"""Models whose attention is an Ising model."""

from collections.abc import Mapping

from diabat.models.base import Model, ModelOptions
from diabat.models.decoding import ModelState
from diabat.models.transformer import Transformer, TransformerOptions

MODELS: Mapping[str, type[ModelOptions]] = {"transformer": TransformerOptions}
"""Options of every model by its name, which build it; the first is the default."""

__all__ = ["MODELS", "Model", "ModelOptions", "ModelState", "Transformer", "TransformerOptions"]
