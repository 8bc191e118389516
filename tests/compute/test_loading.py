"""While numba loads and compiles, the garbage collector rests, the clock of solvers stands still, a bar is shown."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO

import numba
import pytest
import torch
from fakes import FIFOSampler
from numba.core.compiler_lock import global_compiler_lock
from rich.console import Console

from diabat import Ising, Samples, progress
from diabat.compute.jit import jit, unannounced
from diabat.compute.loading import loaded, preparing
from diabat.lab.studies.ensembles import timed
from diabat.progress import compiling_bar, new_bar


@pytest.fixture(params=[True, False])
def collecting(request: pytest.FixtureRequest) -> Iterator[bool]:
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def test_the_collector_rests_in_the_block(collecting: bool) -> None:
    with preparing:
        assert not gc.isenabled()
    assert gc.isenabled() == collecting


def test_the_collector_rests_while_numba_compiles_or_loads(collecting: bool) -> None:
    with global_compiler_lock:
        with global_compiler_lock:  # nested, as in a compilation
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled() == collecting


def test_the_collector_is_as_before_after_a_refused_compilation(collecting: bool) -> None:
    def refused(x: int) -> int:
        return x + unknown  # type: ignore[name-defined]  # noqa: F821 - numba must fail here

    with pytest.raises(Exception, match="unknown"):
        jit(refused)(1)
    assert gc.isenabled() == collecting


def test_a_module_is_imported_once() -> None:
    name = "diabat.samplers.tempering.kernel"
    assert loaded(name) is loaded(name)
    assert loaded(name).__name__ == name


@pytest.fixture
def time_passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock of the machine, which otherwise stands still."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def move(seconds: float) -> None:
        now[0] += seconds

    return move


def test_the_clock_of_solvers_stands_still_in_the_block(time_passes: Callable[[float], None]) -> None:
    start = preparing.clock()
    time_passes(1)
    with preparing:
        time_passes(10)
        assert preparing.clock() - start == 1
        with preparing:
            time_passes(20)
        time_passes(30)
        assert preparing.clock() - start == 1
    time_passes(2)
    assert preparing.clock() - start == 3


def test_a_first_call_is_timed_without_its_compilation(time_passes: Callable[[float], None]) -> None:
    class First(FIFOSampler):
        def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
            with global_compiler_lock:
                time_passes(60)
            time_passes(2)
            return super()._sample(ising, num_reads, seed)

    ising = Ising(torch.zeros(1))
    backend = First(torch.ones(2, 1, 1, dtype=torch.int8))
    assert backend.sample(ising, 1, seed=0).info["wall_s"] == 2
    assert timed(lambda: backend.sample(ising, 1, seed=0))[0] == 2


def test_compiling_is_shown_until_the_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    @contextmanager
    def display() -> Iterator[None]:
        seen.append("shown")
        yield
        seen.append("gone")

    def outer(x: int) -> int:
        return x + 1

    outer.__module__ = "diabat.tests"
    monkeypatch.setattr(preparing, "display", display)
    with preparing:
        numba.njit(outer)(1)
        numba.njit(outer)(1.0)
        assert seen == ["shown"]
    assert seen == ["shown", "gone"]
    with unannounced():
        numba.njit(outer)(1)
    assert len(seen) == 2


def test_a_bar_that_moves_stands_below_that_of_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress.stderr_console() is progress.stderr_console()  # bars of two consoles overwrite each other
    screen = Console(file=StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(progress, "stderr_console", lambda: screen)
    with new_bar() as bar:
        bar.add_task("exact on sk", total=2)
        with compiling_bar():
            bar.refresh()
    lines = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    place = next(i for i, line in enumerate(lines) if "compiling kernels" in line)
    assert "exact on sk" in lines[place - 1]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_log_has_lines_where_a_terminal_has_bars(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    file = StringIO()
    screen = Console(file=file, force_terminal=terminal, width=10)
    monkeypatch.setattr(progress, "stderr_console", lambda: screen)
    progress.without_bars("run 1 of 2: a row of [many] words")
    expected = "" if terminal else "run 1 of 2: a row of [many] words\n"
    assert file.getvalue() == expected
