"""Figures are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from diabat.plots import draw_line, legend_below, new_figure, save_figure


def test_a_figure_that_cannot_be_drawn_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    path.write_text("old")
    figure = new_figure(2, 2)
    figure.subplots().set_title("$\\nothing$")  # which mathtext refuses when it draws
    with pytest.raises(ValueError, match="nothing"):
        save_figure(figure, path)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.svg", "old")]


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target.png", tmp_path / "link.png"
    target.write_text("precious")
    link.symlink_to(target)
    assert save_figure(new_figure(1, 1), link) == link
    assert not link.is_symlink()
    assert link.read_bytes().startswith(b"\x89PNG")
    assert target.read_text() == "precious"


def test_the_legend_has_every_label_once() -> None:
    figure = new_figure(4, 2)
    axes = figure.subplots(1, 2)
    for axis in axes:
        draw_line(axis, [0, 1], [0, 1], 0, label="same")
    draw_line(axes[1], [0, 1], [1, 0], 8, label="other")
    legend_below(figure, axes, 5)
    assert [entry.get_text() for entry in figure.legends[0].get_texts()] == ["same", "other"]
    empty = new_figure(1, 1)
    legend_below(empty, [empty.subplots()], 5)
    assert not empty.legends
