r"""Quadratic games among heads, in which price of anarchy, Hessian and G have closed forms.

H heads with outputs h_i(x) in R^d, fixed, are read out by slices W_i, [out, d], under squared error, which is the
cross-entropy of a Gaussian decoder up to a constant:

    D(W) = ½ E‖y - Σ_i W_i h_i‖² = ½ tr((W - T) Σ (W - T)ᵀ) + ½ σ² out,      Σ = E h hᵀ,  y = Σ_i T_i h_i + noise

D is convex with the constant Hessian Σ ⊗ I.  The only equilibrium of the game of
:mod:`diabat.attention.heads.interaction.anarchy` is W^NE = T Σ (Σ + α Π⁻¹)⁻¹, the only optimum is T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from diabat.attention.heads.interaction.anarchy import check_shares, price_bound, stated_bound
from diabat.attention.heads.interaction.coupling import (
    interaction,
    interaction_strength,
    normalised,
    weight_coupling,
)
from diabat.checks import ArgumentError, check_positive


@dataclass(frozen=True, eq=False)
class QuadraticGame:
    """One game; see the module.

    Attributes:
        targets: T, float64 [H, out, d].
        moments: Σ, float64 [H d, H d], positive definite.
        noise: σ² > 0.
        shares: π, float64 [H].
        ridge: α > 0.

    Raises:
        ValueError: If a shape does not fit, or a number is out of range.
    """

    targets: Tensor
    moments: Tensor
    noise: float
    shares: Tensor
    ridge: float

    def __post_init__(self) -> None:
        heads, _, size = self.targets.shape
        if self.moments.shape != (heads * size, heads * size) or len(self.shares) != heads:
            raise ArgumentError(
                "moments", f"expected [{heads * size}, {heads * size}], got {list(self.moments.shape)}."
            )
        check_shares(self.shares)
        check_positive("noise", self.noise)
        check_positive("ridge", self.ridge)

    def distortion(self, slices: Tensor) -> Tensor:
        """D of slices [H, out, d]."""
        return 0.5 * self._error(slices).diagonal().sum()

    @cached_property
    def equilibrium(self) -> Tensor:
        """W^NE, [H, out, d]."""
        heads, _, size = self.targets.shape
        flat = self.targets.transpose(0, 1).flatten(1)  # [out, H d]
        weight = self.ridge / self.shares.repeat_interleave(size)
        found = torch.linalg.solve(self.moments + weight.diag(), self.moments @ flat.T).T
        return found.unflatten(1, (heads, size)).transpose(0, 1)

    @cached_property
    def price(self) -> float:
        """D(W^NE) / D(T), the price of anarchy."""
        return float(self.distortion(self.equilibrium) / self.distortion(self.targets))

    @cached_property
    def bound(self) -> float:
        """The bound that holds; see :func:`diabat.attention.heads.interaction.anarchy.price_bound`."""
        norms = self.targets.square().sum((1, 2))
        return price_bound(float(self.distortion(self.targets)), norms, self.shares, self.ridge)

    @cached_property
    def stated(self) -> float:
        """Bound of theorem 2.2 at the smallest L that its assumptions allow; infinite if its condition fails."""
        L = self.smoothness
        return math.inf if math.inf == L else stated_bound(self.gamma, L, self.ridge).value

    def G(self, slices: Tensor) -> Tensor:  # noqa: N802 - the paper's name
        """G = ω ∘ ρ, ρ over all inputs: E g_i·g_j = tr(W_i W_jᵀ E e eᵀ) with the error e = f - y, [H, H]."""
        gram = torch.einsum("iad,jbd,ab->ij", slices, slices, self._error(slices))
        return interaction(weight_coupling(slices), normalised(gram))

    @cached_property
    def gamma(self) -> float:
        """Γ at the equilibrium."""
        return float(interaction_strength(self.G(self.equilibrium)))

    @cached_property
    def block_norms(self) -> Tensor:
        """‖∂²D/∂W_i∂W_j‖_F, [H, H]."""
        heads, out, size = self.targets.shape
        blocks = self.moments.unflatten(0, (heads, size)).unflatten(2, (heads, size))
        return math.sqrt(out) * blocks.square().sum((1, 3)).sqrt()

    @cached_property
    def smoothness(self) -> float:
        """Smallest L of assumption 2.1 and (40) on the segment from equilibrium to optimum; infinite if there is none.

        It is the largest of λ_max(Σ), ‖∂²D/∂W_i²‖_F, and ‖∂²D/∂W_i∂W_j‖_F / |G_ij| on the segment.
        """
        steps = torch.linspace(0, 1, 33, dtype=torch.float64)
        path = torch.stack([self.G(self.equilibrium + t * (self.targets - self.equilibrium)) for t in steps])
        least = torch.where(
            (path > 0).all(0) | (path < 0).all(0), path.abs().amin(0), 0
        )  # 0: it changes sign
        off = ~torch.eye(len(least), dtype=torch.bool)
        needed = off & (self.block_norms > 0)
        ratio = (self.block_norms / least)[needed]
        own = torch.linalg.eigvalsh(self.moments)[-1:]
        return float(torch.cat((own, self.block_norms.diagonal(), ratio)).max())

    def steps(self) -> dict[str, bool]:
        """Whether steps (45), (49) and (52) of the proof of theorem 2.2 hold in this game (β_R = β_C = 0)."""
        W, T, pi = self.equilibrium, self.targets, self.shares
        delta = T - W
        gradient = self._gradient(T - 0.5 * delta)  # of a quadratic: the mean over the segment
        inner = (gradient * delta).sum((1, 2))
        heads = range(len(T))
        deviated = [torch.cat((W[:i], T[i : i + 1], W[i + 1 :])) for i in heads]
        distortion = torch.stack([self.distortion(profile) for profile in deviated])
        square = self._gradient(W).square().sum() / 3  # ∇D(T) = 0, and it is linear in between
        L = self.smoothness
        feedback = L * self.gamma**2
        costs = (pi * distortion).sum() + 0.5 * self.ridge * T.square().sum()
        whole = self.distortion(T) + feedback / self.ridge * self.distortion(W)
        return {
            "45": bool(torch.allclose(distortion, self.distortion(T) + inner, rtol=1e-9, atol=1e-12)),
            "49": bool(square <= 2 * L * feedback * delta.square().sum() * (1 + 1e-9)),
            "52": bool(costs <= whole * (1 + 1e-9)),
        }

    def _error(self, slices: Tensor) -> Tensor:
        """E e eᵀ, [out, out]."""
        _, out, _ = self.targets.shape
        delta = (slices - self.targets).transpose(0, 1).flatten(1)
        return delta @ self.moments @ delta.T + self.noise * torch.eye(out, dtype=torch.float64)

    def _gradient(self, slices: Tensor) -> Tensor:
        heads, _, size = self.targets.shape
        flat = (slices - self.targets).transpose(0, 1).flatten(1) @ self.moments
        return flat.unflatten(1, (heads, size)).transpose(0, 1)


def decoupled_heads(target: float = 1.0, floor: float = 0.09, ridge: float = 0.5) -> QuadraticGame:
    """Two heads that write in orthogonal directions and have uncorrelated outputs.

    G is the identity, so that the stated bound is 1.  The equilibrium shrinks every target by 1/(1 + 2α), and the
    price is 1 + (2α/(1 + 2α))² target²/floor: 3.78 at the default values.

    Args:
        target: Size of the targets.
        floor: Smallest distortion, that of the noise.
        ridge: α.
    """
    targets = target * torch.eye(2, dtype=torch.float64)[..., None]  # [2, 2, 1]
    shares = torch.full((2,), 0.5, dtype=torch.float64)
    return QuadraticGame(targets, torch.eye(2, dtype=torch.float64), floor, shares, ridge)


def random_game(seed: int) -> QuadraticGame:
    """Draw a game of two to four heads; the correlation of different heads is between 1e-5 and 0.3, or 0.

    Args:
        seed: Same seed, same game.
    """
    g = torch.Generator().manual_seed(seed)

    def whole(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=g))

    def power(low: float, high: float) -> float:
        return 10 ** (low + (high - low) * float(torch.rand((), generator=g, dtype=torch.float64)))

    heads, size, out = whole(2, 4), whole(1, 3), whole(1, 6)
    coupling = 0.0 if whole(0, 4) == 0 else power(-5, math.log10(0.3))
    A = torch.randn(heads * size, heads * size + 2, generator=g, dtype=torch.float64)
    scale = torch.linalg.inv(torch.linalg.cholesky(A @ A.T / (heads * size + 2)))
    block = torch.ones(size, size, dtype=torch.float64)
    inside = torch.block_diag(*[block] * heads)
    mixed = scale @ scale.T  # a random positive definite matrix
    moments = mixed * (coupling + (1 - coupling) * inside)  # Schur: still positive definite
    moments = moments / moments.diagonal().mean()
    targets = torch.randn(heads, out, size, generator=g, dtype=torch.float64)
    shares = torch.rand(heads, generator=g, dtype=torch.float64) + 0.05
    return QuadraticGame(targets, moments, power(-2, 0.5), shares / shares.sum(), power(-2, 2))
