"""A counterexample to theorem 2.2 of GAME-LoRA, with cross-entropy, by enumeration (docs/game-lora.md)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian

from diabat.heads.lora.couplings import gradient_coupling, interaction, weight_coupling
from experiments.bit_game import (
    F64,
    LABEL,
    SHARE,
    chances,
    distortion,
    equilibrium,
    log_probabilities,
    optimum,
    potential,
)


def cost(W: Tensor, player: int, flip: float, ridge: float) -> Tensor:
    return SHARE * distortion(W, flip) + ridge / 2 * W[player].square().sum()


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
    best = optimum(flip)
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
