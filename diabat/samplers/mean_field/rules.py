"""Constants and options of the rule that :class:`diabat.samplers.mean_field.MeanFieldSampler` describes.

Sources: with symmetric couplings an iteration has no other cycles than between two points, and for a small damping
every step lowers the free energy (Marcus and Westervelt, 1989); Newton steps by conjugate gradients that stop at a
direction without positive curvature (Steihaug, 1983).  Conjugate gradients for A z = u meet such a direction if there
is one, unless u is orthogonal to it: u is random.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

OVERSHOOT = 0.9  # d is halved where g·g' < -0.9 g·g, g' the change after g
EVERY = 4  # iterations after which Newton steps are considered, and by torch residuals
NEAR = 0.03  # largest residual from which one is taken
SLOW = 8  # iterations that one costs: none is taken where fewer are left
REACH = 2.0  # largest length, in units of the way that damping would go at its present rate
ACCURACY = 0.01  # relative residual of conjugate gradients, for Newton steps
TEST = 0.001  # and for the test of A
STEPS, MOST_STEPS = 16, 1000  # largest number of their steps, for Newton steps and for all else
LEAST_CURVATURE = 1e-6  # up to this p·A p / p·p a direction p does not count as positive
PUSH = 0.1  # largest change of a magnetization where a saddle is left
DEFINITE = 0.999  # torch takes A for definite where this times 1, less J, is
MOST_FACTORED = 128  # spins up to which Cholesky's factors say so
FIRST_CUT = 24  # iterations after which unfinished problems go on alone; again whenever it has doubled


class Rules(NamedTuple):
    """Options: damping in (0, 1], tolerance (a number of float32), and largest number of iterations."""

    damping: float
    tolerance: float
    most: int


class Found(NamedTuple):
    """Results, arrays or tensors."""

    magnetization: Any  # tanh of ``local`` on visible spins, else 0, [N, n]
    local: Any  # h + J m + ½ K m m, [N, n]
    iterations: Any  # int32 [N]
    residual: Any  # max |tanh(local) - m|, float64 [N]
    converged: Any  # bool [N]


@cache
def probe(n: int, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """The direction u of the test of A on visible spins: the same random numbers from 0 to 2 at every call, [n]."""
    return np.random.default_rng(0).uniform(0, 2, n).astype(dtype)
