"""Plain chains of one small problem, without tiers and their indices: the same reads in less time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers.tempering.simulation import Rules, Simulation

Array = NDArray[Any]

# Larger batches spend their time in the kernel, and their memory is checked.
_MOST_SPINS, _MOST_NUMBERS = 64, 1 << 20


def is_single(ising: Ising, chains: int) -> bool:
    """Whether a batch is one problem of few spins, all visible, whose couplings are no edges."""
    h = ising.fields
    return (
        h.device.type == "cpu"
        and 0 < h.shape[-1] == h.numel() <= _MOST_SPINS
        and chains * h.numel() <= _MOST_NUMBERS
        and ising.visible is None
        and ising.edges is None
    )


def last_states(ising: Ising, chains: int, rules: Rules, sweeps: int) -> Tensor:
    """State of each chain after these sweeps at beta = 1, int8 [chains, *batch, n]."""
    n, zero = ising.num_spins, np.zeros(1, np.int64)
    J, K = ising.couplings, ising.three_body
    simulation = Simulation(
        None if J is None else J.detach().numpy().reshape(1, n, n),
        None if K is None else K.detach().numpy().reshape(1, n, n, n),
        ising.fields.detach().numpy().reshape(1, n),
        zero,
        zero,
        chains=chains,
        betas=np.ones((1, 1)),
    )
    simulation.run(rules, sweeps)
    return torch.from_numpy(simulation.spins()).reshape(chains, *ising.fields.shape)
