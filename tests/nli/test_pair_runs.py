"""Whole runs of pair classifiers: they learn, are resumed bit by bit, and are shared by processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_checks import assert_same_run, metrics

import diabat
from diabat.models import POOLINGS
from diabat.samplers import UnsupportedError
from diabat.tasks import PairTask
from diabat.training import CheckpointError, evaluate, load_model
from diabat.training.checkpoint import find_checkpoints
from diabat.training.evaluate import predict
from diabat.training.trainer import Trainer

from .tiny_pairs import OPTIONS, furthest, tiny_model, tiny_train

RECIPE = replace(
    OPTIONS, accumulation=2, warmup=0.2, decay_epochs=(1,), label_smoothing=0.1, mixup=0.2, ema_decay=0.9
)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_every_pooling_learns(tmp_path: Path, encoder: Path, task: PairTask, pooling: str) -> None:
    result = tiny_train(tmp_path / "run", encoder, task, replace(OPTIONS, max_epochs=12), pooling=pooling)
    losses = [line["train_loss"] for line in metrics(tmp_path / "run") if line["event"] == "epoch"]
    assert losses[-1] < 0.8 * losses[0]
    assert result.epochs == 12


class Killed(BaseException):
    """Stands for kill -9: nothing in the package may catch it."""


@pytest.mark.parametrize(
    ("pooling", "precision"), [("neurogame", "float32"), ("boltzmann", "bfloat16"), ("softmax", "float16")]
)
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(
    tmp_path: Path, encoder: Path, task: PairTask, pooling: str, precision: Any
) -> None:
    """Data order, dropout, mixup, coalitions, schedule, average and loss scale all go on where they were."""
    options = replace(RECIPE, precision=precision)
    tiny_train(tmp_path / "straight", encoder, task, options, pooling=pooling)
    taken: list[int] = []
    step = Trainer.step

    def mortal(self: Trainer) -> None:
        taken.append(1)
        if len(taken) == 6:
            raise Killed
        step(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", mortal)
        with pytest.raises(Killed):
            tiny_train(tmp_path / "run", encoder, task, options, pooling=pooling)
    assert find_checkpoints(tmp_path / "run", "step")[0].name == "step-00000004"
    tiny_train(tmp_path / "run", encoder, task, options, resume=True, pooling=pooling)
    assert_same_run(tmp_path / "run", tmp_path / "straight")


def test_a_warmup_fixes_the_number_of_epochs(tmp_path: Path, encoder: Path, task: PairTask) -> None:
    tiny_train(tmp_path / "run", encoder, task, replace(RECIPE, max_steps=1), pooling="mean")
    longer = replace(RECIPE, max_epochs=3)
    with pytest.raises(CheckpointError, match=r"max_epochs: expected 2 as in .*, got 3"):
        tiny_train(tmp_path / "run", encoder, task, longer, resume=True, pooling="mean")


def test_a_checkpoint_without_the_newer_options_is_resumed(
    tmp_path: Path, encoder: Path, task: PairTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diabat.training import trainer

    monkeypatch.setattr(
        trainer, "asdict", lambda value: _without(vars(value), "accumulation", "decay_epochs")
    )
    tiny_train(tmp_path / "run", encoder, task, replace(OPTIONS, max_steps=1), pooling="mean")
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"accumulation: expected 1 as in .*, got 2"):
        tiny_train(
            tmp_path / "run", encoder, task, replace(OPTIONS, accumulation=2), resume=True, pooling="mean"
        )
    tiny_train(tmp_path / "run", encoder, task, OPTIONS, resume=True, pooling="mean")


def _without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k not in names}


def test_predictions_are_in_the_order_of_the_split(encoder: Path, task: PairTask) -> None:
    model = tiny_model(encoder, task, pooling="mean")
    logits, labels = predict(model, task.train, batch_size=7)
    assert torch.equal(labels, task.train.labels)
    loss, accuracy = evaluate(model, task.train)
    assert float((logits.argmax(1) == labels).float().mean()) == pytest.approx(accuracy)
    assert float(torch.nn.functional.cross_entropy(logits, labels)) == pytest.approx(loss, rel=1e-5)
    assert evaluate(model, task.train, batch_size=3)[0] == pytest.approx(loss, rel=1e-5)


def test_pairs_too_long_for_enumeration_are_refused_before_the_run_starts(
    tmp_path: Path, encoder: Path, task: PairTask
) -> None:
    """Of the longest batch, and with what the pooling leaves out not counted."""
    longest = int(task.train.lengths.max())
    budget = 1.9 * 2.0**longest / 2**22  # of the two heads of the longest pair
    exact = diabat.sampler("exact", memory_budget_mb=budget)
    with pytest.raises(UnsupportedError, match=rf"^sampler: 'exact' .* up to {longest} tokens and 2 heads"):
        tiny_train(tmp_path / "run", encoder, task, replace(OPTIONS, max_steps=1), sampler=exact)
    assert not (tmp_path / "run").exists()
    once = replace(OPTIONS, max_steps=1)
    tiny_train(tmp_path / "run", encoder, task, once, sampler=exact, special_tokens=False)


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from nli.test_pair_runs import SHARED, SHARED_MODEL
from nli.tiny_pairs import tiny_task, tiny_train
encoder, data, out = map(Path, sys.argv[2:5])
tiny_train(out, encoder, tiny_task(encoder, data), SHARED, resume=len(sys.argv) > 5, **SHARED_MODEL)
"""
# What is random in a forward pass differs between processes, so there is nothing of it here.
SHARED = replace(OPTIONS, batch_size=8, accumulation=2, warmup=0.2, label_smoothing=0.1, ema_decay=0.9)
SHARED_MODEL: dict[str, Any] = {"pooling": "softmax", "dropout": 0.0, "freeze_encoder": True}


def test_two_processes_train_what_one_does(tmp_path: Path, encoder: Path, data: Path, task: PairTask) -> None:
    pytest.importorskip("accelerate", reason="the extra 'hf' is not installed")
    tiny_train(tmp_path / "one", encoder, task, SHARED, **SHARED_MODEL)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=2",
        str(script),
    ]
    folder = Path(__file__).parent
    arguments = [str(path) for path in (folder.parent, encoder, data, tmp_path / "two")]
    done = subprocess.run(
        [*command, *arguments],
        cwd=folder.parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert [(line["event"], line["step"]) for line in two] == [(line["event"], line["step"]) for line in one]
    for a, b in zip(one, two, strict=True):
        assert {k: pytest.approx(v, abs=1e-5) for k, v in a.items() if k != "event"} == _without(b, "event")
    weights, shared = load_model(tmp_path / "one"), load_model(tmp_path / "two")
    assert furthest(weights, shared) < 1e-4
