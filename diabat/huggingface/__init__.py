"""Hugging Face models: Boltzmann attention in their layers, and decoders with their adapters loaded.

With transformers installed (the extra ``hf``), importing this package registers ``attn_implementation="boltzmann"``
and the model types of :mod:`diabat.huggingface.boltzmann`.
"""

from importlib.util import find_spec

from diabat.huggingface.boltzmann import (
    convert,
    load_couplings,
    parameter_groups,
    register_boltzmann,
    revert,
    save_couplings,
)
from diabat.huggingface.loading import load_adapter, load_decoder

__all__ = [
    "convert",
    "load_adapter",
    "load_couplings",
    "load_decoder",
    "parameter_groups",
    "register_boltzmann",
    "revert",
    "save_couplings",
]

# Without it the functions name the extra; the modules can be imported.
if find_spec("transformers") is not None:
    register_boltzmann()
