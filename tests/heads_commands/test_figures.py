"""Figures of an analysis: what the lines and the cells are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from diabat.checks import ArgumentError
from diabat.studies.heads import curves, heat_maps, plot_dividends, plot_heat_maps
from diabat.studies.heads.curves import expected_noise

from .test_game_facts import facts, noisy

GAMES = [facts(noisy(4, {5: 1.0, 8: -0.5}, seed=layer), layer=layer) for layer in range(5)]
CALIBRATED = [facts(noisy(4, {5: 0.4}, seed=9 + layer), layer=layer) for layer in range(5)]
LARGE = [facts(noisy(10, {5: 1.0}, seed=layer, samples=12), layer=layer) for layer in range(2)]
SINGLE = [facts(noisy(3, {5: 1.0}, samples=1))]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Figures that are drawn while a test runs; they are written as well."""
    figures: list[Any] = []
    for module in (curves, heat_maps):
        before = module.save_figure

        def save(figure: Any, path: Path, write: Any = before) -> Path:
            figures.append(figure)
            return write(figure, path)

        monkeypatch.setattr(module, "save_figure", save)
    return figures


def panels(figure: Any) -> list[Any]:
    return [axis for axis in figure.axes if axis.get_visible()]


def test_dividends_are_sorted_in_one_panel_per_game(drawn: list[Any], tmp_path: Path) -> None:
    path = plot_dividends(GAMES, tmp_path / "dividends.png", title="tiny")
    assert path.read_bytes().startswith(b"\x89PNG")
    axes = panels(drawn[0])
    assert len(axes) == len(GAMES)
    for axis, game in zip(axes, GAMES, strict=True):
        lines = {line.get_label(): line for line in axis.lines}
        assert list(lines["dividend"].get_ydata()) == sorted(game.dividends[1:], reverse=True)
        assert "largest {0, 2} (100 %)" in axis.get_title()
        assert "expected if all are 0" in lines
        assert len(axis.collections) == 1  # the band


def test_many_coalitions_keep_both_ends(drawn: list[Any], tmp_path: Path) -> None:
    plot_dividends(LARGE, tmp_path / "dividends.svg")
    for axis, game in zip(panels(drawn[0]), LARGE, strict=True):
        line = {line.get_label(): line for line in axis.lines}["dividend"]
        y = list(line.get_ydata())
        assert (y[0], y[-1]) == (max(game.dividends[1:]), min(game.dividends[1:]))


def test_one_sample_has_no_band_and_no_expected_noise(drawn: list[Any], tmp_path: Path) -> None:
    plot_dividends(SINGLE, tmp_path / "a.png")
    plot_heat_maps([("one", SINGLE)], tmp_path / "b.png")
    (axis,) = panels(drawn[0])
    assert "expected if all are 0" not in {line.get_label() for line in axis.lines}
    assert not axis.collections


def test_the_expected_noise_is_that_of_simulated_dividends() -> None:
    """Against the mean of sorted normal numbers; N = 4,000 draws, errors of 1 % of the largest."""
    errors = torch.linspace(0.1, 2.0, 60, dtype=torch.float64)
    draws = errors * torch.randn(4000, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    simulated = draws.sort(-1, descending=True).values.mean(0)
    expected = expected_noise(errors)
    assert torch.equal(expected, expected.sort(descending=True).values)
    # Quantiles are not means of order statistics; the two differ most at the ends.
    assert float((expected - simulated).abs().max()) < 0.12 * float(simulated[0])
    assert float((expected - simulated)[5:-5].abs().max()) < 0.02 * float(simulated[0])


def test_a_few_large_errors_are_not_counted_twice() -> None:
    """1,000 small errors and one large: positions are thinned, their weights are not."""
    errors = torch.cat((torch.full((3000,), 0.1), torch.tensor([10.0]))).double()
    expected = expected_noise(errors)
    assert float(expected[5]) < 0.4
    assert int((expected.abs() > 1).sum()) <= 2


def test_heat_maps_before_and_after_share_their_colours(drawn: list[Any], tmp_path: Path) -> None:
    plot_heat_maps([("before", GAMES), ("after", CALIBRATED)], tmp_path / "maps.png")
    images = [axis.images[0] for axis in drawn[0].axes if axis.images]
    assert len(images) == 4
    left = images[0::2]
    assert left[0].norm.vmax == left[1].norm.vmax
    order = torch.stack([GAMES[0].coalitions.sum(-1)[1:]]).argsort(stable=True)[0] + 1
    for image, games in zip(left, (GAMES, CALIBRATED), strict=True):
        expected = torch.tensor([game.dividends for game in games], dtype=torch.float64)[:, order]
        assert torch.equal(torch.from_numpy(image.get_array().data), expected)
    sums = torch.tensor([game.order_sums[1:] for game in GAMES])
    assert torch.allclose(torch.from_numpy(images[1].get_array().data), sums)


def test_more_coalitions_than_dots_are_shown_by_size(drawn: list[Any], tmp_path: Path) -> None:
    plot_heat_maps([("large", LARGE)], tmp_path / "maps.pdf")
    cells = drawn[0].axes[0].images[0].get_array()
    assert cells.shape == (2, 10)
    sizes = LARGE[0].coalitions.sum(-1)
    largest = torch.tensor(LARGE[0].dividends)[sizes == 2].abs().max()
    assert abs(cells[0, 1]) == pytest.approx(float(largest))


def test_games_of_other_players_are_refused(tmp_path: Path) -> None:
    other = [facts(noisy(4, {}), layer=layer) for layer in range(4)]
    with pytest.raises(
        ArgumentError, match="analyses: expected the same players in all of them, got others in 'b'"
    ):
        plot_heat_maps([("a", GAMES), ("b", other)], tmp_path / "x.png")
    with pytest.raises(ArgumentError, match="analyses: expected games of one number of players"):
        plot_heat_maps([("a", [*GAMES, *LARGE])], tmp_path / "x.png")
    with pytest.raises(ArgumentError, match="games: expected at least one"):
        plot_dividends([], tmp_path / "x.png")
    assert not list(tmp_path.iterdir())
