"""What is known of one game on heads, as plain numbers: values, dividends with their noise, and the players."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from diabat.attention.games.tables import MAX_PLAYERS, all_coalitions, inverse_mobius
from diabat.checks import ArgumentError, check_count
from diabat.heads.games.coalitions import HeadCoalitions
from diabat.heads.games.decoder import Groups, Head
from diabat.heads.games.dividends import Dividends, small_coalitions, standard_error

LEVEL = 0.05
"""False discovery rate of the significant dividends."""
LEAST_SAMPLES = 8
"""A bootstrap frequency of fewer looks certain and is not: of one sample it is 1, whatever others would say."""
# Rounding of float64 is no dividend.
_NEGLIGIBLE = 1e-12

Errors = tuple[float | None, ...]
"""Standard errors; None where there is one sample and therefore no error."""


@dataclass(frozen=True)
class DividendSummary:
    """Everything is a mean over samples, errors are those of the mean.

    Attributes:
        players: Heads (layer, head) of every player.
        max_size: Dividends of coalitions of at most so many players; None for all.
        samples: Number of samples.
        v_empty: v(∅); ``v_empty_error`` is its standard error.
        v_full: v(N), the value of the model as it stands; ``v_full_error`` is its standard error.
        dividends: w(S), in the order of :attr:`coalitions`; ``standard_errors`` are theirs.
        selection_frequency: At position k - 1, among coalitions of at least k players: pairs (position of a coalition,
            share of bootstrap resamples in which it has the largest dividend).
        size_sums: Σ_{|S| = k} w(S) for k = 0, 1, ...; ``size_errors`` are their standard errors.
        positive: Number of significant dividends above 0, and ``negative`` below it; see :func:`significant`.

    Raises:
        ArgumentError: If lengths do not fit the number of players.
    """

    players: Groups
    max_size: int | None
    samples: int
    v_empty: float
    v_empty_error: float | None
    v_full: float
    v_full_error: float | None
    dividends: tuple[float, ...]
    standard_errors: Errors
    selection_frequency: tuple[tuple[tuple[int, float], ...], ...]
    size_sums: tuple[float, ...]
    size_errors: Errors
    positive: int
    negative: int

    def __post_init__(self) -> None:
        n = len(self.players)
        check_count("players", n, most=None if self.max_size else MAX_PLAYERS)
        check_count("max_size", self.max_size, most=n, optional=True)
        most = self.max_size or n
        count = sum(math.comb(n, k) for k in range(most + 1))
        expected = {"dividends": count, "standard_errors": count, "selection_frequency": most}
        expected |= {"size_sums": most + 1, "size_errors": most + 1}
        for name, length in expected.items():
            if len(getattr(self, name)) != length:
                raise ArgumentError(name, f"expected {length} entries, got {len(getattr(self, name))}.")
        if any(not 0 <= at < count for row in self.selection_frequency for at, _ in row):
            raise ArgumentError("selection_frequency", f"expected positions below {count}, got others.")

    @classmethod
    def of(
        cls, game: HeadCoalitions, *, max_size: int | None = None, resamples: int = 1000, seed: int = 0
    ) -> DividendSummary:
        """Evaluate a game and describe its dividends, of coalitions of at most ``max_size`` players if not None.

        ``resamples`` and their ``seed`` are those of the bootstrap behind the selection frequency.

        Raises:
            ValueError: If an argument is out of range, or the game refuses a value.
        """
        n = game.num_players
        if max_size is None:
            values = game.sample_table()
            found = Dividends.of_tables(values)
        else:
            masks = summary_coalitions(n, max_size)
            values = game.sample_values(masks)
            found = Dividends.of_small(values[:, : len(masks) - (max_size < n)], n, max_size)
        # The empty coalition is first in both orders, and that of all players is last.
        (empty, full), errors = values[:, [0, -1]].mean(0).tolist(), standard_error(values[:, [0, -1]])
        sums, sum_errors = found.size_sums()
        most = max_size or n
        return cls(
            game.groups,
            max_size,
            len(values),
            empty,
            finite(errors)[0],
            full,
            finite(errors)[1],
            tuple(found.value.tolist()),
            finite(found.standard_error),
            tuple(_selected(found, size, resamples, seed) for size in range(1, most + 1)),
            tuple(sums.tolist()),
            finite(sum_errors),
            *significant(found),
        )

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of the players, ascending."""
        return tuple(sorted({layer for group in self.players for layer, _ in group}))

    @property
    def coalitions(self) -> Tensor:
        """Masks of the coalitions, bool [M, n]: bit i of the position is player i, or by size up to the largest."""
        n = len(self.players)
        return all_coalitions(n) if self.max_size is None else small_coalitions(n, self.max_size)

    @property
    def mean_dividends(self) -> Dividends:
        """Dividends of the mean, as if it were one sample: what the choice of a salient group needs."""
        return Dividends(self.coalitions, torch.tensor([self.dividends], dtype=torch.float64))

    @property
    def table(self) -> Tensor | None:
        """Values v of all coalitions, float64 [2^n]; None if only those up to a size are known."""
        if self.max_size is not None:
            return None
        return self.v_empty + inverse_mobius(torch.tensor(self.dividends, dtype=torch.float64))

    @property
    def errors(self) -> Tensor:
        """Standard errors of the dividends, float64 [M]; infinite with one sample."""
        return torch.tensor([math.inf if e is None else e for e in self.standard_errors], dtype=torch.float64)

    def frequency(self, position: int, min_size: int = 1) -> float | None:
        """Selection frequency of a coalition among those of at least ``min_size`` players.

        None with fewer than :data:`LEAST_SAMPLES` samples.
        """
        if self.samples < LEAST_SAMPLES:
            return None
        return dict(self.selection_frequency[min_size - 1]).get(position, 0.0)

    def heads(self, players: tuple[int, ...]) -> list[Head]:
        """Heads (layer, head) of players."""
        return sorted(head for player in players for head in self.players[player])


