"""Tables of commands: folded to the width of the screen, or one line a row."""

from __future__ import annotations

import pytest

from diabat.cli.output import print_table


def test_a_narrow_table_loses_no_character(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "31")
    print_table("", ("name", "C", "attended", "µs"), [("a_name_that_is_long", "-9.98e-05", "[x]", "12.5")])
    found = "".join(capsys.readouterr().out.split())
    assert sorted(found.replace("─", "")) == sorted("nameCattendedµsa_name_that_is_long-9.98e-05[x]12.5")


def test_a_long_table_is_one_line_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("Marginals", ("spin", "P"), [(str(i), "0.5") for i in range(1001)])
    lines = capsys.readouterr().out.splitlines()
    assert (lines[:2], lines[-2], len(lines)) == (["Marginals", "spin\tP"], "1000\t0.5", 1004)


def test_no_empty_headings_and_a_title_as_wide_as_the_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    print_table("A title wider than its [table]", ("", ""), [("loss", "1.4 nats")])
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "A title wider than its [table]",
        "loss   1.4 nats",
        "",
    ]
