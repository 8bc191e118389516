"""A counterexample to theorem 2.2 of GAME-LoRA, with cross-entropy, by enumeration (docs/heads-interaction.md).

Two heads read one bit each, flipped with probability p, and the four classes are the pairs of bits: logits are
W_1 h_1 + W_2 h_2 with h_i = ±1, and D(W) is the mean of -log softmax at the class.  Player i pays
C_i = D/2 + α/2 ‖W_i‖² (eq. 11), and the social objective with β_R = β_C = 0 is D (eq. 7-9).
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian

from diabat.heads.lora.couplings import gradient_coupling, interaction, weight_coupling

F64 = torch.float64
BITS = torch.tensor([*product((1.0, -1.0), repeat=2)], dtype=F64)  # of the four classes, [4, 2]
LABEL, SEEN = (
    torch.arange(4).repeat_interleave(4),
    BITS.repeat(4, 1),
)  # all pairs of a class and two read bits
SHARE = 0.5


def chances(flip: float) -> Tensor:
    """Probability of every class with every pair of read bits, [16]."""
    right = (BITS[LABEL] == SEEN).double()
    return (flip + (1 - 2 * flip) * right).prod(1) / 4


def log_probabilities(W: Tensor) -> Tensor:
    """Of the classes given the read bits, [16, 4]; W is [2, 4]."""
    return (SEEN @ W).log_softmax(1)


def distortion(W: Tensor, flip: float) -> Tensor:
    return -(chances(flip) * log_probabilities(W).gather(1, LABEL[:, None])[:, 0]).sum()


def cost(W: Tensor, player: int, flip: float, ridge: float) -> Tensor:
    return SHARE * distortion(W, flip) + ridge / 2 * W[player].square().sum()


def potential(W: Tensor, flip: float, ridge: float) -> Tensor:
    """Φ of eq. 12-13, strictly convex: its minimum is the only equilibrium."""
    return distortion(W, flip) + ridge / 2 * W.square().sum() / SHARE


def equilibrium(flip: float, ridge: float) -> Tensor:
    """The minimum of Φ over all W, by Newton's method."""
    W = torch.zeros(2, 4, dtype=F64)
    for _ in range(30):
        gradient = torch.func.grad(potential)(W, flip, ridge).flatten()
        curvature: Any = hessian(lambda W: potential(W, flip, ridge), W)
        W = W - torch.linalg.solve(curvature.view(8, 8), gradient).view(2, 4)
    return W


def couplings(W: Tensor, flip: float) -> Tensor:
    """G = ω ∘ ρ (eq. 4-6), the product of all cases weighed by their probabilities."""
    error = log_probabilities(W).exp() - torch.eye(4, dtype=F64)[LABEL]
    gradients = chances(flip).sqrt()[:, None] * error @ W.T  # g_i = W_iᵀ η, [16, 2]
    return interaction(weight_coupling(W[..., None]), gradient_coupling(gradients[..., None]))


@pytest.mark.parametrize(
    ("flip", "ridge", "price"), [(0.01, 0.05, 3.59), (0.05, 0.05, 1.44), (0.01, 0.5, 9.28)]
)
def test_two_decoupled_heads_violate_theorem_2_2(flip: float, ridge: float, price: float) -> None:
    found = equilibrium(flip, ridge)
    for player in (0, 1):
        own = torch.func.grad(cost)(found, player, flip, ridge)[player]
        assert float(own.abs().max()) < 1e-12  # C_i is convex in W_i: nobody gains by moving alone
    logit = math.log((1 - flip) / flip)
    best = logit / 2 * BITS.T
    assert float(torch.func.grad(distortion)(best, flip).abs().max()) < 1e-12  # D is convex: the optimum
    entropy = -sum(p * math.log(p) for p in (flip, 1 - flip))
    assert float(distortion(best, flip)) == pytest.approx(2 * entropy)
    # Assumptions: on the segment between both G = I, and by (40) heads do not act on each other.
    for W in torch.lerp(found, best, torch.linspace(0, 1, 5, dtype=F64)[:, None, None]):
        torch.testing.assert_close(couplings(W, flip), torch.eye(2, dtype=F64), rtol=0, atol=1e-12)
        curvature: Any = hessian(lambda W: distortion(W, flip), W)
        assert float(curvature[0, :, 1].abs().max()) < 1e-12
    # Γ = 0 < α/L, and the stated bound 1/(1 - L Γ²/α) is 1.
    paid = float(distortion(found, flip) / distortion(best, flip))
    assert paid == pytest.approx(price, abs=5e-3)
    assert paid < float(potential(best, flip, ridge) / distortion(best, flip))  # the bound that holds
