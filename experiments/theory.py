r"""Theory of GAME-LoRA: theorem 2.2 in quadratic games, corollary 2.1 where its error is exact, the fit against Γ.

    python -m experiments.theory [games | chain | fit] [--games 8000] [--json]

H heads with fixed outputs h_i(x) in R^d are read out by slices W_i, [out, d], under squared error:

    D(W) = ½ E‖y - Σ_i W_i h_i‖² = ½ tr((W - T) Σ (W - T)ᵀ) + ½ σ² out,      Σ = E h hᵀ,  y = Σ_i T_i h_i + noise

Player i pays C_i = π_i D + α/2 ‖W_i‖² (eq. 11); the potential is Φ = D + α/2 Σ_i ‖W_i‖²/π_i (eq. 12-13).  D is
convex, so the only equilibrium is the minimum of Φ, W^NE = T Σ (Σ + α Π⁻¹)⁻¹, and the only optimum is T.  The price of
anarchy is D(W^NE)/D(T).  Theorem 2.2 bounds it by 1/(1 - L Γ²/α) if Γ² < α/L.  What holds is

    D(W^NE) ≤ Φ(W^NE) ≤ Φ(T),      and with it

    PoA ≤ 1 + α Σ_i ‖T_i‖²/π_i / (2 D(T))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import median_low

import numpy as np
import torch
from torch import Tensor

from diabat.heads.lora.couplings import interaction_strength, normalised, weight_coupling
from experiments import bit_game
from experiments.common import Row, Titled, parser, print_tables, report, run_script


@dataclass(frozen=True, eq=False)
class QuadraticGame:
    """One game: T [H, out, d], Σ [H d, H d], σ², π [H] and α, all float64."""

    targets: Tensor
    moments: Tensor
    noise: float
    shares: Tensor
    ridge: float

    def distortion(self, W: Tensor) -> Tensor:
        """D."""
        return 0.5 * self._error(W).trace()

    def potential(self, W: Tensor) -> Tensor:
        """Φ."""
        return self.distortion(W) + 0.5 * self.ridge * (W.square().sum((1, 2)) / self.shares).sum()

    @cached_property
    def equilibrium(self) -> Tensor:
        """W^NE, [H, out, d]."""
        weight = self.ridge / self.shares.repeat_interleave(self.targets.shape[2])
        right = self.moments @ _flat(self.targets).T
        return _split(torch.linalg.solve(self.moments + weight.diag(), right).T, len(self.targets))

    @cached_property
    def price(self) -> float:
        """The price of anarchy."""
        return float(self.distortion(self.equilibrium) / self.distortion(self.targets))

    @cached_property
    def bound(self) -> float:
        """The bound that holds."""
        return float(self.potential(self.targets) / self.distortion(self.targets))

    @cached_property
    def stated(self) -> float:
        """Bound of theorem 2.2 at the smallest L that its assumptions allow; infinite if its condition fails."""
        feedback = self.smoothness * self.gamma**2 / self.ridge
        return 1 / (1 - feedback) if feedback < 1 else math.inf

    def G(self, W: Tensor) -> Tensor:  # noqa: N802 - the paper's name
        """ω ∘ ρ: cosines of the slices, and of E g_i·g_j = tr(W_i W_jᵀ E e eᵀ) with the error e; [H, H]."""
        gram = torch.einsum("iad,jbd,ab->ij", W, W, self._error(W))
        return weight_coupling(W) * normalised(gram)

    @cached_property
    def gamma(self) -> float:
        """Γ = ‖G - I‖_F at the equilibrium."""
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

        The largest of λ_max(Σ), ‖∂²D/∂W_i²‖_F, and ‖∂²D/∂W_i∂W_j‖_F / |G_ij| on the segment.
        """
        W, T = self.equilibrium, self.targets
        path = torch.stack([self.G(W + t * (T - W)) for t in torch.linspace(0, 1, 33, dtype=torch.float64)])
        one_sign = (path > 0).all(0) | (path < 0).all(0)
        least = torch.where(one_sign, path.abs().amin(0), 0)
        needed = ~torch.eye(len(T), dtype=torch.bool) & (self.block_norms > 0)
        ratios = (self.block_norms / least)[needed]
        return max(torch.linalg.eigvalsh(self.moments)[-1].item(), *self.block_norms.diagonal().tolist(),
                   *ratios.tolist())  # fmt: skip

    def _error(self, W: Tensor) -> Tensor:
        """E e eᵀ, [out, out]."""
        delta = _flat(W - self.targets)
        return delta @ self.moments @ delta.T + self.noise * torch.eye(len(delta), dtype=torch.float64)


