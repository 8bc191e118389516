"""Attention layers whose weights are marginals of Ising models, and the gradient bridge they share."""

from diabat.attention.boltzmann import BoltzmannAttention
from diabat.attention.bridge import spin_probabilities

__all__ = ["BoltzmannAttention", "spin_probabilities"]
