"""Equality of one computation in two orders of float arithmetic, with a bound that holds on every processor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch


def assert_same_sums(found: Any, expected: Any, *, terms: int = 64) -> None:
    """Entries of tensors, or of lists and dictionaries of tensors, differ by the rounding of float32 at most.

    A sum of ``terms`` terms is rounded as often, each time by a unit of the last place of the largest one.  The size of
    the terms is that of the largest entry of all tensors: those of a step are sums of products of each other.
    """
    largest = max(float(one.detach().abs().max()) for one in _tensors(expected))
    bound = terms * torch.finfo(torch.float32).eps * largest
    torch.testing.assert_close(found, expected, rtol=0, atol=bound)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
        return
    for one in value.values() if isinstance(value, Mapping) else value:
        yield from _tensors(one)
