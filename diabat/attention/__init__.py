"""Attention whose weights are marginals of Ising models: a function, layers, couplings, and the gradient bridge."""

from diabat.attention.boltzmann import BoltzmannAttention
from diabat.attention.bridge import spin_probabilities
from diabat.attention.core import operators
from diabat.attention.coupled import coupling_parameters, couplings_of
from diabat.attention.couplings import CouplingInit, WindowCouplings
from diabat.attention.functional import boltzmann_attention
from diabat.attention.multihead import BoltzmannMultiheadAttention
from diabat.attention.neurogame import NeuroGameAttention, NeuroGameExplanation
from diabat.attention.readout import Readout, masked_softmax

__all__ = [
    "BoltzmannAttention",
    "BoltzmannMultiheadAttention",
    "CouplingInit",
    "NeuroGameAttention",
    "NeuroGameExplanation",
    "Readout",
    "WindowCouplings",
    "boltzmann_attention",
    "coupling_parameters",
    "couplings_of",
    "masked_softmax",
    "operators",
    "spin_probabilities",
]
