"""A run that was interrupted ends, after it was resumed, bit for bit as one that was not; kills are in fuzz/faults."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from run_checks import assert_same_run, metrics

from diabat.lab.training import TrainingInterrupted
from fuzz.faults.session import saved_step
from fuzz.tiny import OPTIONS, tiny_model, tiny_task, tiny_train


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    tiny_train(folder)
    return folder


@contextmanager
def handled(number: int, handler: Any) -> Iterator[None]:
    """Set the handler of a signal, which a process in the background ignores."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_tells_how_to_continue(
    tmp_path: Path, straight: Path, number: signal.Signals
) -> None:
    task = tiny_task()
    model = tiny_model(task)
    calls = []

    def interrupt(*_: object) -> None:
        calls.append(1)
        if len(calls) == 5:
            os.kill(os.getpid(), number)

    handle = model.head.register_forward_hook(interrupt)
    with handled(number, signal.default_int_handler):
        with pytest.raises(TrainingInterrupted, match=r"interrupted after step \d+; .*resume=True"):
            tiny_train(tmp_path / "run", model=model, task=task, checkpoint_every=100)
        assert signal.getsignal(number) is signal.default_int_handler
    handle.remove()
    tiny_train(tmp_path / "run", resume=True, checkpoint_every=100)
    assert_same_run(tmp_path / "run", straight)


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    model = tiny_model(tiny_task())

    def twice(*_: object) -> None:
        for _attempt in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    model.head.register_forward_hook(twice)
    with handled(signal.SIGINT, signal.default_int_handler), pytest.raises(KeyboardInterrupt):
        tiny_train(tmp_path / "run", model=model)
    assert saved_step(tmp_path / "run") == 0


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    model = tiny_model(tiny_task())
    model.head.register_forward_hook(lambda *_: os.kill(os.getpid(), signal.SIGINT))
    with handled(signal.SIGINT, signal.SIG_IGN):
        assert tiny_train(tmp_path / "run", model=model).epochs == OPTIONS.max_epochs


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    first = tiny_train(tmp_path / "run")
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*")}
    assert tiny_train(tmp_path / "run", resume=True) == first
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*")} == before


def test_a_finished_run_can_be_prolonged(tmp_path: Path, straight: Path) -> None:
    first = tiny_train(tmp_path / "run", max_epochs=2)
    second = tiny_train(tmp_path / "run", resume=True, patience=4)
    assert_same_run(tmp_path / "run", straight)
    assert 0 < first.cpu_seconds < second.cpu_seconds
    assert 0 < first.seconds < second.seconds


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_precision_is_that_of_every_forward_pass(tmp_path: Path, precision: Any) -> None:
    """Also of a resumed run, whose weights stay in float32."""
    seen, task = set(), tiny_task()
    for name, epochs in (("whole", 3), ("parts", 1), ("parts", 3)):
        model = tiny_model(task)
        model.head.register_forward_hook(lambda _, __, out: seen.add(out.dtype))
        resume = (tmp_path / name).exists()
        tiny_train(tmp_path / name, model=model, precision=precision, max_epochs=epochs, resume=resume)
        assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert seen == {getattr(torch, precision)}
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_metrics_after_the_checkpoint_are_cut_off(tmp_path: Path, straight: Path) -> None:
    tiny_train(tmp_path / "run", max_epochs=2)
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"event": "step", "step": 7}\n{"event": "st')
    tiny_train(tmp_path / "run", resume=True)
    assert metrics(tmp_path / "run") == metrics(straight)
