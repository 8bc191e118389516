r"""Search of good coalitions with an Ising model in place of the game.

    v(S) ≈ c + Σ_i h_i s_i + Σ_{i<j} J_ij s_i s_j,    s_i = +1 if player i is in S, else -1

fitted to sampled coalitions of all sizes, so that any sampler proposes maxima of v(S) - λ|S|.  At λ = 0 the full set is
nearly the best and every search finds it; λ is the price of a player.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from diabat.attention.games.draws import sized_coalitions
from diabat.checks import ArgumentError, ArgumentTypeError, check_count, is_finite, number_text
from diabat.ising import Ising, pack_couplings
from diabat.samplers.base import Sampler
from diabat.samplers.seeds import draw_seed

_RIDGES = torch.logspace(-8, 1, 28, dtype=torch.float64)
# Exponents of spread 4 and 16: the first visits the neighbourhood of the maxima, the second the maxima themselves.
_SPREADS = (4.0, 16.0)


@dataclass(frozen=True, eq=False)
class Surrogate:
    """A pairwise model of a game, as above: the constant c, fields h [n] and couplings J [n, n], float64."""

    constant: float
    fields: Tensor
    couplings: Tensor

    def value(self, coalitions: Tensor) -> Tensor:
        """Values of coalitions, bool [..., n], float64 [...]."""
        s = 2 * coalitions.double() - 1
        return self.constant + s @ self.fields + 0.5 * ((s @ self.couplings) * s).sum(-1)


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The best coalition S that a search evaluated.

    Attributes:
        players: S.
        objective: v(S) - λ|S|.
        value: v(S).
        evaluations: How many coalitions were evaluated.
        model: The last surrogate.
        coalitions: All that were evaluated, bool [evaluations, n].
        values: Their v, float64 [evaluations].
    """

    players: tuple[int, ...]
    objective: float
    value: float
    evaluations: int
    model: Surrogate
    coalitions: Tensor
    values: Tensor


def fit_surrogate(coalitions: Tensor, values: Tensor) -> Surrogate:
    """Fit values v [M] of coalitions, bool [M, n], by ridge regression.

    The strength is chosen by generalised cross-validation.

    Raises:
        TypeError: If the coalitions are no bool tensor, or the values no floating one.
        ValueError: If their shapes do not go together, or there are fewer than two.
    """
    if not isinstance(coalitions, Tensor) or coalitions.dtype != torch.bool or coalitions.ndim != 2:
        raise ArgumentTypeError("coalitions", "expected a bool tensor [M, n].")
    if not isinstance(values, Tensor) or not values.is_floating_point():
        raise ArgumentTypeError("values", "expected a floating tensor [M].")
    if values.shape != coalitions.shape[:1] or len(values) < 2:
        raise ArgumentError("values", f"{len(coalitions)} values, two or more", f"shape {list(values.shape)}")
    n, v = coalitions.shape[1], values.double()
    s = 2 * coalitions.double() - 1
    rows, columns = torch.triu_indices(n, n, offset=1)
    terms = torch.cat((s, s[:, rows] * s[:, columns]), 1)
    centre, mean = terms.mean(0), v.mean()
    weights = _ridge(terms - centre, v - mean)
    constant = float(mean - centre @ weights)
    return Surrogate(constant, weights[:n], pack_couplings(weights[n:], n))


