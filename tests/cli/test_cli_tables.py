"""Tables at any width: numbers in one piece, columns that do not fit below, folded text."""

from __future__ import annotations

import pytest

from diabat.cli.output import print_table

MATRIX = [(f"spin{i}", *(f"{(-1) ** (i + j) * (i + j / 7):+.4f}" for j in range(12))) for i in range(3)]
HEADINGS = ("<s s'>", *map(str, range(12)))


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [20, 40, 60, 79])
def test_columns_that_do_not_fit_follow_below(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_table("Pair correlations", HEADINGS, MATRIX, right=HEADINGS[1:])
    lines = printed(capsys)
    assert max(map(len, lines)) <= width
    parts = [line for line in lines if line.startswith("<s s'>")]
    assert len(parts) == -(-12 // ((width - 6) // 8))  # as many as fit beside the labels
    assert " ".join(parts).replace("<s s'>", "").split() == [*HEADINGS[1:]]
    for label, *numbers in MATRIX:
        found = " ".join(line.removeprefix(label) for line in lines if line.startswith(label))
        assert found.split() == numbers


def test_text_is_folded_before_a_column_moves_down(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "31")
    row = ("a_name_that_is_long", "-9.98e-05", "together", "123.456")
    print_table("", ("name", "C", "attended", "µs"), [row], right=("C", "µs"))
    rows = printed(capsys)[4:-1]
    assert [word for word in rows[0].split() if word[-1].isdigit()] == ["-9.98e-05", "123.456"]
    assert "".join(line[:6].strip() for line in rows) == "a_name_that_is_long"


def test_a_number_wider_than_the_screen_is_not_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    print_table("", ("x", "value"), [("a", "1234567890.123456")], right=("value",))
    assert "1234567890.123456" in " ".join(printed(capsys))


def test_no_empty_headings_and_a_title_as_wide_as_the_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    print_table("A title wider than its [table]", ("", ""), [("loss", "1.4 nats")])
    assert [line.rstrip() for line in printed(capsys)] == [
        "A title wider than its [table]",
        "loss   1.4 nats",
        "",
    ]
