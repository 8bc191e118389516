r"""The cross-entropy game among heads, its potential, and bounds on its price of anarchy.

Player i owns θ_i and pays, with shares π_i > 0 that sum to 1 (GAME-LoRA, definition 2.6),

    C_i(θ) = π_i D(θ) + α/2 ‖θ_i‖²                          (11)
    Φ(θ)   = D(θ) + α/2 Σ_i ‖θ_i‖²/π_i                      (12)-(13)

with the distortion D, a cross-entropy.  ∂C_i/∂θ_i = π_i ∂Φ/∂θ_i (theorem 2.1), so the stationary points of Φ are the
first-order equilibria.  The social cost at β_R = β_C = 0 is D, and the price of anarchy the largest D at an equilibrium
over min D.

Theorem 2.2 as stated is false, see :mod:`diabat.attention.heads.interaction.quadratic_games`.  What holds if D is
convex is

    PoA ≤ 1 + α Σ_i ‖θ*_i‖²/π_i / (2 D(θ*))

since the equilibrium is then the minimum of Φ: D(θ^NE) ≤ Φ(θ^NE) ≤ Φ(θ*).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diabat.checks import ArgumentError, check_positive, is_number

Profile = Sequence[Tensor]
"""Parameters θ_i of every player, of any shapes."""


@dataclass(frozen=True, eq=False)
class CrossEntropyGame:
    """MultiHeadCE (definition 2.6).

    Attributes:
        distortion: D of a profile, a scalar.
        shares: π, floating [H], positive and of sum 1.
        ridge: α > 0.

    Raises:
        ValueError: If the shares are not positive or do not sum to 1, or the ridge is not positive.
    """

    distortion: Callable[[Profile], Tensor]
    shares: Tensor
    ridge: float

    def __post_init__(self) -> None:
        check_shares(self.shares)
        check_positive("ridge", self.ridge)

    def costs(self, profile: Profile) -> Tensor:
        """C_i of every player (eq. 11), [H]."""
        squares = self._squares(profile)
        return self.shares.to(squares) * self.distortion(profile) + 0.5 * self.ridge * squares

    def potential(self, profile: Profile) -> Tensor:
        """Φ (eq. 12-13)."""
        squares = self._squares(profile)
        return self.distortion(profile) + 0.5 * self.ridge * (squares / self.shares.to(squares)).sum()

    def private_gradients(self, profile: Profile) -> list[Tensor]:
        """∂C_i/∂θ_i of every player, each from its own cost; all are zero at a first-order equilibrium."""
        leaves = [theta.detach().requires_grad_() for theta in profile]
        with torch.enable_grad():
            costs = self.costs(leaves).unbind()
        return [
            torch.autograd.grad(cost, leaf, retain_graph=True)[0]
            for cost, leaf in zip(costs, leaves, strict=True)
        ]

    def potential_gradients(self, profile: Profile) -> list[Tensor]:
        """π_i ∂Φ/∂θ_i of every player, which theorem 2.1 says are the private gradients."""
        leaves = [theta.detach().requires_grad_() for theta in profile]
        with torch.enable_grad():
            found = torch.autograd.grad(self.potential(leaves), leaves)
        return [share * gradient for share, gradient in zip(self.shares.tolist(), found, strict=True)]

    def _squares(self, profile: Profile) -> Tensor:
        if len(profile) != len(self.shares):
            raise ArgumentError("profile", f"expected {len(self.shares)} players, got {len(profile)}.")
        return torch.stack([theta.square().sum() for theta in profile])


@dataclass(frozen=True)
class StatedBound:
    """The bound of theorem 2.2, which does not hold in general.

    Attributes:
        value: (1 + β_R + β_C) / (1 - L Γ²/α); infinite if the condition fails.
        condition: Whether Γ² < α/L.
    """

    value: float
    condition: bool


def stated_bound(
    gamma: float, smoothness: float, ridge: float, redundancy: float = 0.0, compression: float = 0.0
) -> StatedBound:
    """Return the bound of theorem 2.2 (eq. 19) as the paper states it.

    It is not a bound: see the module, and docs/heads-interaction.md for the steps of its proof that fail.

    Args:
        gamma: Γ at the equilibrium.
        smoothness: L, such that ∇D is L-Lipschitz and |∂²D/∂θ_i∂θ_j|_F ≤ L |G_ij| (eq. 40).
        ridge: α.
        redundancy: β_R.
        compression: β_C.

    Raises:
        ValueError: If L or α is not positive, or another number is negative.
    """
    check_positive("smoothness", smoothness)
    check_positive("ridge", ridge)
    for name, value in (("gamma", gamma), ("redundancy", redundancy), ("compression", compression)):
        if not is_number(value) or not 0 <= value < math.inf:
            raise ArgumentError(name, f"expected a finite number >= 0, got {value!r}.")
    feedback = smoothness * gamma**2 / ridge
    if feedback >= 1:
        return StatedBound(math.inf, False)
    return StatedBound((1 + redundancy + compression) / (1 - feedback), True)


def price_bound(cost: float, squared_norms: Tensor, shares: Tensor, ridge: float) -> float:
    r"""Return 1 + α Σ_i ‖θ*_i‖²/π_i / (2 D*), which bounds D(θ^NE)/D* if D is convex and β_R = β_C = 0.

    It holds for any reference θ* with D(θ*) = D*, and is smallest at an optimum of small norm.  Without convexity it
    holds for the equilibria that minimise Φ.

    Args:
        cost: D* > 0.
        squared_norms: ‖θ*_i‖², [H].
        shares: π, [H], positive and of sum 1.
        ridge: α.

    Raises:
        ValueError: If an argument is out of range.
    """
    check_positive("cost", cost)
    check_positive("ridge", ridge)
    check_shares(shares)
    if squared_norms.shape != shares.shape or bool((squared_norms < 0).any()):
        raise ArgumentError(
            "squared_norms", f"expected {len(shares)} numbers >= 0, got {squared_norms.tolist()}."
        )
    return 1 + 0.5 * ridge * float((squared_norms.double() / shares.double()).sum()) / cost


def check_shares(shares: Tensor) -> None:
    """Raise ArgumentError unless shares [H] are positive and sum to 1."""
    right = (
        isinstance(shares, Tensor)
        and shares.ndim == 1
        and shares.is_floating_point()
        and bool((shares > 0).all())
    )
    if not right or not math.isclose(float(shares.double().sum()), 1, abs_tol=1e-6):
        got = shares.tolist() if isinstance(shares, Tensor) else shares
        raise ArgumentError("shares", f"expected positive numbers [H] that sum to 1, got {got}.")
