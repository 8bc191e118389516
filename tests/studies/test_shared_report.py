"""What all studies share: columns, cells, groups, and JSON without NaN."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any

import pytest
from rich.console import Console

from diabat.studies.report import MISSING, Column, Report


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
