"""The curves of cost against size: lines that end, peers that are missing, and labels in the figure."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.growth import figures, timing
from benchmarks.growth.timing import Call, Effort, Line, Section, measure


def call_of(seconds: float) -> Call:
    """A call that takes no time and returns what it is to take."""
    return lambda: seconds


SECTION = Section(
    "a title",
    "n",
    "per problem",
    (1, 10, 100, 1000),
    [
        Line("linear", lambda n: call_of(1e-3 * n)),
        Line("batch", lambda n: call_of(1e-3 * n), problems=lambda n: n),
        *(
            Line(name, lambda n: call_of(1e-3 * n * n), peer=True)
            for name in ("square", "as slow", "slow too")
        ),
        Line("short", lambda n: call_of(1e-3), last=10),
        Line("absent", lambda n: call_of(1e-3), module="no_such_peer", peer=True),
    ],
)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[timing.Row]:
    monkeypatch.setattr(timing, "cpu_seconds", lambda call, repetitions=1: call())
    return [row for found in measure(SECTION, Effort(3, 0.01, 2.0, 1, 1e9)) for row in found]


def test_a_line_ends_behind_the_first_call_beyond_the_limit(rows: list[timing.Row]) -> None:
    sizes = {line.name: [row["n"] for row in rows if row["line"] == line.name] for line in SECTION.lines}
    assert sizes["linear"] == sizes["batch"] == [1, 10, 100, 1000]
    assert sizes["square"] == [1, 10, 100]
    assert sizes["short"] == [1, 10]


def test_times_are_per_problem_with_their_growth(rows: list[timing.Row]) -> None:
    found = {(row["line"], row["n"]): row for row in rows}
    assert found["linear", 1000]["µs per problem"] == pytest.approx(1e6)
    assert found["batch", 1000]["µs per problem"] == pytest.approx(1e3)
    assert found["linear", 1]["to the size before"] == ""
    assert found["square", 100]["to the size before"] == "1e+02 for 10"
    assert found["square", 100]["of"] == "peer"


def test_a_peer_that_is_not_installed_is_named(rows: list[timing.Row]) -> None:
    assert SECTION.missing == ["absent"]
    assert all(row["line"] != "absent" for row in rows)


def test_a_module_of_a_package_that_is_not_installed_is_missing() -> None:
    assert not Line("", lambda n: call_of(0.0), "no_such_package.samplers").installed


def test_the_figure_labels_every_line_that_was_measured(
    rows: list[timing.Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, path: drawn.append((figure, path)))
    figures.draw("some", SECTION, rows, tmp_path)
    ((figure, path),) = drawn
    (axis,) = figure.axes
    assert path == tmp_path / "growth-some.png"
    labels = {text.get_text(): text.xyann[1] for text in axis.texts}
    assert set(labels) == {line.name for line in SECTION.lines} - {"absent"}
    heights = sorted(labels.values())
    assert heights[-1] <= 1
    assert all(above - below > 0.05 for below, above in pairwise(heights))
