"""The runner of the benchmarks: calls that take turns, targets, cases that are chosen, and two checkouts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import children, report, runner
from benchmarks.case import Build, Case, Peer, Work
from benchmarks.runner import EFFORTS, OURS, Effort, Row, measure

EFFORT = Effort(rounds=3, shortest=0.01, limit=2.0, stride=1)


def failing(_: Any) -> Any:
    """A build that fails."""
    raise ValueError("no such backend")


class Clock:
    """Time that passes only while calls run."""

    def __init__(self) -> None:
        self.now, self.log = 0.0, list[str]()

    def spend(self, name: str, seconds: float) -> Callable[[], None]:
        """A call that takes so long."""

        def call() -> None:
            self.log.append(name)
            self.now += seconds

        return call

    def line(self, name: str, seconds: Callable[[Any], float]) -> Build:
        """A build whose call takes seconds that depend on the size."""
        return lambda size: self.spend(name, seconds(size))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setitem(runner.CLOCKS, "cpu", lambda: made.now)
    return made


def case(clock: Clock, **options: Any) -> Case:
    peers = {
        "square": Peer(clock.line("square", lambda n: 1e-3 * n * n), target=0.5),
        "short": Peer(clock.line("short", lambda n: 1e-3), last=10),
        "absent": Peer(clock.line("absent", lambda n: 1e-3), module="no_such_package.samplers"),
    }
    settings: dict[str, Any] = {"sizes": (1, 10, 100, 1000), "peers": peers} | options
    return Case("some/linear", clock.line("linear", lambda n: 1e-3 * n), **settings)


def test_a_case_and_its_peers_take_turns(clock: Clock) -> None:
    (row,) = measure(case(clock), [10], EFFORT)
    once = ["linear"] * 2 + ["square"] * 2 + ["short"] * 2
    assert clock.log == once + (["linear", "square"] + ["short"] * 10) * 3
    assert row.seconds == pytest.approx(1e-2)
    assert row.peers == pytest.approx({"square": 0.1, "short": 1e-3})
    assert row.ratios == pytest.approx({"square": 0.1, "short": 10.0})


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    assert runner.ratio([1.0, 5.0, 6.0], [1.0, 10.0, 2.0]) == 1.0
    assert runner.ratio([1.0, 5.0, 6.0], [10.0]) == 0.5


def test_a_line_ends_behind_its_first_call_beyond_the_limit(clock: Clock) -> None:
    rows = {row.size: row for row in measure(case(clock), (1, 10, 100, 1000), EFFORT)}
    assert [size for size, row in rows.items() if "square" in row.peers] == [1, 10, 100]
    assert [size for size, row in rows.items() if "short" in row.peers] == [1, 10]
    clock.log.clear()
    list(measure(case(clock), [100], EFFORT))
    assert clock.log.count("square") == 2  # 10 s; once for nothing, and once timed
    (once,) = measure(Case("some/slow", clock.line("slow", lambda _: 9.0)), [1], EFFORT)
    assert once.spread is None


def test_sizes_that_are_names_do_not_end(clock: Clock) -> None:
    found = measure(Case("some/case", clock.line("ours", lambda _: 9.0)), ["first", "second"], EFFORT)
    assert [row.seconds for row in found] == [9.0, 9.0]


def test_times_are_of_a_unit_less_what_does_not_count(clock: Clock) -> None:
    work = Work(clock.spend("work", 0.5), units=100, less=clock.spend("conversion", 0.1))
    (row,) = measure(Case("some/case", lambda _: work), [""], EFFORT)
    assert row.seconds == pytest.approx(0.004)


def test_a_call_may_return_its_seconds() -> None:
    (row,) = measure(Case("some/case", lambda _: lambda: 7.0, clock="returned"), [""], EFFORT)
    assert row.seconds == 7.0


def test_what_fails_is_named_and_the_rest_is_measured(clock: Clock) -> None:
    peers = {"broken": Peer(failing), "sound": Peer(clock.line("sound", lambda _: 0.1))}
    (row,) = measure(Case("some/case", failing, peers=peers), [""], EFFORT)
    assert row.errors == dict.fromkeys((OURS, "broken"), "ValueError: no such backend")
    assert row.seconds is None
    assert row.peers == {"sound": pytest.approx(0.1)}


@pytest.fixture
def table(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> dict[str, Case]:
    """A table of three cases in place of the real one."""
    short = Case("third/line", lambda _: clock.spend("", 1e-3))
    made = {one.name: one for one in (case(clock), Case("other/fails", failing), short)}
    monkeypatch.setattr(command, "load_cases", lambda: made)
    return made


@pytest.fixture
def run(table: dict[str, Case], capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Status and output of the command on the table."""

    def run(*words: str) -> tuple[int, str]:
        return command.main(words), capsys.readouterr().out

    return run


