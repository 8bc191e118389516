"""Models whose attention is an Ising model."""

from diabat.models.transformer import Transformer, TransformerOptions

__all__ = ["Transformer", "TransformerOptions"]
