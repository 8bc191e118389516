"""Sums of dividends by size, and how many are significant."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from diabat.attention.games.tables import inverse_mobius
from diabat.heads import Dividends
from experiments.heads.summaries import significant, size_sums, summary

F64 = torch.float64


def tables(samples: int, n: int, seed: int = 0) -> Tensor:
    return torch.randn(samples, 1 << n, generator=torch.Generator().manual_seed(seed), dtype=F64)


def noisy(n: int, planted: dict[int, float], samples: int = 40, seed: int = 0, noise: float = 0.1) -> Tensor:
    """Dividends by sample with some that are not zero."""
    w = noise * torch.randn(samples, 1 << n, generator=torch.Generator().manual_seed(seed), dtype=F64)
    for at, value in planted.items():
        w[:, at] += value
    return w


def test_sums_by_size() -> None:
    v = tables(5, 6)
    found = Dividends.of(v, 6)
    sums, errors = size_sums(found)
    assert sums.shape == (7,)
    assert float(sums.sum()) == pytest.approx(float((v[:, -1] - v[:, 0]).mean()), abs=1e-12)
    pairs = found.by_sample[:, found.sizes == 2].sum(1)
    assert float(sums[2]) == pytest.approx(float(pairs.mean()), abs=1e-12)
    assert float(errors[2]) == pytest.approx(float(pairs.std() / 5**0.5), abs=1e-12)
    assert bool(Dividends.of(tables(1, 3), 3).standard_error.isinf().all())


def test_planted_dividends_are_counted() -> None:
    dividends = noisy(4, {0: 3.0, 0b0101: 1.0, 0b1000: 0.5, 0b0011: -0.7})
    row = summary(Dividends.of(inverse_mobius(dividends), 4), 3.0, 5.0)
    assert (row["w > 0"], row["w < 0"]) == (2, 1)
    assert row["Σw, |S| = 1"] + row["Σw, |S| = 2"] + row["Σw, |S| > 2"] == pytest.approx(2)


def test_noise_is_seldom_significant() -> None:
    """alpha: under pure noise Benjamini-Hochberg finds anything in at most 5 % of games; N = 400 games.

    More than 29 in place of 20 has probability 0.02 at exactly 5 %.
    """
    found = sum(
        sum(significant(Dividends.of(inverse_mobius(noisy(4, {}, samples=20, seed=seed)), 4))) > 0
        for seed in range(400)
    )
    assert found <= 29


@pytest.mark.parametrize(("t", "found"), [(4.2, (0, 0)), (4.4, (1, 0)), (-4.4, (0, 1))])
def test_three_samples_have_two_degrees_of_freedom(t: float, found: tuple[int, int]) -> None:
    """Of which 4.303 is the quantile at 97.5 %; with three of them it were 3.182."""
    single = t / 3**0.5 + torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    assert significant(Dividends.of(torch.stack((0 * single, single), 1), 1)) == found


def test_rounding_is_not_significant() -> None:
    """The same value of all coalitions but one: dividends of the others are 0 up to rounding."""
    values = torch.full((10, 16), 0.1, dtype=torch.float64) * torch.arange(1, 11)[:, None]
    values[:, 1::2] += 1 / 3
    assert significant(Dividends.of(values, 4)) == (1, 0)
