r"""The salient group of a game: the players whose heads a calibration leaves alone (GAC, eq. 7 and 8)."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import torch
from torch import Tensor

from diabat.attention.games.tables import MAX_PLAYERS, all_coalitions, sizes, superset_sums
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
    count = _counts_by_table if positive.shape[1] <= MAX_PLAYERS else _counts_by_group
    counts = count(positive, share * len(positive) - 1e-9)
    return min(counts, key=lambda group: (-len(group), -counts[group], group))


def _counts_by_table(coalitions: Tensor, needed: float) -> dict[tuple[int, ...], int]:
    """Largest groups inside at least so many of the coalitions, bool [M, n], with their numbers."""
    n = coalitions.shape[1]
    there = torch.zeros(1 << n, dtype=torch.float64)
    there[(coalitions.long() << torch.arange(n)).sum(-1)] = 1
    counts = superset_sums(there)
    enough = sizes(n).masked_fill(counts < needed, -1)
    largest = (enough == enough.max()).nonzero()[:, 0]
    groups = [_players(mask) for mask in all_coalitions(n)[largest].tolist()]
    return dict(zip(groups, counts[largest].int().tolist(), strict=True))


def _counts_by_group(coalitions: Tensor, needed: float) -> dict[tuple[int, ...], int]:
    """All groups inside at least so many of the coalitions; every subset of each coalition is counted."""
    found: Counter[tuple[int, ...]] = Counter({(): len(coalitions)})
    for row in coalitions.tolist():
        members = _players(row)
        for size in range(1, len(members) + 1):
            found.update(combinations(members, size))
    return {group: count for group, count in found.items() if count >= needed}


def _players(mask: list[bool]) -> tuple[int, ...]:
    return tuple(player for player, there in enumerate(mask) if there)
