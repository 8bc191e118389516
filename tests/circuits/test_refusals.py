"""What the circuits refuse, each in one sentence: engines, calls, schedules, plans, and the files of both."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qiskit.primitives import StatevectorEstimator

from diabat.circuits import (
    AerEngine,
    AnnealingSchedule,
    Batch,
    EngineError,
    NativeEngine,
    PlanRange,
    PrimitiveEngine,
    TorchEngine,
    TrotterPlan,
    anneal_circuit,
    from_csv,
    linear_ramp,
    load_plan,
    parameterised_circuit,
    schedule,
    second_order_response,
    to_qasm3,
    trotter_plan,
)
from diabat.circuits.engines.native.engine import MAX_SPINS

from .conftest import line_backend, make_batch, random_plan

INF, NAN, ZEROS = float("inf"), float("nan"), np.zeros
TABLE, RAMP, PLAN = schedule("Advantage2_system1"), linear_ramp(2.0, 2.0), random_plan(2, seed=1)
EXACT = {"aer": AerEngine(), "native": NativeEngine(), "torch": TorchEngine()}
BATCH, WIDE, LARGE = make_batch(3, 2, "shared", seed=1), Batch(ZEROS((1, 6)), ZEROS((6, 6))), ZEROS((1, 30))
TWO = Batch(ZEROS((1, 2)), ZEROS((2, 2)))
READS = "'primitive' returns shots only"
STATES = "expected at most 22 spins, got 30, whose states need 160 GiB in double precision"
Row = tuple[Callable[[], Any], str]

# Calls on one line each, and what the sentence says of them.
ENGINES: list[Row] = [
    *((lambda x=x: TorchEngine(x), f"device: expected a torch device with float64, got '{x}'")
     for x in ("abacus", "cpu:x", "meta")),
    (lambda: PrimitiveEngine("aer"), r"primitive: expected a qiskit\.primitives\.BaseSamplerV2, got str\."),
    (lambda: PrimitiveEngine(StatevectorEstimator()), "BaseSamplerV2, got StatevectorEstimator"),
    (lambda: PrimitiveEngine(backend="ibm"), "backend: expected a Qiskit backend and a level, got str and 1"),
    (lambda: PrimitiveEngine(backend=line_backend(), optimization_level=4),
     "backend: expected a Qiskit backend and a level, got .* and 4 .Invalid optimization level 4"),
]  # fmt: skip


def calls_of(engine: Any) -> list[Row]:
    """Bad calls of an engine that knows probabilities."""
    return [
        (lambda: engine.probabilities(PLAN, ZEROS(3), ZEROS((3, 3))),
         r"fields: expected shape \[Q, n\] with n >= 1, got \(3,\)"),
        (lambda: engine.probabilities(PLAN, np.full((1, 3), NAN), ZEROS((3, 3))), "fields"),
    ]  # fmt: skip


def gradients_of(engine: Any) -> list[Row]:
    """Bad calls of an engine that has an adjoint."""
    return [
        (lambda: engine.gradient(PLAN, [BATCH], []), r"cotangents: expected one array per batch \(1\), got 0 and 1"),
        (lambda: engine.gradient(PLAN, [BATCH], [ZEROS(3)]), r"cotangents: expected shape \(2, 3\), got \(3,\)"),
        (lambda: engine.gradient(PLAN, [BATCH], [BATCH.fields], [ZEROS((3, 3))]),
         r"pair_cotangents: expected shape \(2, 3, 3\), got \(3, 3\)"),
    ]  # fmt: skip


def too_large(engine: Any, n: int, message: str) -> list[Row]:
    """Every call with more spins than an engine takes."""
    batch = Batch(ZEROS((1, n)), ZEROS((n, n)))
    return [
        (lambda: engine.probabilities(PLAN, batch.fields, batch.couplings), message),
        (lambda: engine.moments(PLAN, [batch]), message),
        (lambda: engine.sample(PLAN, [batch], 3, np.random.default_rng(1)), message),
        (lambda: engine.gradient(PLAN, [batch], [batch.fields]), message),
    ]


def reads(engine: PrimitiveEngine, batch: Batch, count: int) -> Any:
    return engine.sample(PLAN, [batch], count, np.random.default_rng(1))


CALLS: list[Row] = [
    *(row for engine in EXACT.values() for row in calls_of(engine)),
    *(row for name in ("native", "torch") for row in gradients_of(EXACT[name])),
    *too_large(EXACT["native"], MAX_SPINS + 1, f"fields: expected at most {MAX_SPINS} spins, got {MAX_SPINS + 1}"),
    *too_large(TorchEngine(memory_gib=1.0), 30, STATES),
    (lambda: AerEngine().probabilities(PLAN, ZEROS((1, 21)), ZEROS((21, 21))), "expected at most 20 spins, got 21"),
    (lambda: reads(PrimitiveEngine(), WIDE, 0), "num_reads: expected an integer >= 1, got 0"),
    (lambda: reads(PrimitiveEngine(backend=line_backend()), WIDE, 1), "fields: expected at most 5 spins, got 6"),
    (lambda: reads(PrimitiveEngine(max_spins=4), WIDE, 1), "fields: expected at most 4 spins, got 6"),
    (lambda: anneal_circuit(PLAN, [[0.0]], [[0.0]]), r"fields: expected shape \[n\] with n >= 1, got \(1, 1\)"),
    (lambda: anneal_circuit(PLAN, [], ZEROS((0, 0))), r"fields: expected shape \[n\] with n >= 1, got \(0,\)"),
    (lambda: anneal_circuit(PLAN, [0.0, INF], ZEROS((2, 2))), r"fields: expected finite values, got inf at \(1,\)"),
    (lambda: anneal_circuit(PLAN, [0.0, 0.0], ZEROS((3, 3))), r"couplings: expected shape \(2, 2\), got \(3, 3\)"),
    (lambda: anneal_circuit(PLAN, [0.0, 0.0], [[0, NAN], [0, 0]]),
     r"couplings: expected finite values, got nan at \(0, 1\)"),
    (lambda: anneal_circuit(PLAN, [0.0, 0.0], [[0, 1], [0, 0]]),
     r"expected a symmetric matrix, got 1 at \(0, 1\) and 0 at \(1, 0\)"),
    (lambda: anneal_circuit(PLAN, [0.0, 0.0], [[0, 1], [1, 2]]), "expected a zero diagonal, got 2 at spin 1"),
    (lambda: anneal_circuit(PLAN, [0.0] * 3, ZEROS((3, 3)), visible=[1, 0]),
     r"visible: expected bool \[3\], got int64 \[2\]"),
    (lambda: parameterised_circuit(PLAN, ZEROS((2, 2))).binds(ZEROS((4, 3))),
     r"fields: expected shape \[Q, 2\], got \(4, 3\)"),
    (lambda: to_qasm3(parameterised_circuit(PLAN, [[0, 1], [1, 0]]).circuit),
     "expected a circuit of anneal_circuit, got 2 DiagonalGates"),
]  # fmt: skip

# What an engine cannot do at all has an error of its own, which is a ValueError too.
UNABLE: list[Row] = [
    (lambda: EXACT["aer"].gradient(PLAN, [TWO], [TWO.fields]), "gradient: engine 'aer' has no adjoint gradient"),
    (lambda: PrimitiveEngine().probabilities(PLAN, TWO.fields, TWO.couplings),
     f"probabilities: engine {READS}; call sample"),
    (lambda: PrimitiveEngine().moments(PLAN, [TWO]), f"moments: engine {READS}; average"),
    (lambda: PrimitiveEngine().gradient(PLAN, [TWO], [TWO.fields]),
     "gradient: engine 'primitive' has no adjoint gradient"),
]  # fmt: skip
LIMIT = "annealing_time_ns: expected at"


def plan(field: Any = (1.0,), coupling: Any = (1.0,), mixer: Any = (1.0,)) -> Callable[[], TrotterPlan]:
    return lambda: TrotterPlan(field, coupling, mixer)


PLANS: list[Row] = [
    *((lambda x=x: trotter_plan(RAMP, 1.0, x), "steps: expected an integer, got") for x in (200.0, "200", True)),
    (lambda: trotter_plan(RAMP, 1.0, 10**10), "steps: expected at most 1000000, got 10000000000"),
    (lambda: trotter_plan(TABLE, 5.0, 113),
     r"steps: expected at least 114 \(more than 2·A\(0\)·t_a for Advantage2.*\), got 113"),
    (lambda: trotter_plan(TABLE, 0.005),
     rf"{LIMIT} least 0\.0273 ns .* got 0\.005; is it in microseconds\? 0\.005 microseconds are 5 ns"),
    (lambda: trotter_plan(TABLE, 5e6),
     rf"{LIMIT} most 4\.419e\+04 ns .*1000000 steps\), got 5e\+06, which needs at least 113148162"),
    (plan([], [], []), r"field_angles: expected shape \(1,\), got \(0,\)"),
    (plan([1.0, 2.0], [1.0], [1.0, 2.0]), r"coupling_angles: expected shape \(2,\), got \(1,\)"),
    (plan(mixer=[NAN]), "mixer_angles: expected finite angles, got nan at step 0"),
    (plan(field=[-1e12]), r"field_angles: expected at most 1e\+08 rad.*got -1e\+12 at step 0"),
    (plan(coupling=[-1e12]), r"coupling_angles: expected at most 1e\+08 rad.*got -1e\+12 at step 0"),
    (plan([0.1] * 2, [0.1] * 2, [0.1, -1e12]), r"mixer_angles: expected at most 1e\+08 rad.*got -1e\+12 at step 1"),
    (lambda: second_order_response(TrotterPlan(np.ones(2), np.ones(2), ZEROS(2))),
     "plan: expected beta_h and beta_J other than 0, got 0 and 0"),
    *((lambda x=x: PlanRange(x, 1.0), "max_field: expected a number > 0, got ")
     for x in (0.0, -1.0, INF, NAN, True, "2")),
    *((lambda x=x: PlanRange(1.0, x), "max_row_norm: expected a number > 0, got ")
     for x in (0.0, -1.0, NAN, True, "2")),
    *(
        (lambda x=x: PlanRange.of_metadata({"trained_range": x}), "trained_range: expected .* with numbers > 0, got ")
        for x in (3.0, {}, {"max_field": 3.0}, {"max_field": 0.0, "max_row_norm": 1.0}, {"max_field": "3",
         "max_row_norm": 1})
    ),
]  # fmt: skip


def table(s: list[float], a: list[float]) -> Callable[[], AnnealingSchedule]:
    return lambda: AnnealingSchedule("mine", np.array(s), np.array(a), np.ones(len(s)))


SCHEDULES: list[Row] = [
    (lambda: schedule("advantage2_system1"), "got 'advantage2_system1'. Did you mean 'Advantage2_system1'"),
    (lambda: schedule("Advantage_sytem6"), "got 'Advantage_sytem6'. Did you mean 'Advantage_system6'"),
    (lambda: schedule("Advantage2_system1", "slow"), "protocol: expected 'fast' or 'standard', got 'slow'"),
    (table([0, 0.5, 1], [1, NAN, 0]), "A_GHz finite and not negative, got nan at point 1"),
    (table([0, 0.5, 1], [1, 0.5, -1]), "A_GHz finite and not negative, got -1 at point 2"),
    (table([0, 0.5, 0.4, 1], [1, 1, 1, 0]), "s strictly increasing by 1e-09 or more, got 0.4 after 0.5 at point 2"),
    (table([0, 5e-324, 0.4, 1], [1, 1, 1, 0]),
     "s strictly increasing by 1e-09 or more, got .*e-324 after 0 at point 1"),
    (table([0, 0.5, 0.9], [1, 1, 0]), r"s to span 0 to 1, got 0 to 0.9 \(truncated\?\)"),
    (table([0, 50, 100], [1, 1, 0]), r"s to span 0 to 1, got 0 to 100; is s in percent\? Divide it by 100"),
    (table([0, 3, 5], [1, 1, 0]), r"s to span 0 to 1, got 0 to 5; is it a time\? Divide it by its last value"),
    (table([0.1, 0.5, 1], [1, 1, 0]), "s to span 0 to 1, got 0.1 to 1$"),
    (table([0, 0.5, 1], [11_000, 1, 0]), r"A_GHz in GHz, got a maximum of 1\.1e\+04; is the table in MHz, Hz"),
    (table([0, 0.5, 1], [1, 0]), r"A_GHz as a list of 3 numbers, got shape \(2,\)"),
    (table([0], [1]), r"s as a list of 2 numbers, got shape \(1,\)"),
    (lambda: linear_ramp(1.0, 1.5e10), r"expected B_GHz in GHz, got a maximum of 1\.5e\+10"),
    *((lambda x=x: linear_ramp(x, 1.0), "expected A0_GHz > 0") for x in (0.0, -1.0, NAN, INF, True)),
    *((lambda x=x: linear_ramp(1.0, x), "expected B1_GHz > 0") for x in (0.0, -1.0, NAN, INF, True)),
]  # fmt: skip
ALL = {"engine": ENGINES, "call": CALLS, "unable": UNABLE, "plan": PLANS, "schedule": SCHEDULES}


@pytest.mark.parametrize(
    ("call", "message", "error"),
    [(*row, EngineError if kind == "unable" else ValueError) for kind, rows in ALL.items() for row in rows],
    ids=[f"{kind}-{number}" for kind, rows in ALL.items() for number, _ in enumerate(rows)],
)
def test_it_is_refused_in_a_sentence(call: Callable[[], Any], message: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=message):
        call()


def test_an_engine_error_is_a_value_error() -> None:
    assert issubclass(EngineError, ValueError)


# Files of schedules

HEADER = "s,A_GHz,B_GHz"
ROWS = [f"{k / 20},{10 - k / 2},{k / 4}" for k in range(21)]


def replaced(row: int, text: str) -> list[str]:
    return [HEADER, *ROWS[:row], text, *ROWS[row + 1 :]]


def scaled(s: float = 1, a: float = 1, b: float = 1) -> list[str]:
    """The rows in other units."""
    return [HEADER, *(f"{k / 20 * s},{(10 - k / 2) * a},{k / 4 * b}" for k in range(21))]


LONG = "1" * 131_073
CSV: list[tuple[list[str], str]] = [
    ([line.replace(",", ";").replace(".", ",") for line in (HEADER, *ROWS)],
     "line 1: expected one column s, got 0 in a header of 1 between commas"),
    ([line.replace(",", "\t") for line in (HEADER, *ROWS)],
     "line 1: expected one column s, got 0 in a header of 1 between commas"),
    ([f"{HEADER},A_GHz", *(f"{row},0" for row in ROWS)], "line 1: expected one column A_GHz, got 2"),
    ([], "expected one column s, got 0 in a header of 0"),
    (["# nothing"], "expected one column s, got 0 in a header of 0"),
    (["s,A_GHz", *ROWS], "line 1: expected one column B_GHz, got 0 in a header of 2"),
    (["s,A(s),B(s) (GHz)", *ROWS], "line 1: expected one column A_GHz, got 0 in a header of 3"),  # no unit
    (["s,A(s) (GHz),A_GHz,B_GHz", *ROWS], "line 1: expected one column A_GHz, got 2"),
    (["hunter2"], r"got 0 in a header of 1 between commas$"),  # another file, which may hold a secret
    ([LONG], "line 1: expected cells between commas, got field larger than field limit"),
    ([HEADER, "0,6,0", f"0.1,6,{LONG}"], "line 3: expected cells between commas, got field larger"),
    ([HEADER, *ROWS[:5]], "expected at least 11 points, got 5"),
    ([HEADER, *ROWS[:15]], "expected s to span 0 to 1, got 0 to 0.7"),
    (replaced(20, "1.0,0."), r"line 22: expected 3 values between commas, got 2 \(truncated"),
    (replaced(3, "0.15,abc,1"), "line 5: expected a finite number that is not negative for A_GHz, got 'abc'"),
    (replaced(3, "0.15,nan,1"), "line 5: .* for A_GHz, got 'nan'"),
    (replaced(3, "0.1_5,1,1"), "line 5: .* for s, got '0.1_5'"),
    (replaced(3, "0.15,1,inf"), "line 5: .* for B_GHz, got 'inf'"),
    (replaced(3, "0.15,1,-2"), "line 5: .* for B_GHz, got '-2'"),
    (replaced(3, "0.05,1,1"), "line 5: expected s above the 0.1 of the line before, got 0.05 .sort the rows"),
    ([HEADER, ROWS[0], "5e-324,4.6,0.05", *ROWS[1:]],
     "line 3: expected s above the 0 of the line before, got .*e-324 .sort"),
    ([HEADER, *reversed(ROWS)], "line 3: expected s above the 1 of the line before, got 0.95 .sort"),
    (scaled(s=100), "expected s to span 0 to 1, got 0 to 100; is s in percent"),
    (scaled(s=5), "expected s to span 0 to 1, got 0 to 5; is it a time"),
    (scaled(a=1000), r"expected A_GHz in GHz, got a maximum of 1e\+04; .* in MHz, Hz or rad/s"),
    (scaled(b=1e9), r"expected B_GHz in GHz, got a maximum of 5e\+09; .* in MHz"),
    (scaled(a=4e-6), r"expected A_GHz in GHz, got a maximum of 4e-05; .* in THz, eV or joule"),
    (scaled(b=0), "expected B_GHz in GHz, got a maximum of 0; "),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "message"), CSV, ids=range(len(CSV)))
def test_a_bad_file_of_a_schedule_is_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=r"mine\.csv.*" + message):
        from_csv(path)


def test_a_choice_needs_its_column(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("\n".join([HEADER, *ROWS]))
    for choice in ({"protocol": "standard"}, {"solver": "x"}):
        ((name, value),) = choice.items()
        message = f"expected one {name} '{value}', got no such column"
        with pytest.raises(ValueError, match=message):
            from_csv(path, **choice)


# Files of plans

ANGLES = {"field_angles_rad": [1.0, 2.0], "coupling_angles_rad": [1.0, 2.0], "mixer_angles_rad": [0.5, 1]}
GOOD: dict[str, Any] = {"format": "diabat-plan", "version": 1, **ANGLES}


def changed(**keys: Any) -> dict[str, Any]:
    return {key: value for key, value in {**GOOD, **keys}.items() if value is not None}


def rewritten(old: str, new: str) -> str:
    return json.dumps(GOOD).replace(old, new)


PLAN_FILES: list[tuple[Any, str]] = [
    ("", "line 1: expected a plan in JSON, got a file that starts ''"),
    ("hello\n", "line 1: expected a plan in JSON, got a file that starts 'hello'"),
    ("s,A_GHz,B_GHz\n0,1,2\n", "starts 's,A_GHz,B_GHz'; is it a schedule.*from_csv reads those"),
    ([1, 2], "expected format 'diabat-plan', got 'list'"),
    ({"angles": [1]}, "expected format 'diabat-plan', got None"),
    (changed(version=2), "expected version 1, got 2"),
    (changed(version=True), "expected version 1, got True"),
    (changed(label=3), "expected label as a str, got 3"),
    (changed(metadata=[1]), r"expected metadata as a dict, got \[1\]"),
    (changed(mixer_angles_rad=None), "expected the key 'mixer_angles_rad', got only format, version, field"),
    (changed(mixer_angles_rad=0.5), "expected mixer_angles_rad as a list of angles in radians, got 0.5"),
    (changed(field_angles_rad=[1.0, "2"]), "expected finite numbers in field_angles_rad, got '2' at step 1"),
    (
        changed(field_angles_rad=[True, 1.0]),
        "expected finite numbers in field_angles_rad, got True at step 0",
    ),
    (changed(coupling_angles_rad=[1.0]), r"coupling_angles: expected shape \(2,\), got \(1,\)"),
    (changed(field_angles_rad=[]), r"field_angles: expected shape \(1,\), got \(0,\)"),
    (changed(mixer_angles_rad=[1.0, NAN]), "expected finite numbers, got NaN"),
    (changed(mixer_angles_rad=[1.0, 10**400]), "expected finite numbers in mixer_angles_rad"),
    (rewritten('"version": 1', '"version": 2, "version": 1'), "the key 'version' is given twice"),
    (rewritten("0.5", "1_0"), "expected a plan in JSON"),
    ("[" * 100_000, "nested too deeply"),
    (rewritten("0.5", "1e999"), "expected finite numbers in mixer_angles_rad, got inf at step 0"),
]


@pytest.mark.parametrize(("content", "message"), PLAN_FILES, ids=range(len(PLAN_FILES)))
def test_a_bad_file_of_a_plan_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ValueError, match=rf"mine\.json.*{message}"):
        load_plan(path)


@pytest.mark.parametrize(("read", "what", "bad", "byte"), [
    (from_csv, "a CSV with columns s, A_GHz, B_GHz", b"s,A_GHz,B_GHz\n\xff\xfe\x00", 14),
    (load_plan, "a plan in JSON", b"{\xff", 1),
])  # fmt: skip
def test_missing_files_folders_and_binary_files_are_refused(
    tmp_path: Path, read: Callable[[Path], Any], what: str, bad: bytes, byte: int
) -> None:
    with pytest.raises(FileNotFoundError, match=rf"none\.x: no such file, expected {what}"):
        read(tmp_path / "none.x")
    with pytest.raises(ValueError, match=f"expected {what}, got "):
        read(tmp_path)
    (tmp_path / "bad.x").write_bytes(bad)
    with pytest.raises(ValueError, match=rf"bad\.x: expected {what} in UTF-8, got byte {byte},"):
        read(tmp_path / "bad.x")
