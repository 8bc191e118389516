"""The table, and what its checks share."""

from __future__ import annotations

import functools
import re
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


def says(check: Check) -> Check:
    """Add rows of the table, which are the docstring of a check: ``page: a sentence of it, over any lines``."""
    once = functools.cache(check)
    parts = re.split(r"^\s*([a-z-]+): ", check.__doc__ or "", flags=re.MULTILINE)
    assert len(parts) > 1, f"{check.__name__} has no sentence"
    ROWS.extend(
        (page, " ".join(text.split()), once) for page, text in zip(parts[1::2], parts[2::2], strict=True)
    )
    return once


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