def _flat(W: Tensor) -> Tensor:
    return W.transpose(0, 1).flatten(1)  # [out, H d]


def _split(flat: Tensor, heads: int) -> Tensor:
    return flat.unflatten(1, (heads, -1)).transpose(0, 1)


def random_game(seed: int) -> QuadraticGame:
    """Draw a game of two to four heads; the correlation of different heads is between 1e-5 and 0.3, or 0."""
    g = torch.Generator().manual_seed(seed)

    def whole(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=g))

    def power(low: float, high: float) -> float:
        return 10 ** (low + (high - low) * float(torch.rand((), generator=g, dtype=torch.float64)))

    heads, size, out = whole(2, 4), whole(1, 3), whole(1, 6)
    coupling = 0.0 if whole(0, 4) == 0 else power(-5, math.log10(0.3))
    A = torch.randn(heads * size, heads * size + 2, generator=g, dtype=torch.float64)
    scale = torch.linalg.inv(torch.linalg.cholesky(A @ A.T / (heads * size + 2)))
    inside = torch.block_diag(*[torch.ones(size, size, dtype=torch.float64)] * heads)
    moments = scale @ scale.T * (coupling + (1 - coupling) * inside)  # Schur: still positive definite
    targets = torch.randn(heads, out, size, generator=g, dtype=torch.float64)
    shares = torch.rand(heads, generator=g, dtype=torch.float64) + 0.05
    moments = moments / moments.diagonal().mean()
    return QuadraticGame(targets, moments, power(-2, 0.5), shares / shares.sum(), power(-2, 2))


def is_coupled(game: QuadraticGame) -> bool:
    """Whether two heads have correlated outputs."""
    return bool((game.block_norms - game.block_norms.diagonal().diag() > 0).any())


def games(count: int) -> list[Row]:
    """Random games that the theorem admits, those of them with coupled heads, and all of them."""
    drawn = [random_game(seed) for seed in range(count)]
    admitted = [game for game in drawn if game.stated < math.inf]
    coupled = [game for game in admitted if is_coupled(game)]
    return [
        _row("random", count, admitted),
        _row("random, coupled heads", sum(map(is_coupled, drawn)), coupled),
        {"game": "random, admissible or not", "games": count, "admissible": len(admitted),
         "violate the bound": sum(game.price > game.bound * (1 + 1e-9) for game in drawn)},
    ]  # fmt: skip


def _row(name: str, count: int, admitted: list[QuadraticGame]) -> Row:
    return {
        "game": name, "games": count, "admissible": len(admitted),
        "violate the bound": sum(game.price > game.bound * (1 + 1e-9) for game in admitted),
        "violate 2.2": sum(game.price > game.stated * (1 + 1e-9) for game in admitted),
        **{f"median {what}": median_low([getattr(game, what) for game in admitted])
           for what in ("price", "stated", "bound")},
    }  # fmt: skip


def chain(flip: float, ridge: float, delta: float, *, oracle: bool) -> list[Row]:
    """Links of corollary 2.1 in the game of two bits, each with both sides: left <= right is claimed.

    The truth y* is the class, or with ``oracle`` False what the read bits tell of it, which is the optimum.  E is the
    total variation of the prediction from y*, H_δ the event E >= δ.  Heads draw nothing and β_R = β_C = 0, so that both
    sides are equal in (63) and (64), and C* is D.  Here G = I at equilibrium and optimum, (40) has zeros on both sides,
    and the price of theorem 2.2 is 1.  The excess (20) is defined if Pr(H_δ) > 0 at the optimum.
    """
    weights, optimum = bit_game.chances(flip), bit_game.optimum(flip)
    known = bit_game.log_probabilities(optimum).exp()
    truth = torch.eye(4, dtype=torch.float64)[bit_game.LABEL] if oracle else known

    def tail(W: Tensor) -> tuple[float, float, float]:  # Pr(H_δ), E E²/δ², E KL/(2 δ²)
        logs = bit_game.log_probabilities(W)
        errors = 0.5 * (logs.exp() - truth).abs().sum(1)
        divergence = (torch.xlogy(truth, truth) - truth * logs).sum(1)
        parts = (errors >= delta, errors.square() / delta**2, divergence / (2 * delta**2))
        return tuple((torch.stack(parts) @ weights).tolist())

    W = bit_game.equilibrium(flip, ridge)
    at_rest, least = (float(bit_game.distortion(of, flip)) / (2 * delta**2) for of in (W, optimum))
    (chance, square, divergence), (best, *_) = tail(W), tail(optimum)
    links = [
        ("Markov (58)", chance, square), ("Pinsker (60)", square, divergence),
        ("entropy (61)", divergence, at_rest), ("all of them (57)", chance, at_rest),
    ]  # fmt: skip
    if best > 0:
        links += [("excess (20), measured price", chance / best, at_rest / best),
                  ("excess (20), price of theorem 2.2", chance / best, least / best)]  # fmt: skip
    return [
        {"link": name, "left": left, "right": right, "right / left": right / left if left else math.inf,
         "holds": left <= right * (1 + 1e-9)}
        for name, left, right in links
    ]  # fmt: skip


