"""Dividends against their definition, closed forms and shapiq; their noise against what is known of it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from diabat.attention import games
from diabat.attention.heads import Dividends, small_coalitions

F64 = torch.float64


def tables(samples: int, n: int, seed: int = 0) -> Tensor:
    return torch.randn(samples, 1 << n, generator=torch.Generator().manual_seed(seed), dtype=F64)


def codes(masks: Tensor) -> Tensor:
    return (masks.long() << torch.arange(masks.shape[-1])).sum(-1)


def naive(v: Tensor, members: tuple[int, ...]) -> float:
    """Σ_{T ⊆ S} (-1)^{|S|-|T|} v(T)."""
    total = 0.0
    for size in range(len(members) + 1):
        for part in itertools.combinations(members, size):
            total += (-1) ** (len(members) - size) * float(v[sum(1 << i for i in part)])
    return total


def test_dividends_are_the_alternating_sums() -> None:
    v = tables(4, 6)
    found = Dividends.of_tables(v)
    for code, mask in enumerate(found.coalitions.tolist()):
        members = tuple(i for i, there in enumerate(mask) if there)
        expected = naive(v.mean(0), members) if members else 0
        assert float(found.value[code]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("n", "size"), [(1, 1), (5, 1), (7, 3), (5, 5), (12, 4)])
def test_small_coalitions_are_those_of_the_full_table(n: int, size: int) -> None:
    v = tables(2, n)
    full = Dividends.of_tables(v)
    masks = small_coalitions(n, size)
    assert len(masks) == sum(math.comb(n, k) for k in range(size + 1))
    assert len(torch.unique(codes(masks))) == len(masks)
    assert int(masks.sum(-1).max()) == size
    low = Dividends.of_small(v[:, codes(masks)], n, size)
    torch.testing.assert_close(low.by_sample, full.by_sample[:, codes(masks)], rtol=0, atol=1e-12)
    torch.testing.assert_close(low.standard_error, full.standard_error[codes(masks)])


def test_sums_by_size() -> None:
    v = tables(5, 6)
    found = Dividends.of_tables(v)
    sums, errors = found.size_sums()
    assert sums.shape == (7,)
    assert float(sums.sum()) == pytest.approx(float((v[:, -1] - v[:, 0]).mean()), abs=1e-12)
    pairs = found.by_sample[:, found.sizes == 2].sum(1)
    assert float(sums[2]) == pytest.approx(float(pairs.mean()), abs=1e-12)
    assert float(errors[2]) == pytest.approx(float(pairs.std() / 5**0.5), abs=1e-12)
    assert bool(Dividends.of_tables(tables(1, 3)).standard_error.isinf().all())


def test_noise_grows_with_the_root_of_two_to_the_size() -> None:
    """Independent noise of size 1 in v becomes noise of 2^{|S|/2} in w(S), 2,000 samples: ± 10 % is 6 σ."""
    n, count = 6, 2000
    found = Dividends.of_tables(tables(count, n))
    expected = 2 ** (found.sizes / 2) / count**0.5
    ratio = found.standard_error[1:] / expected[1:]
    assert float((ratio - 1).abs().max()) < 0.1


def test_frequency_of_the_largest_dividend() -> None:
    """Of 9 samples 6 say {0}, 3 say {1, 2}: the mean says {0} unless more than half of a resample differ.

    That is P(Bin(9, 1/3) > 4) = 0.1448; 20,000 resamples, ± 0.01 is 4 σ.
    """
    by_sample = torch.zeros(9, 8, dtype=F64)
    by_sample[:6, 1] = 1
    by_sample[6:, 6] = 1
    found = Dividends(games.all_coalitions(3), by_sample)
    frequency = found.selection_frequency(resamples=20_000, seed=1)
    expected = sum(math.comb(9, k) * (1 / 3) ** k * (2 / 3) ** (9 - k) for k in range(5, 10))
    assert float(frequency[6]) == pytest.approx(expected, abs=0.01)
    assert float(frequency.sum()) == pytest.approx(1)
    assert torch.equal(frequency, found.selection_frequency(resamples=20_000, seed=1))
    assert float(found.selection_frequency(min_size=2, resamples=50)[1]) == 0
    assert float(frequency[0]) == 0
    assert [found.largest(), found.largest(2)] == [1, 6]
