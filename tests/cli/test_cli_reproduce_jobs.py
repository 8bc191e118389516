"""``diabat reproduce --jobs``: the runs of several processes stop together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_runs import SMALL

from diabat.training.checkpoint import find_checkpoints

PATIENCE = 120
"""Seconds until a test gives up; what it waits for takes a few."""
Started = tuple[subprocess.Popen[str], Path]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    """Two of five endless runs at a time, in a process that does not ignore SIGINT."""
    experiment = tmp_path / "endless.yaml"
    experiment.write_text(
        "title: Endless\nconfig: brackets-t8\nvary: model.mode\npublished: {softmax: null}\nseeds: [0, 1, 2, 3, 4]\n"
    )
    endless = [
        "training.max_epochs=1000000",
        "training.patience=1000000",
        "training.checkpoint_every=1000000",
    ]
    hears = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{hears}; from diabat.cli import main; main()", "reproduce"]
    process = subprocess.Popen(
        [*command, str(experiment), *SMALL, *endless, "--output", str(tmp_path / "runs"), "--jobs", "2"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process, tmp_path / "runs" / "reproduce-endless"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.05)


def steps(folder: Path) -> list[int]:
    """Step of the newest state of every run."""
    return [
        int(find_checkpoints(run, "step")[0].name.removeprefix("step-")) for run in sorted(folder.glob("*"))
    ]


def two_train(folder: Path) -> bool:
    """Whether two runs have finished an epoch, which leaves a best model beside the state of step 0."""
    runs = list(folder.glob("*"))
    return len(runs) == 2 and all(find_checkpoints(run, "best") for run in runs)


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_interrupt_saves_both_runs_and_begins_no_other(started: Started) -> None:
    process, folder = started
    wait_for(lambda: two_train(folder))
    assert steps(folder) == [0, 0]
    # To the command alone; Ctrl-C reaches the workers too, which ignore it.
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "repeat the command to continue" in errors
    after = steps(folder)
    assert len(after) == 2
    assert min(after) > 0
    wait_for(lambda: not is_alive(process.pid))


def test_no_process_outlives_a_killed_command(started: Started) -> None:
    process, folder = started
    wait_for(lambda: two_train(folder))
    process.kill()
    process.communicate()
    wait_for(lambda: not is_alive(process.pid))
