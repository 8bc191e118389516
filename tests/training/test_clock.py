"""Wall-clock and processor time of a run, over all its sessions."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from diabat.training.checkpoint import find_checkpoints, read_checkpoint, save_checkpoint
from diabat.training.state import TrainState
from diabat.training.trainer import Clock
from fuzz.tiny import tiny_train


def epochs(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == "epoch"]


def test_a_clock_goes_on_from_the_times_of_the_state() -> None:
    state = TrainState(seconds=100.0, cpu_seconds=50.0)
    begun, clock = time.process_time(), Clock(state)
    time.sleep(0.05)  # wall-clock time alone
    clock.read(state)
    assert state.cpu_seconds is not None
    assert 100.05 <= state.seconds < 110
    assert 50.0 <= state.cpu_seconds <= 50.0 + time.process_time() - begun + 1e-6
    assert state.cpu_seconds - 50.0 < state.seconds - 100.0
    state.cpu_seconds = None
    clock = Clock(state)
    clock.read(state)
    assert state.cpu_seconds is None


def test_both_times_are_logged_and_grow_over_sessions(tmp_path: Path) -> None:
    first = tiny_train(tmp_path, max_epochs=1)
    second = tiny_train(tmp_path, max_epochs=3, resume=True)
    lines = epochs(tmp_path)
    for name, last in (("wall_s", second.seconds), ("cpu_s", second.cpu_seconds)):
        times = [line[name] for line in lines]
        assert times == sorted(times)
        assert 0 < times[0] < times[2]
        assert last == pytest.approx(times[2], abs=1)
    assert first.cpu_seconds is not None
    assert second.cpu_seconds is not None
    assert 0 < first.cpu_seconds < second.cpu_seconds


def test_a_run_of_an_older_version_has_no_processor_time(tmp_path: Path) -> None:
    tiny_train(tmp_path, max_epochs=1)
    newest = find_checkpoints(tmp_path, "step")[0]
    tensors, facts = read_checkpoint(newest)
    del facts["state"]["cpu_seconds"], facts["files"]
    save_checkpoint(tmp_path, "step", facts.pop("step"), tensors, facts)
    assert tiny_train(tmp_path, max_epochs=2, resume=True).cpu_seconds is None
    assert epochs(tmp_path)[1]["cpu_s"] is None
    assert tiny_train(tmp_path, max_epochs=2, resume=True).cpu_seconds is None


def test_times_do_not_decrease_if_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"monotonic": iter([1000.0, 1002.0, 10.0, 11.0]), "process_time": iter([50.0, 51.0, 3.0, 5.0])}
    clocks = SimpleNamespace(**{name: partial(next, values) for name, values in times.items()})
    monkeypatch.setattr("diabat.training.trainer.time", clocks)
    state = TrainState(seconds=5.0, cpu_seconds=5.0)
    clock, seen = Clock(state), []
    for _ in range(3):
        clock.read(state)
        seen.append((state.seconds, state.cpu_seconds))
    assert seen == [(7.0, 6.0), (7.0, 6.0), (8.0, 8.0)]
