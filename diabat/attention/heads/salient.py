r"""The salient group of a game: the players whose heads a calibration leaves alone (GAC, eq. 7 and 8)."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import torch

from diabat.attention.games.tables import MAX_PLAYERS, sizes, superset_sums
from diabat.attention.heads.dividends import Dividends
from diabat.checks import ArgumentError, is_number


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
        raise ArgumentError("share", f"expected a number in (0, 1], got {share!r}.")
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
