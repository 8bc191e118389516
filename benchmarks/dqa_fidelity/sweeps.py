"""Sweeps of heat bath applied to whole distributions: what ``refine`` does, with infinitely many reads."""

from __future__ import annotations

import torch
from torch import Tensor

from diabat.ising import Ising
from diabat.studies.fidelity.states import all_states


def swept(law: Tensor, ising: Ising, sweeps: int) -> Tensor:
    """The law of a read after some sweeps, the spins visited in order as ``refine`` does.

    Args:
        law: Law before, float64 [*batch, 2^n].
        ising: The problems, fields [*batch, n].
        sweeps: Number of sweeps.
    """
    n = ising.num_spins
    states = all_states(n).double()
    index = torch.arange(1 << n)
    # f_j(s) = h_j + Σ_k J_jk s_k, float64 [*batch, n, 2^n]; it does not depend on s_j.
    local = ising.fields[..., None] + (0.0 if ising.couplings is None else ising.couplings @ states.T)
    up = torch.sigmoid(2 * local * states.T)  # P(s_j as in the state | rest)
    for _ in range(sweeps):
        for j in range(n):
            law = up[..., j, :] * (law + law[..., index ^ (1 << j)])
    return law