def summary_coalitions(n: int, max_size: int | None) -> Tensor:
    """Coalitions whose values a summary needs, bool [M, n]: the last one is that of all players."""
    if max_size is None:
        return all_coalitions(n)
    masks = small_coalitions(n, max_size)
    return torch.cat((masks, torch.ones(1, n, dtype=torch.bool))) if max_size < n else masks


def significant(dividends: Dividends, level: float = LEVEL) -> tuple[int, int]:
    """Numbers of dividends significantly above and below 0: t-tests over samples, Benjamini-Hochberg at ``level``.

    At most a share ``level`` of them is expected to be false.  With one sample there is no test, and both are 0.
    """
    from scipy import stats

    samples = len(dividends.by_sample)
    if samples < 2:
        return 0, 0
    nonempty = dividends.sizes > 0
    w, error = dividends.value[nonempty], dividends.standard_error[nonempty]
    p = torch.from_numpy(2 * stats.t.sf((w.abs() / error).nan_to_num(0).numpy(), samples - 1))
    p = p.masked_fill(w.abs() <= _NEGLIGIBLE * w.abs().max(), 1)
    rejected = torch.from_numpy(stats.false_discovery_control(p.numpy()) <= level)
    return int((rejected & (w > 0)).sum()), int((rejected & (w < 0)).sum())


def _selected(found: Dividends, min_size: int, resamples: int, seed: int) -> tuple[tuple[int, float], ...]:
    """Coalitions that have the largest dividend of some resample, the most frequent first."""
    frequency = found.selection_frequency(min_size=min_size, resamples=resamples, seed=seed)
    won = frequency.nonzero()[:, 0].tolist()
    return tuple(sorted(((at, float(frequency[at])) for at in won), key=lambda pair: (-pair[1], pair[0])))


def finite(errors: Tensor) -> Errors:
    """Standard errors as numbers."""
    return tuple(error if math.isfinite(error) else None for error in errors.tolist())