def chains() -> Titled:
    """Links of the games of docs/game-lora.md at δ = .5, and of one where the truth is what can be known."""
    games = ((0.01, 0.05, True), (0.05, 0.05, True), (0.01, 0.5, True), (0.01, 0.5, False))
    for flip, ridge, oracle in games:
        truth = "the class" if oracle else "its law given the read bits"
        for row in chain(flip, ridge, 0.5, oracle=oracle):
            yield f"p = {flip}, α = {ridge}, truth: {truth}", row


def fit_hallucination(gamma: Tensor, excess: Tensor) -> Row:
    """Fit ΔH = a - λ/(1 - c Γ) (figure 3 of the paper), written as b + k Γ/(1 - c Γ), which is a line at c = 0.

    b and k are those of least squares for each c, so that the profile likelihood of c is -N/2 log SSE(c).

    Args:
        gamma: Γ > 0, [N].
        excess: ΔH, [N].

    Returns:
        c with its 95 % interval (infinite where the data set no end), R², and R² of the line.
    """
    x, y = gamma.double().numpy() / float(gamma.max()), excess.double().numpy()
    # In units of 1/max Γ: c runs from far below 0 to 1, dense near 0 and 1.
    c = np.concatenate((-np.geomspace(1e3, 1e-3, 4001), [0.0], 1 - np.geomspace(1, 1e-4, 4001)[1:]))
    z = x / (1 - c[:, None] * x)
    z -= z.mean(1, keepdims=True)
    rest = y - y.mean() - (z @ y / (z**2).sum(1))[:, None] * z
    squares, total = (rest**2).sum(1), ((y - y.mean()) ** 2).sum()
    least = max(squares.min(), np.finfo(float).eps * total)
    chi_square = 3.841  # 95 %, one degree of freedom
    inside = np.flatnonzero(len(x) * np.log(np.maximum(squares, least) / least) <= chi_square)
    outer = np.concatenate(([-np.inf], c, [1.0]))  # an end between two points is the outer one
    ends = outer[[inside[0], inside[-1] + 2]]
    low, high, best = (float(end) / float(gamma.max()) for end in (*ends, c[squares.argmin()]))
    return {"c": best, "from": low, "to": high, "R²": 1 - squares.min() / total,
            "R² of a line": 1 - squares[c == 0].item() / total}  # fmt: skip


def noisy_fits() -> list[Row]:
    """Fits to 20 noisy points of 2 - 0.7/(1 - 0.24 Γ), in a narrow range of Γ as in the paper and in a wide one."""
    fits = []
    for low, high, noise in ((0.8, 0.9, 0.006), (0.2, 1.1, 0.006)):
        gamma = torch.linspace(low, high, 20, dtype=torch.float64)
        rough = noise * torch.randn(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        fits.append({"Γ": f"{low} to {high}", "true c": 0.24,
                      **fit_hallucination(gamma, 2 - 0.7 / (1 - 0.24 * gamma) + rough)})  # fmt: skip
    return fits


def main() -> None:
    """Print the tables."""
    command = parser(__doc__)
    command.add_argument("part", nargs="?", choices=("games", "chain", "fit"))
    command.add_argument("--games", type=int, default=8000)
    options = command.parse_args()
    torch.set_num_threads(1)
    if options.part in (None, "games"):
        report("Theorem 2.2 in quadratic games, β_R = β_C = 0", games(options.games), as_json=options.json)
    if options.part in (None, "chain"):
        print_tables(chains(), as_json=options.json, prefix="Corollary 2.1, two bits, ")
    if options.part in (None, "fit"):
        title = "Fit of 20 points of a - λ/(1 - c Γ): c and its 95 % interval"
        report(title, noisy_fits(), as_json=options.json)


if __name__ == "__main__":
    run_script(main)
