"""What all studies share: numbers, columns, cells, groups, and JSON without NaN."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any

import pytest
from rich.console import Console
from scipy.stats import binomtest

from diabat.report import MISSING, Column, Report, formatted, share


@dataclass(frozen=True)
class Speeds(Report):
    limit: float = 0.0

    title = "Speeds"
    labels = (Column("road", title="road"), Column("lane", title="lane"))
    columns = (
        Column("mean", "mean speed in km/h", "mean", lambda row: f"{row['mean']:.1f}±{row['error']}"),
        Column("error", "its standard error"),
        Column("count", "cars", "count"),
        Column("kind", title="kind"),
    )


ROWS: list[dict[str, Any]] = [
    {"road": "A[1]", "lane": 0.5, "mean": 50.0, "error": 1.25, "count": 3, "kind": "car"},
    {"road": "A[1]", "lane": 1.0, "mean": 40.0, "error": 2.5, "count": None, "kind": "bus"},
    {"road": "B", "lane": 1.0, "refused": "closed."},
]


def test_one_row_each_with_a_space_between_groups() -> None:
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(Speeds(ROWS).table())
    lines = console.export_text().splitlines()
    assert [bool(line.strip()) for line in lines[-4:]] == [True, True, False, True]
    assert [line.split() for line in lines[-4:]] == [
        ["A[1]", "0.5", "50.0±1.25", "3", "car"],
        ["A[1]", "1", "40.0±2.5", MISSING, "bus"],
        [],
        ["B", "1", "refused"],
    ]
    assert Speeds([]).table().row_count == 0


def test_text_is_aligned_to_the_left_and_numbers_to_the_right() -> None:
    table = Speeds(ROWS[:2]).table()
    assert [str(column.justify) for column in table.columns] == ["left", "right", "right", "right", "left"]


@pytest.mark.parametrize(("value", "form", "text"), [
    (0.1234, ".4f", "0.1234"), (0.01, ".4f", "0.0100"), (0.00999, ".4f", "0.00999"),
    (-0.0001, "+.4f", "-0.000100"), (0.0, ".4f", "0.0000"), (-0.004, "z.2f", "-0.00400"),
    (0.05, ".1f", "0.0500"), (1e-9, "g", "1e-09"), (0.1, "", "0.100"), (0.0999, "", "0.0999"),
    (5e-7, "", "5.00e-07"), (0.0, "", "0.000"), (-9.5, "", "-9.500"), (10.0, "", "10.00"),
    (123.45, "", "123.5"), (98765.4, "", "98765"), (3, "", "3"), ("SK", "", "SK"), (None, "", MISSING),
    (float("nan"), "", "nan"),
])  # fmt: skip
def test_numbers_have_three_digits_where_they_are_small(value: Any, form: str, text: str) -> None:
    assert formatted(value, form) == text


@pytest.mark.parametrize(("successes", "count", "text"), [
    (24, 24, "100 (86 to 100) %"), (0, 24, "0 (0 to 14) %"), (2, 16, "12 (3 to 36) %"),
    (8600, 10_000, "86.0 (85.3 to 86.7) %"), (1, 1, "100 (21 to 100) %"),
])  # fmt: skip
def test_a_share_has_its_wilson_interval(successes: int, count: int, text: str) -> None:
    assert share(successes / count, count) == text
    low, high = binomtest(successes, count).proportion_ci(0.95, method="wilson")
    decimals = text.split("(")[1].partition(" ")[0].partition(".")[2]
    assert f"({100 * low:.{len(decimals)}f} to {100 * high:.{len(decimals)}f}) %" in text


def test_json_has_facts_definitions_and_finite_rows() -> None:
    rows = [{"mean": float("nan"), "error": float("inf"), "count": 1, "parts": [1.0, float("-inf")]}]
    content = json.loads(Speeds(rows, limit=float("nan")).to_json())
    assert list(content) == ["limit", "definitions", "rows"]
    assert content["limit"] is None
    assert content["definitions"] == {
        "mean": "mean speed in km/h",
        "error": "its standard error",
        "count": "cars",
    }
    assert content["rows"] == [{"mean": None, "error": None, "count": 1, "parts": [1.0, None]}]
