"""The table, and what its checks share."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from diabat import Ising, sampler
from diabat.circuits import OutOfRangeWarning
from diabat.ising import pack_couplings

DOCS = Path(__file__).parent.parent.parent / "docs"
F64 = torch.float64
ANALYTIC = ("exact", "banded", "mean_field")
Check = Callable[[], object]
ROWS: list[tuple[str, str, Check]] = []


def says(page: str, *sentences: str) -> Callable[[Check], Check]:
    """Add rows of the table: a page, one of its sentences, and its check."""

    def add(check: Check) -> Check:
        once = functools.cache(check)
        ROWS.extend((page, sentence, once) for sentence in sentences)
        return once

    return add


def on(page: str) -> str:
    """A page as one line."""
    return " ".join((DOCS / f"{page}.md").read_text(encoding="utf-8").split())


@contextmanager
def refused(message: str, kind: type[Exception] = ValueError) -> Iterator[None]:
    """One plain sentence: none of torch's own errors."""
    with pytest.raises(kind, match=message) as caught:
        yield
    assert type(caught.value).__module__.startswith("diabat.")


def drawn(*shape: int, n: int = 6, J: float = 0.3, dtype: torch.dtype = torch.float32) -> Ising:
    """Problems of n spins with one J."""
    return Ising(
        torch.randn(*shape, n, dtype=dtype), pack_couplings(J * torch.randn(n * (n - 1) // 2, dtype=dtype), n)
    )


def all_to_all(n: int, J: float) -> Tensor:
    return J * (torch.ones(n, n) - torch.eye(n))


def magnetization(fields: list[float], **options: Any) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutOfRangeWarning)
        m = sampler("dqa", **options).moments(Ising(torch.tensor(fields, dtype=F64)[:, None])).magnetization
    return m[:, 0]
