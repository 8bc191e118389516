"""Boltzmann attention in decoders of transformers: softmax attention with couplings between the last keys of a query.

:func:`convert` gives a decoder couplings J, initialised to 0, at which the model computes what it did before, unless
options that it warns of change that.
Importing this package registers ``attn_implementation="boltzmann"`` and model types ``boltzmann_llama`` and others.
"""

from diabat.huggingface.boltzmann.adapter import load_couplings, save_couplings
from diabat.huggingface.boltzmann.config import BoltzmannOptions
from diabat.huggingface.boltzmann.layer import BoltzmannHeads, parameter_groups
from diabat.huggingface.boltzmann.model import convert, register_boltzmann, revert

__all__ = [
    "BoltzmannHeads",
    "BoltzmannOptions",
    "convert",
    "load_couplings",
    "parameter_groups",
    "register_boltzmann",
    "revert",
    "save_couplings",
]
