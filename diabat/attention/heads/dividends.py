r"""Harsanyi dividends of a mean over samples, with their noise.

    w(S) = Σ_{T ⊆ S} (-1)^{|S|-|T|} (v(T) - v(∅))

v(∅) is subtracted, which changes w(∅) = 0 only, and Σ_S w(S) = v(N) - v(∅).  (Overwriting v(∅) by 0 would shift every
w(S) by -(-1)^{|S|} v(∅).)  The standard error of w(S) is a root of 2^{|S|} terms: noise grows as 2^{|S|/2}.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from diabat.attention.games.indices import harsanyi_dividends
from diabat.attention.games.tables import all_coalitions, num_players
from diabat.checks import ArgumentError, ArgumentTypeError, check_count

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
    def of_tables(cls, tables: Tensor) -> Dividends:
        """Dividends of all coalitions from tables of values, floating [samples, 2^n].

        Raises:
            TypeError: If it is not a floating tensor.
            ValueError: If its shape is another.
        """
        n = num_players(tables)
        _check_samples("tables", tables)
        values = tables.double()
        return cls(all_coalitions(n), harsanyi_dividends(values - values[:, :1]))

    @classmethod
    def of_small(cls, values: Tensor, num_players: int, max_size: int) -> Dividends:
        """Dividends of all coalitions of at most ``max_size`` players from their values, floating [samples, M].

        Exact: w(S) depends on the values of the subsets of S only.  Values are in the order of
        :func:`small_coalitions`.

        Raises:
            TypeError: If it is not a floating tensor.
            ValueError: If its shape is another, or the size is out of range.
        """
        coalitions = small_coalitions(num_players, max_size)
        if not isinstance(values, Tensor) or not values.is_floating_point():
            got = values.dtype if isinstance(values, Tensor) else type(values).__name__
            raise ArgumentTypeError("values", f"expected a floating tensor, got {got}.")
        if values.ndim != 2 or values.shape[1] != len(coalitions):
            raise ArgumentError(
                "values", f"expected shape [samples, {len(coalitions)}], got {list(values.shape)}."
            )
        _check_samples("values", values)
        sign = 1 - 2 * (coalitions.sum(-1) % 2).double()
        signed = (values.double() - values.double()[:, :1]) * sign  # (-1)^|T| (v(T) - v(∅))
        outside, member = (~coalitions).float(), coalitions.float().T
        parts = outside.split(max(1, _CHUNK // len(coalitions)))
        # Over all T without a player outside S.
        sums = torch.cat([signed @ (part @ member == 0).double().T for part in parts], 1)
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
        check_count("resamples", resamples)
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

    def size_sums(self) -> tuple[Tensor, Tensor]:
        """Σ_{|S|=k} w(S) for k = 0 .. n (or the largest size), and their standard errors, float64 [k + 1] each.

        Of a full table they sum to v(N) - v(∅).
        """
        sizes = self.sizes
        sums = self.by_sample @ torch.nn.functional.one_hot(sizes, int(sizes.max()) + 1).double()
        return sums.mean(0), standard_error(sums)

    def _at_least(self, min_size: int, values: Tensor) -> Tensor:
        check_count("min_size", min_size, most=int(self.sizes.max()))
        return values.masked_fill(self.sizes < min_size, -torch.inf)


def small_coalitions(num_players: int, max_size: int) -> Tensor:
    """Masks of all coalitions of at most ``max_size`` players, bool [M, n], by size.

    Raises:
        ValueError: If the size is not in 1 .. n, or there are more than 2^16 such coalitions.
    """
    check_count("num_players", num_players)
    check_count("max_size", max_size, most=num_players)
    count = sum(math.comb(num_players, size) for size in range(max_size + 1))
    if count > _MOST_COALITIONS:
        raise ArgumentError("max_size", f"expected at most {_MOST_COALITIONS} coalitions, got {count}.")
    masks = [torch.zeros(1, num_players, dtype=torch.bool)]
    for size in range(1, max_size + 1):
        members = torch.combinations(torch.arange(num_players), size)
        masks.append(masks[0].expand(len(members), -1).scatter(1, members, True))
    return torch.cat(masks)


def _check_samples(name: str, values: Tensor) -> None:
    if values.ndim != 2 or not len(values):
        raise ArgumentError(name, f"expected one row per sample, got shape {list(values.shape)}.")


def standard_error(by_sample: Tensor) -> Tensor:
    """Standard error of the mean over samples, [M] of values [samples, M]; infinite with one sample."""
    if len(by_sample) < 2:
        return torch.full_like(by_sample[0], torch.inf)
    return by_sample.std(0) / len(by_sample) ** 0.5
