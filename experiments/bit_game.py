"""A game of two heads with cross-entropy, by enumeration: it violates theorem 2.2 of GAME-LoRA.

Two heads read one bit each, flipped with probability p, and the four classes are the pairs of bits: logits are
W_1 h_1 + W_2 h_2 with h_i = ±1, and D(W) is the mean of -log softmax at the class.  Player i pays
C_i = D/2 + α/2 ‖W_i‖² (eq. 11), and the social objective with β_R = β_C = 0 is D (eq. 7-9).  W is [2, 4], float64.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.autograd.functional import hessian

F64 = torch.float64
BITS = torch.tensor([*product((1.0, -1.0), repeat=2)], dtype=F64)
"""Of the four classes, [4, 2]."""
LABEL, SEEN = torch.arange(4).repeat_interleave(4), BITS.repeat(4, 1)
"""All pairs of a class and two read bits, [16] and [16, 2]."""
SHARE = 0.5


def chances(flip: float) -> Tensor:
    """Probability of every class with every pair of read bits, [16]."""
    right = (BITS[LABEL] == SEEN).double()
    return (flip + (1 - 2 * flip) * right).prod(1) / 4


def log_probabilities(W: Tensor) -> Tensor:
    """Of the classes given the read bits, [16, 4]."""
    return (SEEN @ W).log_softmax(1)


def distortion(W: Tensor, flip: float) -> Tensor:
    """D."""
    return -(chances(flip) * log_probabilities(W).gather(1, LABEL[:, None])[:, 0]).sum()


def potential(W: Tensor, flip: float, ridge: float) -> Tensor:
    """Φ of eq. 12-13, strictly convex: its minimum is the only equilibrium."""
    return distortion(W, flip) + ridge / 2 * W.square().sum() / SHARE


def optimum(flip: float) -> Tensor:
    """The minimum of D that is smallest: its softmax is the law of the class given the read bits."""
    return math.log((1 - flip) / flip) / 2 * BITS.T


def equilibrium(flip: float, ridge: float) -> Tensor:
    """The minimum of Φ over all W, by Newton's method."""
    W = torch.zeros(2, 4, dtype=F64)
    for _ in range(30):
        gradient = torch.func.grad(potential)(W, flip, ridge).flatten()
        curvature: Any = hessian(lambda W: potential(W, flip, ridge), W)
        W = W - torch.linalg.solve(curvature.view(8, 8), gradient).view(2, 4)
    return W
