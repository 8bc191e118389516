"""A model and a task so small that a whole training takes a fraction of a second."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diabat.models import Transformer, TransformerOptions
from diabat.tasks import BracketOptions, Task, brackets
from diabat.training import TrainOptions, TrainResult, load_model, train
from diabat.training.checkpoint import find_checkpoints

OPTIONS = TrainOptions(
    learning_rate=1e-2,
    coupling_learning_rate=1e-2,
    batch_size=16,
    max_epochs=3,
    checkpoint_every=2,
    log_every=1,
    seed=3,
)


def tiny_task(num_train: int = 40) -> Task:
    """40 sequences: batches of 16, 16 and 8."""
    return brackets(BracketOptions(window=4, num_train=num_train, num_validation=16))


def tiny_model(task: Task, mode: str = "h+J", seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    options = TransformerOptions(embed_dim=8, ffn_dim=8, dropout=0.1, mode=mode)
    return Transformer(options, task.vocab_size, task.num_classes, task.window)


def tiny_train(
    run_dir: Path,
    *,
    resume: bool = False,
    progress: bool = False,
    model: Transformer | None = None,
    task: Task | None = None,
    **changes: Any,
) -> TrainResult:
    task = task or tiny_task()
    # A run resumed from a checkpoint must not depend on the weights that it is given.
    has_checkpoint = bool(find_checkpoints(run_dir, "step"))
    model = model or tiny_model(task, seed=99 if resume and has_checkpoint else 0)
    return train(model, task, replace(OPTIONS, **changes), run_dir, resume=resume, progress=progress)


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl without wall times, which differ between any two runs."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "wall_s"} for line in lines]


def same_weights(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def assert_same_run(a: Path, b: Path) -> None:
    assert metrics(a) == metrics(b)
    assert same_weights(load_model(a, "latest"), load_model(b, "latest"))
    assert same_weights(load_model(a, "best"), load_model(b, "best"))
