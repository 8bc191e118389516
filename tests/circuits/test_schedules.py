"""Schedules of anneals: those that are shipped, ramps, and CSV files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diabat.circuits import available_schedules, from_csv, linear_ramp, schedule, trotter_plan

# A(0), B(0), B(1) in GHz, and the s at which A = B, of the fast tables.
FAST = {
    "Advantage2_system1": (11.3148, 0.5582, 14.7338, 0.387),
    "Advantage2_system2": (10.0000, 0.4118, 13.7648, 0.346),
    "Advantage2_system4": (10.0000, 0.5447, 13.9139, 0.380),
    "Advantage_system4": (9.8394, 0.2592, 8.4771, 0.364),
    "Advantage_system6": (9.6269, 0.2317, 7.5662, 0.366),
}


def test_schedules_are_those_of_five_solvers_and_cannot_be_changed() -> None:
    assert set(available_schedules()) == set(FAST)
    table = schedule("Advantage2_system1")
    with pytest.raises(ValueError, match="read-only"):
        table.A_GHz[0] = 0.0
    assert linear_ramp(1e-6, 1e-6).A(0.0) == 1e-6


@pytest.mark.parametrize("name", FAST)
def test_built_in_tables_have_the_published_figures(name: str) -> None:
    table = schedule(name)
    a0, b0, b1, crossing = FAST[name]
    assert table.A(0.0) == pytest.approx(a0, abs=5e-5)
    assert table.B([0.0, 1.0]) == pytest.approx([b0, b1], abs=5e-5)
    assert 0 < table.A(1.0) < 1e-6
    s = np.linspace(0, 1, 10_001)
    assert s[np.argmax(table.A(s) < table.B(s))] == pytest.approx(crossing, abs=1e-3)
    assert table.protocol == "fast"
    assert "D-Wave schedule sheet 09-" in table.source


@pytest.mark.parametrize("name", FAST)
def test_standard_differs_from_fast_between_the_same_ends(name: str) -> None:
    fast, standard = schedule(name), schedule(name, "standard")
    assert standard.B([0.0, 1.0]) == pytest.approx(fast.B([0.0, 1.0]))
    assert abs(standard.B(0.5) - fast.B(0.5)) > 0.04


def test_integrals_are_exact_for_the_interpolated_table() -> None:
    ramp = linear_ramp(3.0, 2.0, 0.5)
    s = np.linspace(0, 1, 7)
    assert ramp.integral_A(s) == pytest.approx(3 * (s - s**2 / 2))
    assert ramp.integral_B(s) == pytest.approx(0.5 * s + 0.75 * s**2)
    table = schedule("Advantage_system4")
    fine = np.linspace(0, 0.73, 200_001)
    assert table.integral_A(0.73) == pytest.approx(np.trapezoid(table.A(fine), fine), rel=1e-8)


HEADER = "s,A_GHz,B_GHz"
ROWS = [f"{k / 20},{10 - k / 2},{k / 4}" for k in range(21)]


def write(folder: Path, *lines: str) -> Path:
    path = folder / "mine.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


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
    assert (loaded.name, loaded.protocol, loaded.source) == ("mine", "own schedule", "mine.csv")
    assert loaded.A(0.5) == pytest.approx(5.0)
    assert trotter_plan(loaded, 4.0, 100).label == "mine (own schedule), 4 ns, 100 steps, strang"


def test_several_solvers_need_a_choice(tmp_path: Path) -> None:
    lines = [f"{solver},{row}" for solver in ("x", "y") for row in ROWS]
    path = write(tmp_path, f"solver,{HEADER}", *lines)
    assert from_csv(path, solver="y").name == "y"
    with pytest.raises(
        ValueError, match="expected one solver, got x, y; choose one with solver=, an argument"
    ):
        from_csv(path)
    with pytest.raises(ValueError, match="expected one solver 'z', got x, y; choose"):
        from_csv(path, solver="z")


def test_files_as_spreadsheets_and_people_write_them(tmp_path: Path) -> None:
    """Byte order mark, CRLF, quotes, indented comments, empty lines, another order and other headings of columns."""
    rows = [",".join(f'"{cell}"' for cell in (b, s, a)) for s, a, b in (row.split(",") for row in ROWS)]
    text = "\r\n".join(["  # a comment", '"B_GHz","s","A_GHz"', *rows[:9], "", "# another", *rows[9:]])
    path = tmp_path / "excel.csv"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    loaded, plain = from_csv(path), from_csv(write(tmp_path, HEADER, *ROWS))
    for key in ("s", "A_GHz", "B_GHz"):
        assert (getattr(loaded, key) == getattr(plain, key)).all()
    for header in ("s,A(GHz),B(GHz)", " s , A(s) (GHz) ,B(s) (GHz)", "S,A (GHz),b_ghz"):
        assert (from_csv(write(tmp_path, header, *ROWS)).B_GHz == plain.B_GHz).all()