def test_only_chooses_by_names_and_quick_by_sizes(run: Any) -> None:
    status, out = run("--only", "^some", "line$", "--quick", "--json")
    assert status == 0
    assert [(row["case"], row["size"]) for row in json.loads(out)["rows"]] == [
        ("some/linear", 1), ("some/linear", 100), ("third/line", ""),
    ]  # fmt: skip


def test_a_pattern_without_a_case_is_refused(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("--only", "exakt")
    assert "--only: expected patterns of some of some/linear, other/fails" in capsys.readouterr().err


def test_the_report_says_ratios_targets_failures_and_absent_peers(run: Any) -> None:
    status, out = run("--only", "some", "other")
    assert status == 1
    for said in ("square 0.10 (≤ 0.50); short 10", "square 1.00 (missed: 0.50)", "ValueError: no such backend",
                 "1 of 3 targets missed", "not installed: no_such_package.samplers"):  # fmt: skip
        assert said in out


def test_two_checkouts_take_turns_in_processes(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "diabat").mkdir()
    (tmp_path / "diabat" / "__init__.py").touch()
    log = list[Path]()
    slower = iter((1.0, 2.0, 1.0, 2.0, 10.0, 20.0))  # the machine is busy in the last round

    def in_child(folder: Path, jobs: Any, effort: str, *, peers: bool) -> list[Row]:
        log.append(folder)
        assert not peers
        factor = next(slower)
        return [Row(name, size, factor) for name, sizes in jobs for size in sizes]

    monkeypatch.setattr(children, "in_child", in_child)
    status, out = run("--only", "some", "--quick", "--json", "--against", str(tmp_path))
    assert status == 0
    assert log == [children.HERE, tmp_path] * EFFORTS["quick"].rounds
    rows = json.loads(out)["rows"]
    assert [row["size"] for row in rows] == [1, 100]
    for row in rows:
        assert row["seconds"] == 1.0
        assert row["ratios"] == {str(tmp_path): 0.5}


@pytest.mark.slow
def test_a_child_takes_diabat_of_the_other_checkout(tmp_path: Path) -> None:
    """Real processes: the other diabat cannot be imported, and says so."""
    (tmp_path / "diabat").mkdir()
    (tmp_path / "diabat" / "__init__.py").write_text("raise ImportError('that of the other checkout')")
    job = [("one problem/of 8 spins", ["exact"])]
    folders = (children.HERE, tmp_path)
    (ours,), (theirs,) = (children.in_child(folder, job, "quick", peers=False) for folder in folders)
    assert ours.errors == {}
    assert ours.seconds is not None
    assert theirs.errors == {OURS: "ImportError: that of the other checkout"}


def test_names_of_the_table_are_different_and_its_targets_are_of_sizes() -> None:
    cases = command.load_cases()
    for one in cases.values():
        for target in (one.target, *(peer.target for peer in one.peers.values())):
            assert not isinstance(target, dict) or set(target) <= set(one.sizes), one.name
        assert one.name.count("/") == 1
        json.dumps(list(one.sizes))  # for children


DURATIONS = {2.5e-9: "2.5 ns", 9.996e-7: "1 µs", 1.234e-4: "123 µs", 0.5: "500 ms", 1234.5: "1234 s"}
RATIOS = {0.0052: "1/192", 0.05: "1/20.0", 0.5: "0.50", 12.3: "12"}


def test_durations_have_three_digits_and_ratios_far_below_one_are_fractions() -> None:
    assert {seconds: report.duration(seconds) for seconds in DURATIONS} == DURATIONS
    assert {ratio: report.factor(ratio) for ratio in RATIOS} == RATIOS


def test_patterns_on_pages_choose_cases() -> None:
    """Of ``--only``; the page on chains names an older commit."""
    cases, pages = command.load_cases(), (Path(__file__).parents[2] / "docs").glob("*.md")
    patterns = {
        (page.name, p) for page in pages for p in re.findall(r"(?<!cliffs )'(\^\w.*?)'", page.read_text())
    }
    assert len(patterns) > 30
    dead = [(page, p) for page, p in sorted(patterns) if not any(re.search(p, name) for name in cases)]
    assert {page for page, _ in dead} <= {"chains.md"}, dead
