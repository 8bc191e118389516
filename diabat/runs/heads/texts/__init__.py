"""Texts for language modelling: as batches for measurements, and joined into sequences for training."""

from diabat.runs.heads.texts.batches import batches_of
from diabat.runs.heads.texts.token_texts import TokenText, read_texts

__all__ = ["TokenText", "batches_of", "read_texts"]
