from __future__ import annotations

import numpy as np
import pytest

from diabat.circuits import AnnealingSchedule, available_schedules, linear_ramp, schedule

# A(0), B(0), B(1) in GHz, and the s at which A = B, of the fast tables.
FAST = {
    "Advantage2_system1": (11.3148, 0.5582, 14.7338, 0.387),
    "Advantage2_system2": (10.0000, 0.4118, 13.7648, 0.346),
    "Advantage2_system4": (10.0000, 0.5447, 13.9139, 0.380),
    "Advantage_system4": (9.8394, 0.2592, 8.4771, 0.364),
    "Advantage_system6": (9.6269, 0.2317, 7.5662, 0.366),
}


def test_the_five_solvers_are_available() -> None:
    assert set(available_schedules()) == set(FAST)


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


def test_a_schedule_cannot_be_changed() -> None:
    table = schedule("Advantage2_system1")
    with pytest.raises(ValueError, match="read-only"):
        table.A_GHz[0] = 0.0


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("advantage2_system1", "Advantage2_system1"), ("Advantage_sytem6", "Advantage_system6")],
)
def test_unknown_name_gets_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=rf"got '{name}'\. Did you mean '{nearest}'"):
        schedule(name)


def test_unknown_protocol() -> None:
    with pytest.raises(ValueError, match="protocol: expected 'fast' or 'standard', got 'slow'"):
        schedule("Advantage2_system1", "slow")


@pytest.mark.parametrize(
    ("s", "a", "message"),
    [
        ([0, 0.5, 1], [1, np.nan, 0], "A_GHz finite and not negative, got nan at point 1"),
        ([0, 0.5, 1], [1, 0.5, -1], "A_GHz finite and not negative, got -1 at point 2"),
        (
            [0, 0.5, 0.4, 1],
            [1, 1, 1, 0],
            r"s strictly increasing by 1e-09 or more, got 0.4 after 0.5 at point 2",
        ),
        (
            [0, 5e-324, 0.4, 1],
            [1, 1, 1, 0],
            r"s strictly increasing by 1e-09 or more, got .*e-324 after 0 at point 1",
        ),
        ([0, 0.5, 0.9], [1, 1, 0], r"s to span 0 to 1, got 0 to 0.9 \(truncated\?\)"),
        ([0, 50, 100], [1, 1, 0], r"s to span 0 to 1, got 0 to 100; is s in percent\? Divide it by 100"),
        ([0, 3, 5], [1, 1, 0], r"s to span 0 to 1, got 0 to 5; is it a time\? Divide it by its last value"),
        ([0.1, 0.5, 1], [1, 1, 0], "s to span 0 to 1, got 0.1 to 1$"),
        ([0, 0.5, 1], [11_000, 1, 0], r"A_GHz in GHz, got a maximum of 1\.1e\+04; is the table in MHz, Hz"),
        ([0, 0.5, 1], [1, 0], r"A_GHz as a list of 3 numbers, got shape \(2,\)"),
        ([0], [1], r"s as a list of 2 numbers, got shape \(1,\)"),
    ],
)
def test_bad_tables_are_refused(s: list[float], a: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AnnealingSchedule("mine", np.array(s), np.array(a), np.ones(len(s)))


def test_the_problem_energy_too_is_in_ghz() -> None:
    with pytest.raises(ValueError, match=r"expected B_GHz in GHz, got a maximum of 1\.5e\+10"):
        linear_ramp(1.0, 1.5e10)


def test_a_slow_simulator_is_a_schedule_too() -> None:
    assert linear_ramp(1e-6, 1e-6).A(0.0) == 1e-6


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), True])
def test_linear_ramp_refuses_bad_scales(value: float) -> None:
    with pytest.raises(ValueError, match="expected A0_GHz > 0"):
        linear_ramp(value, 1.0)
    with pytest.raises(ValueError, match="expected B1_GHz > 0"):
        linear_ramp(1.0, value)
