from __future__ import annotations

from pathlib import Path

import pytest

from diabat.circuits import from_csv, schedule

HEADER = "s,A_GHz,B_GHz"
ROWS = [f"{k / 20},{10 - k / 2},{k / 4}" for k in range(21)]


def write(folder: Path, *lines: str) -> Path:
    path = folder / "mine.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def replaced(row: int, text: str) -> list[str]:
    return [HEADER, *ROWS[:row], text, *ROWS[row + 1 :]]


def scaled(s: float = 1, a: float = 1, b: float = 1) -> list[str]:
    """The rows in other units."""
    return [f"{k / 20 * s},{(10 - k / 2) * a},{k / 4 * b}" for k in range(21)]


def test_round_trip_of_a_built_in_table(tmp_path: Path) -> None:
    table = schedule("Advantage_system6", "standard")
    columns = (table.s.tolist(), table.A_GHz.tolist(), table.B_GHz.tolist())
    rows = [f"Advantage_system6,standard,{s!r},{a!r},{b!r},0" for s, a, b in zip(*columns, strict=True)]
    loaded = from_csv(write(tmp_path, "# a comment", "solver,protocol,s,A_GHz,B_GHz,c", *rows))
    assert (loaded.name, loaded.protocol) == ("Advantage_system6", "standard")
    for key in ("s", "A_GHz", "B_GHz"):
        assert (getattr(loaded, key) == getattr(table, key)).all()


def test_plain_columns(tmp_path: Path) -> None:
    loaded = from_csv(write(tmp_path, HEADER, *ROWS))
    assert (loaded.name, loaded.protocol, loaded.source) == ("mine", "fast", "mine.csv")
    assert loaded.A(0.5) == pytest.approx(5.0)


def test_several_solvers_need_a_choice(tmp_path: Path) -> None:
    lines = [f"{solver},{row}" for solver in ("x", "y") for row in ROWS]
    path = write(tmp_path, f"solver,{HEADER}", *lines)
    assert from_csv(path, solver="y").name == "y"
    with pytest.raises(ValueError, match="expected one solver, got x, y; leave one in the file, or read"):
        from_csv(path)
    with pytest.raises(ValueError, match="expected solver 'z', got only x, y"):
        from_csv(path, solver="z")


def test_a_choice_needs_its_column(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER, *ROWS)
    with pytest.raises(ValueError, match="expected a column protocol to choose 'standard' from, got none"):
        from_csv(path, protocol="standard")
    with pytest.raises(ValueError, match="expected a column solver to choose 'x' from, got none"):
        from_csv(path, solver="x")


def test_files_as_spreadsheets_and_people_write_them(tmp_path: Path) -> None:
    """Byte order mark, CRLF, quotes, indented comments, empty lines, columns in another order."""
    rows = [",".join(f'"{cell}"' for cell in (b, s, a)) for s, a, b in (row.split(",") for row in ROWS)]
    text = "\r\n".join(["  # a comment", '"B_GHz","s","A_GHz"', *rows[:9], "", "# another", *rows[9:]])
    path = tmp_path / "excel.csv"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    loaded, plain = from_csv(path), from_csv(write(tmp_path, HEADER, *ROWS))
    for key in ("s", "A_GHz", "B_GHz"):
        assert (getattr(loaded, key) == getattr(plain, key)).all()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            [line.replace(",", ";").replace(".", ",") for line in (HEADER, *ROWS)],
            "without s, A_GHz, B_GHz; separate values with commas, and write decimals with points",
        ),
        (
            [line.replace(",", "\t") for line in (HEADER, *ROWS)],
            "without s, A_GHz, B_GHz; separate values with commas",
        ),
        ([f"{HEADER},A_GHz", *(f"{row},0" for row in ROWS)], "line 1: expected one column A_GHz, got 2"),
        ([], "expected a header line with s, A_GHz, B_GHz, got an empty file"),
        (["# nothing"], "got an empty file"),
        (["s,A_GHz", *ROWS], "line 1: expected the columns s, A_GHz, B_GHz, got a line of 2 without B_GHz"),
        (["hunter2"], r"got a line of 1 without s, A_GHz, B_GHz$"),  # another file, which may hold a secret
        (["x" * 131_073], "line 1: expected cells between commas, got field larger than field limit"),
        (
            [HEADER, "0,6,0", "0.1,6," + "1" * 131_073],
            "line 3: expected cells between commas, got field larger",
        ),
        ([HEADER, *ROWS[:5]], "expected at least 11 schedule points, got 5"),
        ([HEADER, *ROWS[:15]], "expected s to span 0 to 1, got 0 to 0.7"),
        (replaced(20, "1.0,0."), r"line 22: expected 3 values, got 2 \(truncated"),
        (
            replaced(3, "0.15,abc,1"),
            "line 5: expected a finite number that is not negative for A_GHz, got 'abc'",
        ),
        (replaced(3, "0.15,nan,1"), "line 5: .* for A_GHz, got 'nan'"),
        (replaced(3, "0.1_5,1,1"), "line 5: .* for s, got '0.1_5'"),
        (replaced(3, "0.15,1,inf"), "line 5: .* for B_GHz, got 'inf'"),
        (replaced(3, "0.15,1,-2"), "line 5: .* for B_GHz, got '-2'"),
        (
            replaced(3, "0.05,1,1"),
            "line 5: expected s above the 0.1 of the line before, got 0.05 .sort the rows",
        ),
        (
            [HEADER, ROWS[0], "5e-324,4.6,0.05", *ROWS[1:]],
            "line 3: expected s above the 0 of the line before, got .*e-324 .sort",
        ),
        ([HEADER, *reversed(ROWS)], "line 3: expected s above the 1 of the line before, got 0.95 .sort"),
        ([HEADER, *scaled(s=100)], "expected s to span 0 to 1, got 0 to 100; is s in percent"),
        ([HEADER, *scaled(s=5)], "expected s to span 0 to 1, got 0 to 5; is it a time"),
        (
            [HEADER, *scaled(a=1000)],
            r"expected A_GHz in GHz, got a maximum of 1e\+04; .* in MHz, Hz or rad/s",
        ),
        ([HEADER, *scaled(b=1e9)], r"expected B_GHz in GHz, got a maximum of 5e\+09; .* in MHz"),
        ([HEADER, *scaled(a=4e-6)], r"expected A_GHz in GHz, got a maximum of 4e-05; .* in THz, eV or joule"),
        ([HEADER, *scaled(b=0)], "expected B_GHz in GHz, got a maximum of 0; "),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=r"mine\.csv.*" + message):
        from_csv(write(tmp_path, *lines))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"none\.csv: no such file, expected a CSV with columns s, A_GHz, B_GHz"
    ):
        from_csv(tmp_path / "none.csv")


def test_folder_and_binary_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a readable CSV file"):
        from_csv(tmp_path)
    path = tmp_path / "table.csv"
    path.write_bytes(b"s,A_GHz,B_GHz\n\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"table\.csv: expected a CSV in UTF-8, got byte 14"):
        from_csv(path)
