"""Facts of one game on heads: values, dividends with their noise, and salient groups."""

from __future__ import annotations

import math

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from diabat.attention.games.tables import MAX_PLAYERS, all_coalitions
from diabat.attention.heads import Dividends, HeadCoalitions, common, low_order_coalitions, max_dividend
from diabat.attention.heads.dividends import standard_error
from diabat.attention.heads.players import Groups, Head
from diabat.checks import ArgumentError, check_count

STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
LEVEL = 0.05
"""False discovery rate of the significant dividends."""
SHARE = 0.5
"""Share of the positive coalitions that hold the group ``common``."""
# Rounding of float64 is no dividend.
_NEGLIGIBLE = 1e-12

Numbers = tuple[float, ...]
Errors = tuple[float | None, ...]
"""Standard errors; None where there is one sample and therefore no error."""


class GameFacts(BaseModel):
    """What is known of one game; everything is a mean over samples, errors are those of the mean.

    Attributes:
        players: Heads (layer, head) of every player.
        order: Dividends of coalitions of at most so many players; None for all.
        samples: Number of samples.
        value_of_none: v(∅).
        value_of_none_error: Its standard error.
        value_of_all: v(N).
        value_of_all_error: Its standard error.
        dividends: w(S), in the order of :attr:`coalitions`.
        standard_errors: Their standard errors.
        argmax_frequency: At position k - 1, among coalitions of at least k players: pairs (position of a coalition,
            how often it has the largest dividend when samples are drawn anew).
        order_sums: Σ_{|S| = k} w(S) for k = 0, 1, ...
        order_errors: Their standard errors.
        positive: Number of significant dividends above 0; see :func:`significant`.
        negative: Number of those below 0.
        salient: Players of the salient group, by method.
    """

    model_config = STRICT

    players: Groups
    order: int | None
    samples: int = Field(ge=1)
    value_of_none: float
    value_of_none_error: float | None
    value_of_all: float
    value_of_all_error: float | None
    dividends: Numbers
    standard_errors: Errors
    argmax_frequency: tuple[tuple[tuple[int, float], ...], ...]
    order_sums: Numbers
    order_errors: Errors
    positive: int
    negative: int
    salient: dict[str, tuple[int, ...]]

    @model_validator(mode="after")
    def _lengths_agree(self) -> GameFacts:
        n = len(self.players)
        check_count("players", n, most=None if self.order else MAX_PLAYERS)
        check_count("order", self.order, most=n, optional=True)
        most = n if self.order is None else self.order
        count = sum(math.comb(n, k) for k in range(most + 1))
        expected = {"dividends": count, "standard_errors": count, "order_sums": most + 1}
        expected |= {"order_errors": most + 1, "argmax_frequency": most}
        for name, length in expected.items():
            if len(getattr(self, name)) != length:
                raise ArgumentError(name, f"expected {length} entries, got {len(getattr(self, name))}.")
        if any(not 0 <= at < count for row in self.argmax_frequency for at, _ in row):
            raise ArgumentError("argmax_frequency", f"expected positions below {count}.")
        return self

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of the players, ascending."""
        return tuple(sorted({layer for group in self.players for layer, _ in group}))

    @property
    def coalitions(self) -> Tensor:
        """Masks of the coalitions, bool [M, n]: bit i of the position is player i, or by size up to an order."""
        n = len(self.players)
        return all_coalitions(n) if self.order is None else low_order_coalitions(n, self.order)

    @property
    def mean_dividends(self) -> Dividends:
        """Dividends of the mean, as if it were one sample: what the choice of a salient group needs."""
        return Dividends(self.coalitions, torch.tensor([self.dividends], dtype=torch.float64))

    @property
    def errors(self) -> Tensor:
        """Standard errors of the dividends, float64 [M]; infinite with one sample."""
        return torch.tensor([math.inf if e is None else e for e in self.standard_errors], dtype=torch.float64)

    def frequency(self, position: int, least_size: int) -> float:
        """How often a coalition has the largest dividend of those of at least ``least_size`` players."""
        return dict(self.argmax_frequency[least_size - 1]).get(position, 0.0)

    def heads(self, players: tuple[int, ...]) -> list[Head]:
        """Heads (layer, head) of players."""
        return sorted(head for player in players for head in self.players[player])


def measure_game(
    game: HeadCoalitions, *, order: int | None = None, resamples: int = 1000, seed: int = 0
) -> GameFacts:
    """Evaluate a game and describe its dividends.

    Args:
        game: Players, samples and value.  Coalitions that it has evaluated are not evaluated again.
        order: Dividends of coalitions of at most so many players; None for all, at most 20 players.
        resamples: Bootstrap resamples behind the frequency of the largest dividend.
        seed: Seed of the resamples.

    Raises:
        ValueError: If an argument is out of range, or the game refuses a value.
    """
    n = game.num_players
    if order is None:
        values = game.sample_table()
        found = Dividends.of_tables(values)
    else:
        masks = game_coalitions(n, order)
        values = game.sample_values(masks)
        count = len(masks) - (order < n)
        found = Dividends.of_low_order(values[:, :count], n, order)
    # The empty coalition is first in both orders, and that of all players is last.
    ends = values[:, [0, -1]]
    ends_error = standard_error(ends).tolist()
    sums, sum_errors = found.order_sums()
    positive, negative = significant(found)
    return GameFacts(
        players=game.groups,
        order=order,
        samples=len(values),
        value_of_none=float(ends[:, 0].mean()),
        value_of_none_error=_finite(ends_error[0]),
        value_of_all=float(ends[:, 1].mean()),
        value_of_all_error=_finite(ends_error[1]),
        dividends=tuple(found.value.tolist()),
        standard_errors=tuple(map(_finite, found.standard_error.tolist())),
        argmax_frequency=tuple(_winners(found, size, resamples, seed) for size in range(1, (order or n) + 1)),
        order_sums=tuple(sums.tolist()),
        order_errors=tuple(map(_finite, sum_errors.tolist())),
        positive=positive,
        negative=negative,
        salient=_salient(found),
    )


def game_coalitions(n: int, order: int | None) -> Tensor:
    """Coalitions whose values :func:`measure_game` needs, bool [M, n]: the last one is that of all players."""
    if order is None:
        return all_coalitions(n)
    masks = low_order_coalitions(n, order)
    return torch.cat((masks, torch.ones(1, n, dtype=torch.bool))) if order < n else masks


def game_size(n: int, order: int | None) -> int:
    """Number of those coalitions."""
    if order is None:
        return 1 << n
    return sum(math.comb(n, k) for k in range(order + 1)) + (order < n)


def significant(dividends: Dividends, level: float = LEVEL) -> tuple[int, int]:
    """Numbers of dividends significantly above and below 0: t-tests over samples, Benjamini-Hochberg at ``level``.

    At most a share ``level`` of them is expected to be false.  With one sample there is no test, and both are 0.
    """
    from scipy import stats

    samples = len(dividends.by_sample)
    if samples < 2:
        return 0, 0
    players = dividends.sizes > 0
    w, error = dividends.value[players], dividends.standard_error[players]
    p = torch.from_numpy(2 * stats.t.sf((w.abs() / error).nan_to_num(0).numpy(), samples - 1))
    p = p.masked_fill(w.abs() <= _NEGLIGIBLE * w.abs().max(), 1)
    rejected = torch.from_numpy(stats.false_discovery_control(p.numpy()) <= level)
    return int((rejected & (w > 0)).sum()), int((rejected & (w < 0)).sum())


def _winners(found: Dividends, least_size: int, resamples: int, seed: int) -> tuple[tuple[int, float], ...]:
    """Coalitions that have the largest dividend of some resample, the most frequent first."""
    frequency = found.argmax_frequency(least_size=least_size, resamples=resamples, seed=seed)
    won = frequency.nonzero()[:, 0].tolist()
    return tuple(sorted(((at, float(frequency[at])) for at in won), key=lambda pair: (-pair[1], pair[0])))


def _salient(found: Dividends) -> dict[str, tuple[int, ...]]:
    groups = {"max_dividend": max_dividend(found)}
    if int(found.sizes.max()) > 1:
        groups["max_dividend of two or more"] = max_dividend(found, least_size=2)
    return {**groups, f"common to {SHARE:.0%}": common(found, SHARE)}


def _finite(error: float) -> float | None:
    return error if math.isfinite(error) else None
