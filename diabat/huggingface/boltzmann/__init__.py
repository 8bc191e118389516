"""Boltzmann attention in decoders of transformers: softmax attention with couplings between the last keys of a query.

:func:`convert` gives a Llama, Qwen2 or GPT-2 couplings J, initialised to 0, at which the model computes what it did
before.  Importing this package registers ``attn_implementation="boltzmann"`` and the model types ``boltzmann_llama``,
``boltzmann_qwen2`` and ``boltzmann_gpt2``.
"""

from diabat.huggingface.boltzmann.config import BoltzmannOptions
from diabat.huggingface.boltzmann.layer import BoltzmannHeads, parameter_groups
from diabat.huggingface.boltzmann.model import convert, register_boltzmann

__all__ = ["BoltzmannHeads", "BoltzmannOptions", "convert", "parameter_groups", "register_boltzmann"]
