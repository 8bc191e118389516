"""Processes that torchrun starts train what one process does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from run_checks import metrics

from diabat.models import Transformer, TransformerOptions
from diabat.tasks import Task
from diabat.training import load_model
from fuzz.tiny import tiny_task, tiny_train

SCRIPT = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_data_parallel import still_model
from fuzz.tiny import tiny_task, tiny_train
task = tiny_task()
tiny_train(Path(sys.argv[1]), task=task, model=still_model(task), accumulation=2)
"""


def still_model(task: Task) -> Transformer:
    """Without dropout, which would differ between processes."""
    torch.manual_seed(0)
    options = TransformerOptions(embed_dim=8, ffn_dim=8, dropout=0.0)
    return Transformer(options, task.vocab_size, task.num_classes, task.window)


@pytest.mark.slow
def test_two_processes_train_what_one_does(tmp_path: Path) -> None:
    task = tiny_task()
    tiny_train(tmp_path / "one", task=task, model=still_model(task), accumulation=2)
    script, here = tmp_path / "script.py", Path(__file__).parent
    script.write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=2",
        str(script),
    ]
    paths = [str(tmp_path / "two"), str(here), str(here.parent), str(here.parents[1])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *paths], env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        assert a.pop("event") == b.pop("event")
        assert a == pytest.approx(b, abs=1e-5)
    weights, shared = (load_model(tmp_path / name, "latest") for name in ("one", "two"))
    assert max(float((weights[name] - shared[name]).abs().max()) for name in weights) < 1e-4
