"""Paying once: retries, the cache of answers, budgets and their file, the dry run; tokens stay out of it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import dimod
import numpy as np
import pytest
import torch
from dwave.cloud.exceptions import (
    PollingTimeout,
    SolverAuthenticationError,
    SolverFailureError,
    SolverOfflineError,
)
from requests.exceptions import ConnectTimeout, InvalidURL
from safetensors.numpy import save

from diabat.files import create_file
from diabat.ising import Ising
from diabat.samplers.dimod import DimodSampler, budget
from diabat.samplers.dimod.budget import Budget, BudgetError, estimated_access_us
from diabat.samplers.dimod.reads import AnswerCache, Reads
from diabat.samplers.dimod.submission import SubmissionError, is_transient
from diabat.samplers.ocean import OceanSampler
from diabat.testing.problems import make_problem
from diabat.testing.strict_qpu import TIMING

from .fakes import Failing, Optioned, Scripted, all_up, annealed, rows

ONE = Ising(torch.zeros(1))
TOKEN = "DEV-0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that would have been waited."""
    waited: list[float] = []
    monkeypatch.setattr("diabat.samplers.dimod.submission.time.sleep", waited.append)
    return waited


def backend(fake: Any, **options: Any) -> DimodSampler:
    return DimodSampler(fake, beta=1.0, **options)


@pytest.mark.parametrize(
    "error",
    [ConnectionResetError(), TimeoutError(), ConnectTimeout(), SolverOfflineError(), PollingTimeout()],
    ids=lambda error: type(error).__name__,
)
def test_transient_failures_are_tried_again(error: Exception, waits: list[float]) -> None:
    fake = Scripted(Failing(error, error))
    assert backend(fake, retry_wait_s=2.0).sample(ONE, 3, seed=0).num_reads == 3
    assert len(fake.calls) == 3
    assert 1 <= waits[0] <= 3  # 2 s, times 0.5 to 1.5
    assert 2 <= waits[1] <= 6


@pytest.mark.parametrize(
    "kind", [ValueError, InvalidURL, SolverFailureError, SolverAuthenticationError, OSError]
)
def test_everything_else_is_raised_at_once(kind: type[Exception], waits: list[float]) -> None:
    fake = Scripted(Failing(kind("bad")))
    with pytest.raises(SubmissionError, match=f"Scripted failed: {kind.__name__}: bad"):
        backend(fake).sample(ONE, 3, seed=0)
    assert (len(fake.calls), waits) == (1, [])
    assert not is_transient(kind("bad"))


def test_the_last_attempt_tells() -> None:
    fake = Scripted(Failing(*[ConnectionError("gone")] * 9))
    message = "failed 3 times in a row, the last time with ConnectionError: gone"
    with pytest.raises(SubmissionError, match=message):
        backend(fake, retries=2).sample(ONE, 3, seed=0)
    assert len(fake.calls) == 3


# tokens


@pytest.mark.parametrize("token", [TOKEN, "short"])
def test_no_token_in_exceptions(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DWAVE_API_TOKEN", token)
    fake = Scripted(Failing(RuntimeError(f"401 for X-Auth-Token {token}")))
    with pytest.raises(SubmissionError) as caught:
        backend(fake).sample(ONE, 1, seed=0)
    assert token not in "".join(traceback.format_exception(caught.value))
    # Neither cause nor context is shown, whose texts hold the token.
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


class Leaky(Scripted):
    def __init__(self, **options: Any) -> None:
        raise RuntimeError(f"cannot log in with token={TOKEN}")


def test_no_token_when_a_client_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="cannot be built: RuntimeError: cannot log in") as caught:
        DimodSampler(f"{__name__}:Leaky", beta=1.0)
    assert TOKEN not in str(caught.value)


