"""Comparing the folders of two runs, and runs of two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diabat.lab.training import load_model


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl without times, which differ between any two runs."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("wall_s", "cpu_s")} for line in lines]


def same_weights(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def assert_same_run(a: Path, b: Path) -> None:
    assert metrics(a) == metrics(b)
    assert same_weights(load_model(a, "latest"), load_model(b, "latest"))
    assert same_weights(load_model(a, "best"), load_model(b, "best"))


def torchrun(*arguments: str | Path, cwd: Path | None = None) -> None:
    """Run a script, or ``-m`` and a module, in two processes that train together."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr[-3000:]
