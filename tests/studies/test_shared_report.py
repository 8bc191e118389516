"""What all studies share: columns, cells, groups, and JSON without NaN."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any

import pytest
from rich.console import Console
from scipy.stats import binomtest

from diabat.studies.report import MISSING, Column, Report, formatted, share


@dataclass(frozen=True)
class Speeds(Report):
    limit: float = 0.0

    title = "Speeds"
    labels = (Column("road", title="road", narrow=True),)
    columns = (
        Column("mean", "mean speed in km/h", "mean/max\nkm/h", ".1f", "mean", beside="max", pattern="{}/{}"),
        Column("max", "largest of the same"),
        Column("count", None, "count", "d", show=lambda row: f"#{row['count']}"),
        Column("late", "minutes lost", "late", ".2f", True, beside="floor", before="early"),
    )
    groups = ("road",)


def text(report: Report, *, narrow: bool = False) -> str:
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(report.table(narrow=narrow))
    return console.export_text()


ROWS: list[dict[str, Any]] = [
    {"road": "A[1]", "mean": 50.0, "max": 71.25, "count": 3, "late": 1.0, "floor": 0.5},
    {"road": "A[1]", "mean": 40.0, "max": None, "count": 2, "late": None},
    {"road": "B", "refused": "closed."},
]


def test_cells_show_both_values_and_a_narrow_table_the_first() -> None:
    lines = [line.split() for line in text(Speeds(ROWS)).splitlines() if line.strip()]
    assert lines[0] == ["Speeds"]
    assert lines[-3:] == [
        ["A[1]", "50.0/71.2", "#3", "1.00", "(0.50)"],
        ["A[1]", "40.0", "#2", MISSING],
        ["B", "refused"],
    ]
    narrow = [line.split() for line in text(Speeds(ROWS), narrow=True).splitlines() if line.strip()]
    assert narrow[1] == ["road", "mean", "late"]
    assert narrow[-3:] == [["A[1]", "50.0", "1.00"], ["A[1]", "40.0", MISSING], ["B", "refused"]]


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (0.1234, ".4f", "0.1234"),
        (0.01, ".4f", "0.0100"),
        (0.00999, ".4f", "0.00999"),
        (-0.0001, "+.4f", "-0.000100"),
        (5e-7, ".4f", "5.00e-07"),
        (0.0, ".4f", "0.0000"),
        (0.94, "z.2f", "0.94"),
        (-0.004, "z.2f", "-0.00400"),
        (0.05, ".1f", "0.0500"),
        (3, "d", "3"),
        ("SK", "", "SK"),
        (1e-9, "g", "1e-09"),
        (float("nan"), ".3f", "nan"),
    ],
)
def test_small_values_have_three_digits(value: Any, form: str, text: str) -> None:
    assert formatted(value, form) == text


@pytest.mark.parametrize(
    ("successes", "count", "text"),
    [
        (24, 24, "100 (86 to 100) %"),
        (0, 24, "0 (0 to 14) %"),
        (2, 16, "12 (3 to 36) %"),
        (8600, 10_000, "86.0 (85.3 to 86.7) %"),
        (1, 1, "100 (21 to 100) %"),
    ],
)
def test_a_share_has_its_wilson_interval(successes: int, count: int, text: str) -> None:
    assert share(successes / count, count) == text
    low, high = binomtest(successes, count).proportion_ci(0.95, method="wilson")
    decimals = text.split("(")[1].partition(" ")[0].partition(".")[2]
    assert f"({100 * low:.{len(decimals)}f} to {100 * high:.{len(decimals)}f}) %" in text


def test_groups_are_separated_by_a_space() -> None:
    lines = text(Speeds(ROWS)).splitlines()
    assert [bool(line.strip()) for line in lines[-4:]] == [True, True, False, True]


def test_an_arrow_and_the_heading_show_the_value_before() -> None:
    assert "base→late" not in text(Speeds(ROWS))
    found = text(Speeds([{**ROWS[0], "early": 2.0}]))
    assert "base→late" in found
    assert "2.00→1.00 (0.50)" in found


def test_json_has_facts_definitions_and_finite_rows() -> None:
    rows = [{"mean": float("nan"), "max": float("inf"), "count": 1, "parts": [1.0, float("-inf")]}]
    content = json.loads(Speeds(rows, limit=float("nan")).to_json())
    assert list(content) == ["limit", "definitions", "rows"]
    assert content["limit"] is None
    assert content["definitions"] == {
        "mean": "mean speed in km/h",
        "max": "largest of the same",
        "late": "minutes lost",
    }
    assert content["rows"] == [{"mean": None, "max": None, "count": 1, "parts": [1.0, None]}]


@pytest.mark.parametrize("narrow", [False, True])
def test_no_rows_are_a_table_without_rows(narrow: bool) -> None:
    assert Speeds().table(narrow=narrow).row_count == 0
