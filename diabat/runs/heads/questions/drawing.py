"""Draw some of many, without replacement, by a seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

T = TypeVar("T")


def order(length: int, count: int | None, seed: int) -> list[int]:
    """Positions in the order in which they are taken: as they are if all are, else shuffled by the seed."""
    if count is None or count >= length:
        return list(range(length))
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed)).tolist()


def draw(items: Sequence[T], count: int | None, seed: int) -> list[T]:
    """Return ``count`` of the items, drawn without replacement; all of them, in their order, if there are no more."""
    return [items[position] for position in order(len(items), count, seed)[:count]]