def test_no_token_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DWAVE_API_TOKEN", TOKEN)
    fake = Scripted(all_up, default={"token": TOKEN})
    sampler = backend(fake, cache_dir=tmp_path)
    samples = sampler.sample(ONE, 1, seed=0)
    assert TOKEN not in repr(sampler) + repr(samples.info)
    for path in tmp_path.iterdir():
        assert TOKEN.encode() not in path.read_bytes()
        assert TOKEN not in path.name


# the cache


def test_the_same_call_is_answered_from_the_cache(tmp_path: Path) -> None:
    ising, fake = make_problem((3,), 4, seed=1), Scripted(annealed)
    sampler = backend(fake, cache_dir=tmp_path, max_reads=150)
    first = sampler.sample(ising, 50, seed=7)
    assert (first.info["cached_submissions"], first.info["seed"]) == (0, 7)
    other = Scripted(all_up)
    again = backend(other, cache_dir=tmp_path).sample(ising, 50, seed=7)
    assert torch.equal(first.spins, again.spins)
    assert not other.calls
    assert again.info["cached_submissions"] == 3
    sampler.sample(ising, 50, seed=7)  # costs nothing, so that it stays in the budget
    assert sampler.budget.reads == 150


@pytest.mark.parametrize(
    "change", ["seed", "reads", "fields", "couplings", "parameters", "properties", "scale"]
)
def test_anything_else_is_another_submission(change: str, tmp_path: Path) -> None:
    ising = make_problem((2,), 3, seed=1)
    h, J = ising.fields, ising.couplings
    backend(Scripted(annealed, "label"), cache_dir=tmp_path).sample(ising, 10, seed=0)
    problem = {"fields": Ising(h + 1e-9, J), "couplings": Ising(h, J * (1 + 1e-12))}.get(change, ising)
    fake = Scripted(annealed, "label", **({"chip": 2} if change == "properties" else {}))
    options: dict[str, Any] = {"parameters": {"label": "x"}} if change == "parameters" else {}
    options |= {"scale": 0.5} if change == "scale" else {}
    sampler = backend(fake, cache_dir=tmp_path, **options)
    sampler.sample(problem, 11 if change == "reads" else 10, seed=1 if change == "seed" else 0)
    assert len(fake.calls) == 2


def test_constructor_options_are_a_part_of_the_key(tmp_path: Path) -> None:
    """The issue's case: both options share class, parameters and properties."""

    def spins(**options: Any) -> Any:
        name = f"{Optioned.__module__}:Optioned"
        sampler = DimodSampler(name, options=options or None, beta=1.0, cache_dir=tmp_path)
        found = sampler.sample(ONE, 2, seed=0)
        return found.spins.flatten().tolist(), found.info["cached_submissions"]

    assert spins(up=True) == ([1, 1], 0)
    assert spins(up=False) == ([-1, -1], 0)
    assert spins() == ([1, 1], 0)
    assert [spins(up=True), spins(up=False), spins()] == [([1, 1], 1), ([-1, -1], 1), ([1, 1], 1)]


def test_options_that_no_key_can_hold_and_a_file_in_place_of_a_folder_are_refused(tmp_path: Path) -> None:
    name, options = f"{Optioned.__module__}:Optioned", {"up": object()}
    with pytest.raises(
        TypeError, match=r"parameters: .* lists, here and in options, with a cache_dir, got others \(a obj"
    ):
        DimodSampler(name, options=options, beta=1.0, cache_dir=tmp_path)
    (tmp_path / "x").write_text("")
    with pytest.raises(ValueError, match="cache_dir: expected a folder"):
        backend(Scripted(all_up), cache_dir=tmp_path / "x")


