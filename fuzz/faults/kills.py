"""kill -9 at random moments past the first checkpoint, and of a worker under torchrun."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diabat.training import load_model
from fuzz.faults.session import difference, saved_step, session

LONG: dict[str, Any] = {"max_epochs": 300, "patience": 10_000, "checkpoint_every": 2, "log_every": 1}
"""900 steps: some ten seconds, which the kills fall into."""
SHARED_STEPS = 60


def kills(folder: Path, wanted: int, seed: int) -> Iterator[str]:
    """Kill one run repeatedly, each time after a checkpoint, and resume it; yield what was lost after each kill.

    A run that ends before it was killed ``wanted`` times is compared with the undisturbed one, and a new one begins.
    """
    straight, delays, done, runs = folder / "straight", random.Random(seed), 0, 0
    session(straight, **LONG)
    while done < wanted:
        runs += 1
        run = folder / f"run-{runs}"
        while True:
            delay = delays.uniform(0, 0.5) if done < wanted else None
            ending = session(run, kill_after=delay, **LONG)
            if ending.kind == "killed":
                done += 1
                yield _still_loads(run)
                continue
            if ending.kind != "done":
                yield f"does not resume: {ending.text}"
                return
            if lost := difference(run, straight):
                yield f"run {runs}: {lost}"
            break


def _still_loads(run: Path) -> str:
    load_model(run, "latest")
    return "" if saved_step(run) >= 0 else "the checkpoint is gone"


def torchrun(folder: Path, victims: tuple[int, ...] = (1, 0)) -> Iterator[str]:
    """Two processes share a run; one of them is killed, torchrun ends, and the run is resumed by two.

    Args:
        folder: To work in.
        victims: Ranks to kill, one run for each.
    """
    straight = folder / "straight"
    if _wait(_start(straight)):
        yield "the undisturbed run failed"
        return
    for victim in victims:
        run = folder / f"killed-{victim}"
        process = _start(run)
        while saved_step(run) < SHARED_STEPS // 3 and process.poll() is None:
            time.sleep(0.005)
        os.kill(int((run.parent / f"{run.name}-{victim}.pid").read_text()), signal.SIGKILL)
        if not _wait(process):
            yield f"rank {victim}: torchrun did not notice, or the run ended before the kill"
            continue
        if lost := _still_loads(run):
            yield lost
        yield "does not resume" if _wait(_start(run)) else difference(run, straight)


def _start(run: Path) -> subprocess.Popen[bytes]:
    run.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    module = ["--module", "fuzz.faults.shared", str(run), str(SHARED_STEPS)]
    return subprocess.Popen(
        [*command, *module],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _wait(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(timeout=300)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait() or 1
