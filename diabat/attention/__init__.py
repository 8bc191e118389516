"""Attention layers whose weights are marginals of Ising models, and the gradient bridge they share."""

from diabat.attention.boltzmann import BoltzmannAttention
from diabat.attention.bridge import spin_probabilities
from diabat.attention.coupling_init import CouplingInit
from diabat.attention.explanation import NeuroGameExplanation
from diabat.attention.multihead import BoltzmannMultiheadAttention
from diabat.attention.neurogame import NeuroGameAttention

__all__ = [
    "BoltzmannAttention",
    "BoltzmannMultiheadAttention",
    "CouplingInit",
    "NeuroGameAttention",
    "NeuroGameExplanation",
    "spin_probabilities",
]
