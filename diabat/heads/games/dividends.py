r"""Harsanyi dividends of a mean over samples, with their noise.

    w(S) = Σ_{T ⊆ S} (-1)^{|S|-|T|} (v(T) - v(∅))

v(∅) is subtracted, which changes w(∅) = 0 only, and Σ_S w(S) = v(N) - v(∅).  (Overwriting v(∅) by 0 would shift every
w(S) by -(-1)^{|S|} v(∅).)  The standard error of w(S) is a root of 2^{|S|} terms: noise grows as 2^{|S|/2}.

The salient group of a game is the players whose heads a calibration leaves alone (GAC, eq. 7 and 8).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from diabat.attention.games.indices import harsanyi_dividends
from diabat.attention.games.tables import MAX_PLAYERS, all_coalitions, sizes, superset_sums
from diabat.checks import ArgumentError, ArgumentTypeError, check_count, is_number

_CHUNK = 1 << 24
_MOST_COALITIONS = 1 << 16


@dataclass(frozen=True, eq=False)
class Dividends:
    """Dividends of coalitions, by sample.

    Attributes:
        coalitions: bool [M, n].
        by_sample: w(S) of every sample, float64 [samples, M].
    """

    coalitions: Tensor
    by_sample: Tensor

    @classmethod
    def of(cls, values: Tensor, num_players: int, max_size: int | None = None) -> Dividends:
        """Dividends of the coalitions of :func:`small_coalitions` from their values, floating [samples, M].

        Exact for any size: w(S) depends on the values of the subsets of S only.  A full table takes the fast transform.

        Raises:
            TypeError: If the values are not a floating tensor.
            ValueError: If their shape is another, or the size is out of range.
        """
        coalitions = small_coalitions(num_players, max_size)
        if not isinstance(values, Tensor) or not values.is_floating_point():
            got = values.dtype if isinstance(values, Tensor) else type(values).__name__
            raise ArgumentTypeError("values", "a floating tensor", got)
        if values.ndim != 2 or values.shape[1] != len(coalitions) or not len(values):
            expected = f"shape [samples, {len(coalitions)}] with one row per sample"
            raise ArgumentError("values", expected, list(values.shape))
        gains = values.double() - values[:, :1].double()
        if max_size is None:
            return cls(coalitions, harsanyi_dividends(gains))
        sign = 1 - 2 * (coalitions.sum(-1) % 2).double()
        outside, member = (~coalitions).float(), coalitions.float().T
        parts = outside.split(max(1, _CHUNK // len(coalitions)))
        # Over all T without a player outside S, (-1)^|T| (v(T) - v(∅)).
        sums = torch.cat([(gains * sign) @ (part @ member == 0).double().T for part in parts], 1)
        return cls(coalitions, sums * sign)

    @property
    def value(self) -> Tensor:
        """Dividends w(S) of the mean over samples, float64 [M]."""
        return self.by_sample.mean(0)

    @property
    def standard_error(self) -> Tensor:
        """Standard error of :attr:`value` from the spread over samples, float64 [M]; infinite with one sample."""
        return standard_error(self.by_sample)

    @property
    def sizes(self) -> Tensor:
        """Number of players |S|, int64 [M]."""
        return self.coalitions.sum(-1)

    def largest(self, min_size: int = 1) -> int:
        """Position of the largest dividend among coalitions of at least ``min_size`` players.

        Raises:
            ValueError: If there is none of that size.
        """
        return int(self._at_least(min_size, self.value).argmax())

    def selection_frequency(self, *, min_size: int = 1, resamples: int = 1000, seed: int = 0) -> Tensor:
        """Share of bootstrap resamples in which each coalition has the largest dividend, float64 [M], sum 1.

        Args:
            min_size: Coalitions of fewer players do not compete.
            resamples: Bootstrap resamples, each of as many samples as there are.
            seed: The same seed gives the same resamples.

        Raises:
            ValueError: If an argument is out of range.
        """
        resamples = check_count("resamples", resamples)
        generator = torch.Generator().manual_seed(seed)
        samples, count = self.by_sample.shape
        frequency = torch.zeros(count, dtype=torch.float64)
        step = max(1, _CHUNK // count)
        for start in range(0, resamples, step):
            drawn = torch.randint(samples, (min(step, resamples - start), samples), generator=generator)
            weights = torch.zeros(drawn.shape, dtype=torch.float64)
            weights.scatter_add_(1, drawn, torch.ones_like(weights))
            winners = self._at_least(min_size, weights @ self.by_sample).argmax(-1)
            frequency += torch.bincount(winners, minlength=count).double() / resamples
        return frequency

    def _at_least(self, min_size: int, values: Tensor) -> Tensor:
        min_size = check_count("min_size", min_size, most=int(self.sizes.max()))
        return values.masked_fill(self.sizes < min_size, -torch.inf)


def small_coalitions(num_players: int, max_size: int | None = None) -> Tensor:
    """Masks of all coalitions of at most ``max_size`` players, bool [M, n], by size; of all in table order, if None.

    Raises:
        ValueError: If the size is not in 1 .. n, there are more than 2^16 such coalitions, or more than 20 players and
            no size.
    """
    num_players = check_count("num_players", num_players)
    max_size = check_count("max_size", max_size, most=num_players, optional=True)
    if max_size is None:
        if num_players > MAX_PLAYERS:
            raise ArgumentError("max_size", f"3, for example, for a game of {num_players} players", "none")
        return all_coalitions(num_players)
    count = sum(math.comb(num_players, size) for size in range(max_size + 1))
    if count > _MOST_COALITIONS:
        raise ArgumentError("max_size", f"at most {_MOST_COALITIONS} coalitions", count)
    masks = [torch.zeros(1, num_players, dtype=torch.bool)]
    for size in range(1, max_size + 1):
        members = torch.combinations(torch.arange(num_players), size)
        masks.append(masks[0].expand(len(members), -1).scatter(1, members, True))
    return torch.cat(masks)


def standard_error(by_sample: Tensor) -> Tensor:
    """Standard error of the mean over samples, [M] of values [samples, M]; infinite with one sample."""
    if len(by_sample) < 2:
        return torch.full_like(by_sample[0], torch.inf)
    return by_sample.std(0) / len(by_sample) ** 0.5


def finite(errors: Tensor) -> tuple[float | None, ...]:
    """Standard errors as numbers; None where there is one sample and therefore no error."""
    return tuple(error if math.isfinite(error) else None for error in errors.tolist())


def max_dividend(dividends: Dividends, min_size: int = 1) -> tuple[int, ...]:
    r"""Players of argmax_S w(S), |S| >= ``min_size`` (GAC, eq. 7); without a size it is mostly one player.

    Raises:
        ValueError: If there is no coalition of that size.
    """
    return _players(dividends.coalitions[dividends.largest(min_size)].tolist())


def common(dividends: Dividends, share: float = 0.5) -> tuple[int, ...]:
    r"""Largest group G that lies inside at least a share q of the coalitions S ≠ ∅ with w(S) > 0.

    With q = 1 it is the intersection of eq. 8, which is mostly empty.  Of groups of equal size the one inside the most
    coalitions is taken, then the one with the smallest players first.

    Args:
        dividends: Of all coalitions, or of those up to a size.
        share: q, 0 < q <= 1.

    Returns:
        The players; empty if no player is in so many.

    Raises:
        ValueError: If the share is out of range.
    """
    if not is_number(share) or not 0 < share <= 1:
        raise ArgumentError("share", "a number in (0, 1]", f"{share!r}")
    positive = dividends.coalitions[(dividends.value > 0) & (dividends.sizes > 0)]
    if not len(positive):
        return ()
    needed, n = share * len(positive) - 1e-9, positive.shape[1]
    counts: Counter[tuple[int, ...]] = Counter({(): len(positive)})
    if n > MAX_PLAYERS:  # every subset of each coalition
        for row in positive.tolist():
            members = _players(row)
            counts.update(
                group for size in range(1, len(members) + 1) for group in combinations(members, size)
            )
    else:
        there = torch.zeros(1 << n, dtype=torch.float64)
        there[(positive.long() << torch.arange(n)).sum(-1)] = 1
        inside = superset_sums(there)
        largest = sizes(n).masked_fill(inside < needed, -1)
        for code in (largest == largest.max()).nonzero()[:, 0].tolist():
            counts[tuple(player for player in range(n) if code >> player & 1)] = int(inside[code])
    enough = [group for group, count in counts.items() if count >= needed]
    return min(enough, key=lambda group: (-len(group), -counts[group], group))


def _players(mask: list[bool]) -> tuple[int, ...]:
    return tuple(player for player, there in enumerate(mask) if there)
