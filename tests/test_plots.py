"""Figures are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from diabat.plots import Line, Panel, draw_line, draw_panel, legend_below, new_figure, save_figure


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


def test_nine_lines_and_nine_bars_have_nine_looks() -> None:
    """In colour, and in grey print with marker and dashes or hatch; a bar has the colour of its line."""
    lines, bars = new_figure(4, 2).subplots(1, 2)
    draw_panel(lines, Panel([Line([0, 1], [look, look], str(look), look) for look in range(9)]))
    draw_panel(bars, Panel(bars={str(look): 1.0 for look in range(9)}))
    drawn = [(line.get_color(), line.get_marker(), line.get_linestyle()) for line, _, _ in lines.containers]
    filled = [(bar.get_facecolor(), bar.get_hatch()) for bar in bars.patches]
    assert len(set(drawn)) == len({look[1:] for look in drawn}) == len(set(filled)) == 9
    assert [to_rgba(colour) for colour, _, _ in drawn] == [colour for colour, _ in filled]


def test_what_is_below_the_least_is_drawn_there_and_said_to_be_below() -> None:
    axis = new_figure(2, 2).subplots()
    heights = {"exact": 0.0, "near": 1e-6, "far": 0.25, "none": None}
    draw_panel(axis, Panel([Line([0, 1], [0.0, 0.5])], heights, 1e-6, {"yscale": "log"}))
    assert [text.get_text() for text in axis.texts] == ["< 1e-06", "1e-06", "0.25", ""]
    tops = [bar.get_height() for bar in axis.patches[:3] if isinstance(bar, Rectangle)]
    assert tops == [1e-6, 1e-6, 0.25]
    assert np.asarray(axis.lines[0].get_ydata()).tolist() == [1e-6, 0.5]