def surrogate(
    value: Callable[[Tensor], Tensor],
    num_players: int,
    sampler: Sampler,
    *,
    penalty: float = 0.3,
    evaluations: int = 200,
    rounds: int = 4,
    num_reads: int = 200,
    seed: int | None = None,
) -> SearchResult:
    r"""Search argmax_S v(S) - λ|S| with a fixed number of evaluations of v.

    Half of them are coalitions of all sizes, to which the model is fitted; the rest are what the sampler proposes, the
    best by the model, in a few rounds with a fit before each.  The result is the best of all that were evaluated.

    Args:
        value: v of masks, bool [M, n], floating [M]: ``game.value``.
        num_players: n.
        sampler: Any that draws samples.
        penalty: λ >= 0, what a player costs.
        evaluations: Evaluations of v, at least 8; of at most 2^n different coalitions.
        rounds: Rounds of proposals.
        num_reads: Reads of the sampler in each round and at each of two temperatures.
        seed: The same seed gives the same search, if the sampler keeps its promise; None draws one.

    Raises:
        TypeError: If the value is not callable, or the sampler is none.
        UnsupportedError: If the sampler does not support such problems, or does not sample.
        ValueError: If an argument is out of range.
    """
    if not callable(value):
        raise ArgumentTypeError("value", "a function of masks", type(value).__name__)
    if not is_finite(penalty) or penalty < 0:
        raise ArgumentError("penalty", "a number >= 0", number_text(penalty))
    num_players, rounds = check_count("num_players", num_players), check_count("rounds", rounds)
    num_reads = check_count("num_reads", num_reads)
    evaluations = check_count("evaluations", evaluations, least=8)
    start = draw_seed(seed)
    evaluations = min(evaluations, 1 << min(num_players, 62))
    known, everyone = _Evaluated(value, num_players), torch.ones(num_players, dtype=torch.bool)
    drawn = sized_coalitions(everyone, evaluations, start, stratified=True)  # sizes uniform on 0 .. n
    known.add(torch.cat((~everyone[None], everyone[None], drawn)), max(2, (evaluations + 1) // 2))
    for round_ in range(rounds):
        room = (evaluations - len(known.values)) // (rounds - round_)
        model = fit_surrogate(known.masks, known.values)
        seed = (start + round_) % 2**63
        proposed = low_energy_states(model.fields - penalty / 2, model.couplings, sampler, num_reads, seed)
        score = model.value(proposed) - penalty * proposed.sum(-1).double()
        known.add(proposed[score.argsort(descending=True, stable=True)], room)
    # What proposals that were known already left over goes to coalitions near the best and at random.
    known.add(_near(known.masks[known.best(penalty)]), evaluations - len(known.values))
    more = sized_coalitions(everyone, 4 * evaluations, start + 1, stratified=True)
    known.add(more, evaluations - len(known.values))
    at, model = known.best(penalty), fit_surrogate(known.masks, known.values)
    v, players = float(known.values[at]), tuple(known.masks[at].nonzero()[:, 0].tolist())
    objective = v - penalty * len(players)
    return SearchResult(players, objective, v, len(known.values), model, known.masks, known.values)


class _Evaluated:
    """Coalitions and their values, each evaluated once."""

    def __init__(self, value: Callable[[Tensor], Tensor], n: int) -> None:
        self._value = value
        self._known: set[bytes] = set()
        self.masks = torch.zeros(0, n, dtype=torch.bool)
        self.values = torch.zeros(0, dtype=torch.float64)

    def add(self, masks: Tensor, room: int) -> None:
        """Evaluate the first ``room`` that are new."""
        fresh: list[Tensor] = []
        for mask in masks:
            key = mask.numpy().tobytes()
            if len(fresh) < room and key not in self._known:
                self._known.add(key)
                fresh.append(mask)
        if fresh:
            self.masks = torch.cat((self.masks, torch.stack(fresh)))
            self.values = torch.cat((self.values, self._value(torch.stack(fresh)).detach().cpu().double()))

    def best(self, penalty: float) -> int:
        """Position of the largest v(S) - λ|S|."""
        return int((self.values - penalty * self.masks.sum(-1).double()).argmax())


def low_energy_states(
    fields: Tensor, couplings: Tensor, sampler: Sampler, num_reads: int, seed: int
) -> Tensor:
    """Different states, True for spin +1, that a sampler draws at two temperatures, bool [M, n].

    They are of an Ising model with fields h [n] and couplings J [n, n], float64; none if all of these are 0, so that
    every state is as good.  There are ``num_reads`` reads at each temperature.

    Raises:
        TypeError: If the sampler is none.
        UnsupportedError: If it does not support such problems, or does not sample.
    """
    if not isinstance(sampler, Sampler):
        raise ArgumentTypeError(
            "sampler", "a Sampler, as diabat.sampler('tempering') gives it", f"{sampler!r:.60}"
        )
    # Of uniform spins the exponent has this standard deviation.
    spread = float((fields.square().sum() + couplings.square().sum() / 2).sqrt())
    if not spread:
        return torch.zeros(0, len(fields), dtype=torch.bool)
    problems = [Ising(target / spread * fields, target / spread * couplings) for target in _SPREADS]
    drawn = [sampler.sample(problem, num_reads, seed=seed).spins.cpu() > 0 for problem in problems]
    return torch.unique(torch.cat(drawn), dim=0)


def _ridge(X: Tensor, y: Tensor) -> Tensor:
    r"""Minimise |y - X w|² + ρ|w|², ρ minimising the cross-validation score |y - ŷ|²/(1 - (1 + Σ_k f_k)/M)².

    f_k = σ_k²/(σ_k² + ρ) are the filter factors of the singular values; one degree of freedom is the constant's.
    """
    U, sigma, Vh = torch.linalg.svd(X, full_matrices=False)
    projected, squares = U.T @ y, sigma.square()
    rest = (y.square().sum() - projected.square().sum()).clamp_min(0)
    ridges = _RIDGES[:, None] * squares.max().clamp_min(torch.finfo(torch.float64).tiny)
    filters = squares / (squares + ridges)
    residual = ((1 - filters) * projected).square().sum(-1) + rest
    room = (1 - (1 + filters.sum(-1)) / len(y)).clamp_min(1e-6)
    chosen = filters[int((residual / room.square()).argmin())]
    return Vh.T @ (torch.where(sigma > 0, chosen / sigma.clamp_min(1e-300), 0) * projected)


def _near(best: Tensor) -> Tensor:
    """All coalitions one player away, then all two players away, bool [.., n]."""
    n = len(best)
    one = torch.eye(n, dtype=torch.bool)
    rows, columns = torch.triu_indices(n, n, offset=1)
    return best ^ torch.cat((one, one[rows] | one[columns]))
