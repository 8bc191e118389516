"""A worker under torchrun is killed; as a program, what each of the workers does: ``fuzz.faults.torchrun RUN``."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from fuzz.faults.session import saved_step
from fuzz.faults.works import difference
from fuzz.tiny import tiny_train

_STEPS = 60


def torchrun(folder: Path) -> Iterator[str]:
    """Two processes share a run; one is killed (rank 1, then rank 0), torchrun ends, and the run is resumed by two."""
    straight = folder / "straight"
    if _wait(_start(straight)):
        yield f"the undisturbed run failed: {_said(straight)}"
        return
    for victim in (1, 0):
        run = folder / f"killed-{victim}"
        process = _start(run)
        while saved_step(run) < _STEPS // 3 and process.poll() is None:
            time.sleep(0.005)
        os.kill(int((folder / f"{run.name}-{victim}.pid").read_text()), signal.SIGKILL)
        if not _wait(process):
            yield f"rank {victim}: torchrun did not notice, or the run ended before the kill"
        elif saved_step(run) < _STEPS // 3:
            yield f"rank {victim}: the checkpoint is gone"
        else:
            yield f"does not resume: {_said(run)}" if _wait(_start(run)) else difference(run, straight)


def _start(run: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command += ["--module", "fuzz.faults.torchrun", str(run)]
    with run.with_suffix(".stderr").open("wb") as log:
        return subprocess.Popen(
            command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=log
        )


def _said(run: Path) -> str:
    """What its workers said first; torchrun adds its own words behind."""
    return run.with_suffix(".stderr").read_text(errors="replace")[:3000]


def _wait(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(timeout=300)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait() or 1


def _refuse_threads_left() -> None:
    """Exit with 3 where a thread of the process group still runs after its end: it aborts some exits."""
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    if left := [name for name in names if "gloo" in name]:
        print("threads of the process group still run after its end:", *left, file=sys.stderr, flush=True)
        os._exit(3)


if __name__ == "__main__":
    atexit.register(_refuse_threads_left)  # before the group is made, so that it is called after its end
    torch.set_num_threads(1)
    shared = Path(sys.argv[1])
    begun = (shared / "config.json").exists()
    (shared.parent / f"{shared.name}-{os.environ['RANK']}.pid").write_text(str(os.getpid()))
    tiny_train(shared, resume=begun, max_epochs=10_000, max_steps=_STEPS, patience=10_000, checkpoint_every=1)