KEY = np.zeros(32, dtype=np.uint8)
TEN = {"key": KEY, "bits": np.zeros((10, 1), dtype=np.uint8)}
BITS = np.zeros((1001, 2), dtype=np.uint8)
DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "header"),
    "a pickle": (b"\x80\x04N." * 9, "header"),
    "cut": (save(TEN)[:-9], "deserializing"),
    "no bits": (save({"key": KEY}), "bits"),
    "another key": (save(TEN), "expected the answer of this key, got that of 0000000000000000"),
    "columns": (save(TEN | {"bits": BITS[:5].copy()}), r"\[5, 1\], got uint8 \[5, 2\]"),
    "rows": (save(TEN | {"bits": BITS[:, :1].copy()}), r"\[1000, 1\], got uint8 \[1001, 1\]"),
    "dtype": (save(TEN | {"bits": np.zeros((10, 1))}), r"bits as uint8 \[10, 1\], got float64 \[10, 1\]"),
    "chain breaks": (save(TEN | {"chain_break_fraction": np.zeros(9)}), r"float64 \[10\], got float64 \[9\]"),
    "no reads": (save(TEN | {"bits": BITS[:0, :1].copy()}), "expected reads, got none"),
    "too large": (save(TEN | {"more": np.zeros(10**5)}), "more than 21096 bytes"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_answer_is_asked_for_again(damage: str, tmp_path: Path) -> None:
    fake = Scripted(annealed)
    sampler = backend(fake, cache_dir=tmp_path)
    sampler.sample(ONE, 10, seed=0)
    (path,) = tmp_path.glob("*.safetensors")
    content, why = DAMAGED[damage]
    path.write_bytes(content)
    with pytest.warns(UserWarning, match=f"cache_dir: the answer .* is damaged .*{why}.* requested again"):
        sampler.sample(ONE, 10, seed=0)
    sampler.sample(ONE, 10, seed=0)
    assert len(fake.calls) == 2


def test_an_answer_without_reads_is_asked_for_again(tmp_path: Path) -> None:
    answers = [lambda bqm, keywords: rows(bqm, np.ones((0, len(bqm)), dtype=np.int8)), all_up]
    sampler = backend(Scripted(lambda bqm, keywords: answers.pop(0)(bqm, keywords)), cache_dir=tmp_path)
    with pytest.raises(SubmissionError, match="asked for 10 reads and returned 0"):
        sampler.sample(ONE, 10, seed=0)
    assert not list(tmp_path.glob("*.safetensors"))
    assert sampler.sample(ONE, 10, seed=0).num_reads == 10


def test_two_that_ask_the_same_pay_once(tmp_path: Path) -> None:
    """The second asks while the first waits for its answer; a question of another key does not wait."""
    asked = Event()

    def slow(bqm: Any, keywords: dict[str, Any]) -> Any:
        asked.set()
        Event().wait(0.3)
        return annealed(bqm, keywords)

    fakes = Scripted(slow), Scripted(annealed)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(lambda: backend(fakes[0], cache_dir=tmp_path).sample(ONE, 10, seed=0))
        assert asked.wait(60)
        second = backend(fakes[1], cache_dir=tmp_path).sample(ONE, 10, seed=0)
    assert [len(fake.calls) for fake in fakes] == [1, 0]
    assert torch.equal(first.result().spins, second.spins)
    assert second.info["cached_submissions"] == 1
    assert second.info["reads_spent"] == 10


def raising(number: int, text: str) -> Any:
    def raised(*_: Any, **__: Any) -> Any:
        raise OSError(number, text)

    return raised


def test_a_folder_that_cannot_be_locked_is_told_before_anything_is_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write anywhere."""
    monkeypatch.setattr("filelock.FileLock.acquire", raising(errno.EACCES, "Permission denied"))
    fake = Scripted(all_up)
    with pytest.raises(ValueError, match=r"^cache_dir: cannot lock '.*\.lock' \(Permission denied\)\.$"):
        backend(fake, cache_dir=tmp_path).sample(ONE, 1, seed=0)
    assert not fake.calls


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diabat.files.os.write", raising(errno.ENOSPC, "No space left on device"))
    with pytest.raises(OSError, match="No space left on device") as caught:
        AnswerCache(tmp_path).store("ab" * 32, Reads(np.ones((1, 1), dtype=np.int8)))
    assert caught.value.filename == str(tmp_path / f"{'ab' * 32}.safetensors")
    assert not list(tmp_path.iterdir())


def taking(told: Any, breaks: Any = None) -> Any:
    """Answers that say how long the processor took."""

    def answer(bqm: Any, keywords: dict[str, Any]) -> Any:
        found = all_up(bqm, keywords)
        found.info["timing"] = {"qpu_access_time": told}
        return found if breaks is None else dimod.append_data_vectors(found, chain_break_fraction=breaks)

    return answer


def test_the_cache_keeps_chain_breaks_and_times(tmp_path: Path) -> None:
    sampler = backend(Scripted(taking(5000.0, [0.0, 0.5])), cache_dir=tmp_path)
    first, again = sampler.sample(ONE, 2, seed=0).info, sampler.sample(ONE, 2, seed=0).info
    assert first["chain_break_fraction"] == again["chain_break_fraction"] == {"mean": 0.25, "max": 0.5}
    assert (first["qpu_access_s"], again["qpu_access_s"]) == (0.005, None)  # paid once


def test_an_interrupted_run_pays_nothing_twice(tmp_path: Path) -> None:
    """Five problems; the network fails for good at the third.  A second run submits the other three."""
    ising = make_problem((5,), 3, seed=4)
    first = Scripted(Failing(None, None, *[ConnectionError()] * 9))
    with pytest.raises(SubmissionError):
        backend(first, cache_dir=tmp_path, retries=1).sample(ising, 20, seed=3)
    second = Scripted(annealed)
    resumed = backend(second, cache_dir=tmp_path).sample(ising, 20, seed=3)
    assert (len(second.calls), resumed.info["cached_submissions"]) == (3, 2)
    third = Scripted(annealed)
    assert torch.equal(backend(third, cache_dir=tmp_path).sample(ising, 20, seed=3).spins, resumed.spins)
    assert not third.calls


def test_reads_beyond_the_budget_are_refused_before_submission() -> None:
    fake = Scripted(all_up)
    sampler, ising = backend(fake, max_reads=25), Ising(torch.zeros(2, 1))
    assert sampler.sample(ising, 10, seed=0).info["reads_spent"] == 20
    message = "max_reads: expected at most 25 reads in total, got 20 used and 6 more"
    with pytest.raises(ValueError, match=message):
        sampler.sample(ising, 3, seed=0)
    assert len(fake.calls) == 2
    sampler.sample(ONE, 5, seed=0)


def test_the_limit_of_a_backend_behind_ocean_is_told_as_such() -> None:
    inner = OceanSampler(backend(Scripted(all_up), max_reads=5))
    outer = backend(inner, parameters={"beta": 1.0})
    with pytest.raises(
        BudgetError, match="max_reads: expected at most 5 reads in total, got 0 used and 6 more"
    ):
        outer.sample(ONE, 6, seed=0)
    assert outer.budget.reads == 0


def test_seconds_are_estimated_before_and_counted_after() -> None:
    fake = Scripted(taking(30_000.0), problem_timing_data=TIMING)
    sampler = backend(fake, max_qpu_seconds=0.07)
    info = sampler.sample(ONE, 10, seed=0).info
    assert info["qpu_seconds_spent"] == info["qpu_access_s"] == 0.03
    sampler.sample(ONE, 10, seed=1)  # estimated 0.016 s, took 0.03
    with pytest.raises(ValueError, match=r"max_qpu_seconds: expected at most 0.07 s .* got 0.06 s used"):
        sampler.sample(ONE, 10, seed=2)
    assert len(fake.calls) == 2


ESTIMATE = estimated_access_us(TIMING, 1, {"num_reads": 10}) / 1e6


@pytest.mark.parametrize("told", [float("nan"), float("inf"), -5.0, "5000", "soon", None, True, [5.0]])
def test_a_time_that_is_none_counts_as_the_estimate(told: Any) -> None:
    sampler = backend(Scripted(taking(told), problem_timing_data=TIMING), max_qpu_seconds=9.0)
    info = sampler.sample(ONE, 10, seed=0).info
    assert info["qpu_seconds_spent"] == pytest.approx(ESTIMATE)
    assert info["qpu_access_s"] is None


@pytest.mark.parametrize("told", [float("nan"), -1.0, "soon"])
def test_no_budget_holds_with_an_estimate_that_is_no_time(told: Any) -> None:
    timing = TIMING | {"qpu_delay_time_per_sample": told}
    if told == -1.0:
        timing |= {"typical_programming_time": -1e9}
    fake = Scripted(all_up, problem_timing_data=timing)
    message = "max_qpu_seconds: expected a sampler that estimates its access time"
    with pytest.raises(BudgetError, match=message):
        backend(fake, max_qpu_seconds=9.0).sample(ONE, 10, seed=0)
    assert not fake.calls
    assert backend(fake).sample(ONE, 10, seed=0).info["qpu_seconds_spent"] == 0


def test_the_solvers_own_estimate_is_used() -> None:
    fake: Any = Scripted(all_up)
    estimate = lambda qubits, **keywords: 1e6 * qubits * keywords["num_reads"]  # noqa: E731
    fake.solver = SimpleNamespace(estimate_qpu_access_time=estimate)
    assert backend(fake).dry_run(Ising(torch.zeros(3)), 5).access_s == 15.0


def test_a_second_run_goes_on_with_the_budget_of_the_first(tmp_path: Path) -> None:
    options: dict[str, Any] = {"cache_dir": tmp_path, "max_reads": 25, "max_qpu_seconds": 9.0}
    first = backend(Scripted(all_up, problem_timing_data=TIMING), **options)
    first.sample(ONE, 20, seed=0)
    fake = Scripted(all_up, problem_timing_data=TIMING)
    second = backend(fake, **options)
    assert second.sample(ONE, 20, seed=0).info["reads_spent"] == 20  # from the cache
    with pytest.raises(BudgetError, match=r"max_reads: expected at most 25 .* got 20 used and 6 more"):
        second.sample(ONE, 6, seed=1)
    assert not fake.calls
    assert second.dry_run(ONE, 6, seed=1).reads_left == 5
    second.sample(ONE, 5, seed=1)
    assert (first.budget.reads, first.budget.seconds) == (25, second.budget.seconds)
    # Without a folder, an object counts alone.
    assert backend(Scripted(all_up), max_reads=25).budget.reads == 0


@pytest.mark.parametrize("folder", [False, True])
def test_submissions_that_timed_out_are_counted_up_to_the_budget(folder: bool, tmp_path: Path) -> None:
    """Two time-outs and a lost connection of 10 reads each, then an answer: 30 reads may have been answered."""
    errors = [TimeoutError(), PollingTimeout(), ConnectionResetError()]
    options: dict[str, Any] = {"cache_dir": tmp_path} if folder else {}
    sampler = backend(Scripted(Failing(*errors), problem_timing_data=TIMING), **options)
    info = sampler.sample(ONE, 10, seed=0).info
    assert (info["reads_spent"], info["qpu_seconds_spent"]) == (30, pytest.approx(3 * ESTIMATE))
    fake = Scripted(Failing(*[TimeoutError()] * 9))
    with pytest.raises(BudgetError, match="got 20 used and 10 more"):
        backend(fake, max_reads=25).sample(ONE, 10, seed=0)
    assert len(fake.calls) == 2


def test_what_was_under_way_when_a_run_ended_is_counted(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        backend(Scripted(Failing(KeyboardInterrupt())), cache_dir=tmp_path).sample(ONE, 10, seed=0)
    assert backend(Scripted(all_up), cache_dir=tmp_path).budget.reads == 10


# the dry run


def test_a_dry_run_submits_nothing_and_knows_the_cache(tmp_path: Path) -> None:
    fake = Scripted(annealed, problem_timing_data=TIMING)
    sampler = backend(fake, cache_dir=tmp_path, together=2, max_reads=100, max_qpu_seconds=9.0)
    ising = make_problem((5,), 4, seed=1)
    sampler.sample(Ising(ising.fields[:2], ising.couplings), 10, seed=3)
    report = sampler.dry_run(ising, 10, seed=3)
    assert len(fake.calls) == 1
    assert (report.problems, report.submissions, report.cached, report.reads) == (5, 3, 1, 20)
    assert (report.logical_variables, report.qubits, report.longest_chain) == (8, 8, 1)
    wanted = sum(estimated_access_us(TIMING, qubits, {"num_reads": 10}) for qubits in (8, 4)) / 1e6
    assert report.access_s == pytest.approx(wanted)
    assert report.reads_left == 90
    assert "problems: 5; submissions: 3, answered by the cache: 1" in str(report)
    assert sampler.sample(ising, 10, seed=3).info["cached_submissions"] == 1
    assert len(fake.calls) == 3


@pytest.mark.parametrize("folder", [False, True])
def test_what_was_refused_is_not_counted(folder: bool, tmp_path: Path) -> None:
    own = Budget(5, None, tmp_path / "spent" if folder else None)
    own.hold(3, 0.5)
    with pytest.raises(BudgetError, match="got 3 used and 4 more"):
        own.hold(4, 0.5)
    assert (own.reads, own.seconds) == (3, 0.5)


def spending(folder: Path) -> None:
    """Submissions of one read until the budget of 60 is used up."""
    sampler = backend(Scripted(all_up), cache_dir=folder, max_reads=60)
    with suppress(BudgetError):
        for seed in range(100):
            sampler.sample(ONE, 1, seed=1000 * os.getpid() + seed)


# Without the package, which imports torch.
IMPORTED = (
    "import runpy, sys; from pathlib import Path\n"
    f"budget = runpy.run_path({budget.__file__!r})['Budget'](path=Path(sys.argv[1]))\n"
)


def added_by_processes(path: Path, processes: int, entries: int) -> list[int]:
    """The sums that entries of one read gave, in any order."""
    code = f"{IMPORTED}print(*(budget.add(1, 0.5).reads for _ in range({entries})))"
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    return [int(told) for process in running for told in process.communicate(timeout=120)[0].split()]


def test_processes_see_each_other(tmp_path: Path) -> None:
    """Of 160 entries of four processes, each sum includes those before it: no two are the same."""
    assert sorted(added_by_processes(tmp_path / "spent.json", 4, 40)) == list(range(1, 161))
    assert Budget(path=tmp_path / "spent.json").total() == (160, 80.0)


def test_threads_share_a_budget(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: spending(tmp_path), range(4)))
    assert Budget(path=tmp_path / "spent.json").total().reads == 60


DAMAGE: list[tuple[bytes, str]] = [
    (b"", "Expecting value"),
    (b"not a count of anybody", "Expecting value"),
    (b'{"reads": 3, "secon', "Unterminated string"),
    (b"\xff\xfe{", "can't decode|invalid start|Expecting|Unexpected"),
    (b"[3, 0.5]", "other entries"),
    (b"3", "not iterable"),
    (b"{}", "other entries"),
    (b'{"reads": 3}', "other entries"),
    (b'{"reads": 3, "seconds": 0.5, "more": 1}', "other entries"),
    (b'{"reads": 3, "reads": 0, "seconds": 0.5}', "given twice"),
    (b'{"reads": -5, "seconds": 0.5}', "reads: expected an integer >= 0, got -5"),
    (b'{"reads": "many", "seconds": 0.5}', "reads: expected an integer >= 0, got 'many'"),
    (b'{"reads": 3.0, "seconds": 0.5}', "reads: expected an integer >= 0, got 3.0"),
    (b'{"reads": true, "seconds": 0.5}', "reads: expected an integer >= 0, got True"),
    (b'{"reads": null, "seconds": 0.5}', "reads: expected an integer >= 0, got None"),
    (b'{"reads": 3, "seconds": -0.5}', "seconds: expected a number"),
    (b'{"reads": 3, "seconds": null}', "seconds: expected a number"),
    (b'{"reads": 3, "seconds": NaN}', "expected finite numbers"),
    (b'{"reads": 3, "seconds": 9e999}', "seconds: expected a number"),
    (b"[" * 2000, "nested too deeply"),
]


@pytest.mark.parametrize(("content", "why"), DAMAGE, ids=range(len(DAMAGE)))
def test_a_file_of_counts_that_is_damaged_is_refused(content: bytes, why: str, tmp_path: Path) -> None:
    path, fake = tmp_path / "spent.json", Scripted(all_up)
    Budget(path=path).add(3, 0.5)
    path.write_bytes(content)
    expected = (
        rf"cache_dir: expected reads and seconds in '.*spent.json', got a damaged file .*({why}).*; restore a"
    )
    for use in (
        lambda: Budget(path=path).total(),
        lambda: Budget(path=path).add(1, 0.0),
        lambda: backend(fake, cache_dir=tmp_path).sample(ONE, 1, seed=0),
    ):
        with pytest.raises(ValueError, match=expected):
            use()
    assert not fake.calls
    path.unlink()
    assert Budget(path=path).add(2, 0.25) == (2, 0.25)


@pytest.mark.skipif(os.name == "nt", reason="the system has no such permissions")
def test_the_file_of_counts_has_the_permissions_of_other_files(tmp_path: Path) -> None:
    Budget(path=tmp_path / "spent.json").add(1, 0.0)
    create_file(tmp_path / "other", b"")
    assert (tmp_path / "spent.json").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert sorted(path.name for path in tmp_path.iterdir()) == [".spent.json.lock", "other", "spent.json"]


def test_a_process_that_is_killed_in_an_entry_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "spent.json"
    Budget(path=path).add(1, 0.5)
    code = f"{IMPORTED}import os; os.replace = lambda *_: os.kill(os.getpid(), 9); budget.add(98, 0.5)"
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -9
    assert Budget(path=path).total() == (1, 0.5)
    assert Budget(path=path).add(1, 0.5) == (2, 1.0)


def test_a_disk_that_takes_nothing_is_told_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Scripted(all_up)
    with monkeypatch.context() as full:
        full.setattr("diabat.files.os.write", raising(errno.ENOSPC, "No space left on device"))
        with pytest.raises(
            BudgetError, match=r"cannot write '.*/spent.json' \(No space left on device\); nothing"
        ):
            backend(fake, cache_dir=tmp_path).sample(ONE, 1, seed=0)
    assert not fake.calls
    assert backend(fake, cache_dir=tmp_path).sample(ONE, 1, seed=0).info["reads_spent"] == 1


def test_links_in_the_folder_are_not_followed(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "cache"
    victim.write_text('{"reads": 0, "seconds": 0.0}')
    folder.mkdir()
    (folder / "spent.json").symlink_to(victim)
    with pytest.raises(BudgetError, match=r"spent.json' \(a symbolic link, which is not followed\)"):
        backend(Scripted(all_up), cache_dir=folder).sample(ONE, 1, seed=0)
    (folder / "spent.json").unlink()
    os.mkfifo(folder / "spent.json")
    with pytest.raises(BudgetError, match=r"spent.json' \(no regular file\)"):
        backend(Scripted(all_up), cache_dir=folder).sample(ONE, 1, seed=0)
    (folder / "spent.json").unlink()
    (folder / ".spent.json.lock").symlink_to(victim)
    with pytest.raises(ValueError, match=r"cache_dir: cannot lock '.*spent.json.lock'"):
        backend(Scripted(all_up), cache_dir=folder).sample(ONE, 1, seed=0)
    assert victim.read_text() == '{"reads": 0, "seconds": 0.0}'
