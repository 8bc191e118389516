"""A model and a task so small that a whole training takes a tenth of a second."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from diabat.models import Transformer, TransformerOptions
from diabat.tasks import BracketOptions, Task, brackets
from diabat.training import TrainOptions, TrainResult, train

OPTIONS = TrainOptions(
    learning_rate=1e-2,
    coupling_learning_rate=1e-2,
    batch_size=16,
    max_epochs=3,
    checkpoint_every=2,
    log_every=1,
    seed=3,
)


def tiny_task() -> Task:
    """40 sequences: batches of 16, 16 and 8."""
    return brackets(BracketOptions(window=4, num_train=40, num_validation=16))


def tiny_model(task: Task, seed: int = 0) -> Transformer:
    """One layer of Boltzmann attention with exact marginals."""
    torch.manual_seed(seed)
    options = TransformerOptions(embed_dim=8, ffn_dim=8, dropout=0.1, mode="h+J")
    return Transformer(options, task.vocab_size, task.num_classes, task.window)


def tiny_train(
    folder: Path, *, resume: bool = False, model: Transformer | None = None, weights: int = 0, **changes: Any
) -> TrainResult:
    """Train in a folder, from the weights of a seed; a run that has a checkpoint must not depend on them."""
    task = tiny_task()
    model = tiny_model(task, weights) if model is None else model
    return train(model, task, replace(OPTIONS, **changes), folder, resume=resume, progress=False)
