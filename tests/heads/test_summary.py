"""Dividends and their noise; analysed games, their table and their figure."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from diabat.attention import games
from diabat.attention.games.tables import inverse_mobius
from diabat.heads import Dividends, max_dividend, small_coalitions
from diabat.heads.commands.analysis import About, AnalysedGame, Analysis, AnalysisOptions, needed_coalitions
from diabat.heads.commands.report import (
    HeadsReport,
    expected_noise,
    plot_dividends,
    shown_heads,
    shown_players,
)


def codes(masks: Tensor) -> Tensor:
    return (masks.long() << torch.arange(masks.shape[-1])).sum(-1)


def analysed(dividends: Tensor, max_size: int | None = None, layer: int = 0) -> AnalysedGame:
    """A game with these dividends by sample, [samples, 2^n]."""
    n = (dividends.shape[1] - 1).bit_length()
    values = inverse_mobius(dividends)[:, codes(needed_coalitions(n, max_size))]
    options = AnalysisOptions(max_size=max_size, resamples=50)
    return AnalysedGame(tuple(((layer, head),) for head in range(n)), values, options)


def report(*found: AnalysedGame) -> tuple[Analysis, HeadsReport]:
    players = tuple(game.players for game in found)
    about = About("m", {}, "q", "log_odds", found[0].options, {}, players)
    analysis = Analysis(about, found, set())
    return analysis, HeadsReport.of(analysis)


def noisy(n: int, planted: dict[int, float], samples: int = 40, seed: int = 0, noise: float = 0.1) -> Tensor:
    """Dividends by sample with some that are not zero."""
    generator = torch.Generator().manual_seed(seed)
    w = noise * torch.randn(samples, 1 << n, generator=generator, dtype=torch.float64)
    for at, value in planted.items():
        w[:, at] += value
    return w


def test_planted_dividends_are_found() -> None:
    dividends = noisy(4, {0: 3.0, 0b0101: 1.0, 0b1000: 0.5, 0b0011: -0.7})
    game, table = analysed(dividends), inverse_mobius(dividends)
    assert max_dividend(game.dividends) == (0, 2)
    assert game.frequency(0b0101) == game.frequency(0b0101, 2) == 1
    assert game.frequency(0b1000) == 0
    assert game.ends["v_empty"] == pytest.approx(float(table[:, 0].mean()))
    assert game.ends["v_empty_error"] == pytest.approx(float(table[:, 0].std() / 40**0.5))
    assert game.ends["v_full"] == pytest.approx(float(table[:, -1].mean()))
    assert game.table is not None
    torch.testing.assert_close(game.table, table.mean(0))
    (row,) = report(game)[1].rows
    assert (row["coalition"], row["heads"], row["layers"], row["players"]) == ("{0, 2}", "0, 2", "0", 4)
    assert row["dividend"] == pytest.approx(float(dividends[:, 5].mean()))
    assert row["dividend_error"] == pytest.approx(float(dividends[:, 5].std() / 40**0.5))
    assert set(row) == set(HeadsReport.definitions())


def test_the_same_up_to_a_size() -> None:
    dividends = noisy(5, {0b00110: 1.0})
    whole, part = analysed(dividends), analysed(dividends, max_size=2)
    assert len(needed_coalitions(5, 2)) == 1 + 5 + 10 + 1
    assert len(needed_coalitions(5, 5)) == len(needed_coalitions(5, None)) == 32
    assert max_dividend(part.dividends) == max_dividend(whole.dividends) == (1, 2)
    assert part.ends == pytest.approx(whole.ends)
    assert part.table is None


def test_few_samples_have_no_frequency(tmp_path: Path, drawn: list[Any]) -> None:
    """One sample says 1.00 whatever it is; a dash and a sentence stand in its place.  Nor has one sample errors."""
    one, few, enough = (analysed(noisy(3, {5: 1.0}, samples=samples)) for samples in (1, 7, 8))
    assert one.ends["v_full_error"] is one.as_dict()["standard_errors"][3] is None
    assert (few.frequency(5), enough.frequency(5)) == (None, 1)
    analysis, both = report(few, enough, one)
    cell = next(column for column in HeadsReport.columns if column.key == "selection_frequency")
    assert [cell.cell(row) for row in both.rows[:2]] == ["–", "1.00"]
    sentence = (
        "– With fewer than 8 questions, or a single candidate, a bootstrap frequency looks certain and is not; "
        "use more questions, or more players."
    )
    assert both.summary() == sentence
    assert report(enough)[1].summary() == ""
    assert cell.cell(report(analysed(noisy(4, {}, samples=8)))[1].rows[0]).endswith("?")
    plot_dividends(analysis, both, tmp_path / "w.svg")
    titles = ["layer 0: largest {0, 2}", "layer 0: largest {0, 2} (100 %)"]
    assert [axis.get_title() for axis in drawn[0].axes[:2]] == titles
    assert [line.get_label() for line in drawn[0].axes[2].lines[1:]] == ["dividend"]  # no errors, no noise


def test_coalitions_and_heads_in_few_characters() -> None:
    assert shown_players(()) == "∅"
    assert shown_players((0, 1, 4, 5, 6)) == "{0, 1, 4-6}"
    assert shown_heads([(3, 0), (3, 1), (3, 2), (3, 9)]) == "0-2, 9"
    assert shown_heads([(3, 0), (5, 9), (3, 1)]) == "3: 0, 1; 5: 9"


def test_the_noise_that_is_expected() -> None:
    """Quantiles of normal variables; 64 draws of 255, ± .2 is 4 standard errors of the extremes."""
    count = 255
    noise = expected_noise(torch.full((count,), 2.0, dtype=torch.float64))
    shares = 1 - (torch.arange(count, dtype=torch.float64) + 0.5) / count
    torch.testing.assert_close(noise / 2, torch.special.ndtri(shares), rtol=0, atol=0.2)
    assert bool((noise.diff() <= 0).all())


def test_the_figure_has_a_panel_per_game(tmp_path: Path, drawn: list[Any]) -> None:
    found = [analysed(noisy(4, {5: 1.0, 8: -0.5}, seed=layer), layer=layer) for layer in range(5)]
    plot_dividends(*report(*found), tmp_path / "w.svg")
    panels = [axis for axis in drawn[0].axes if axis.get_visible()]
    assert [axis.get_title() for axis in panels] == [f"layer {k}: largest {{0, 2}} (100 %)" for k in range(5)]
    line = next(one for one in panels[1].lines if one.get_label() == "dividend")
    assert line.get_ydata().tolist() == sorted(found[1].dividends.value[1:].tolist(), reverse=True)


F64 = torch.float64


def tables(samples: int, n: int, seed: int = 0) -> Tensor:
    return torch.randn(samples, 1 << n, generator=torch.Generator().manual_seed(seed), dtype=F64)


def naive(v: Tensor, members: tuple[int, ...]) -> float:
    """Σ_{T ⊆ S} (-1)^{|S|-|T|} v(T)."""
    total = 0.0
    for size in range(len(members) + 1):
        for part in itertools.combinations(members, size):
            total += (-1) ** (len(members) - size) * float(v[sum(1 << i for i in part)])
    return total


def test_dividends_are_the_alternating_sums() -> None:
    v = tables(4, 6)
    found = Dividends.of(v, 6)
    for code, mask in enumerate(found.coalitions.tolist()):
        members = tuple(i for i, there in enumerate(mask) if there)
        expected = naive(v.mean(0), members) if members else 0
        assert float(found.value[code]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("n", "size"), [(1, 1), (5, 1), (7, 3), (5, 5), (12, 4)])
def test_small_coalitions_are_those_of_the_full_table(n: int, size: int) -> None:
    v = tables(2, n)
    full = Dividends.of(v, n)
    masks = small_coalitions(n, size)
    assert len(masks) == sum(math.comb(n, k) for k in range(size + 1))
    assert len(torch.unique(codes(masks))) == len(masks)
    assert int(masks.sum(-1).max()) == size
    low = Dividends.of(v[:, codes(masks)], n, size)
    torch.testing.assert_close(low.by_sample, full.by_sample[:, codes(masks)], rtol=0, atol=1e-12)
    torch.testing.assert_close(low.standard_error, full.standard_error[codes(masks)])


def test_noise_grows_with_the_root_of_two_to_the_size() -> None:
    """Independent noise of size 1 in v becomes noise of 2^{|S|/2} in w(S), 2,000 samples: ± 10 % is 6 σ."""
    n, count = 6, 2000
    found = Dividends.of(tables(count, n), n)
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
