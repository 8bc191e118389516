"""From a batch of Ising models to the problems that a device is programmed with, one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.circuits import Betas
from diabat.ising import Ising, to_minimised

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Problem:
    """One problem without its invisible spins, as biases of an energy to be minimised.

    Attributes:
        row: Its place in the flat batch.
        spins: int64 [m], the visible spins.
        fields: h / -beta_h, float64 [m].
        couplings: J / -beta_J, float64 [m, m], symmetric.
    """

    row: int
    spins: IntArray
    fields: FloatArray
    couplings: FloatArray


def program(ising: Ising, betas: Betas) -> list[Problem]:
    """Divide by the inverse temperatures of the device; problems without a visible spin are left out.

    Args:
        ising: The problems, fields [*batch, n], without three-body terms.
        betas: The device samples exp(-beta_h · field energy - beta_J · coupling energy).
    """
    n, total = ising.num_spins, ising.num_problems
    h = _array(to_minimised(ising.fields, betas.beta_h)).reshape(total, n)
    if ising.couplings is None:
        J, which = np.zeros((1, n, n)), np.zeros(total, dtype=np.int64)
    else:
        J = _array(to_minimised(ising.couplings, betas.beta_J)).reshape(-1, n, n)
        lead = ising.couplings.shape[:-2]
        which = torch.arange(lead.numel()).reshape(lead).expand(ising.batch_shape).reshape(-1).numpy()
    visible = ising.visible_mask.cpu().numpy().reshape(total, n)
    problems = []
    for row in range(total):
        spins = np.flatnonzero(visible[row])
        if len(spins):
            pairs = J[which[row]][spins[:, None], spins]
            problems.append(Problem(row, spins, h[row, spins], pairs))
    return problems


def _array(values: Tensor) -> FloatArray:
    return values.detach().double().cpu().numpy()
