"""A model and a task so small that a whole training takes a fraction of a second, for the tests and for the fuzz."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from diabat.lab.models import Transformer, TransformerOptions
from diabat.lab.tasks import BracketOptions, Task
from diabat.lab.training import TrainOptions, TrainResult, train
from diabat.lab.training.folder import LATEST
from diabat.samplers.base import Sampler

# Sums over threads round differently: also for fixtures of whole modules, and in processes that tests start.
torch.set_num_threads(1)

OPTIONS = TrainOptions(
    learning_rate=1e-2, coupling_learning_rate=1e-2, batch_size=16, max_epochs=3, checkpoint_every=2, log_every=1,
    seed=3,
)  # fmt: skip


def tiny_task(num_train: int = 40) -> Task:
    """40 sequences: batches of 16, 16 and 8."""
    return BracketOptions(window=4, num_train=num_train, num_validation=16).build()


def tiny_model(task: Task, mode: str = "h+J", seed: int = 0, sampler: str | Sampler = "exact") -> Transformer:
    """One layer of Boltzmann attention, with exact marginals if no sampler is given."""
    torch.manual_seed(seed)
    options = TransformerOptions(embed_dim=8, ffn_dim=8, dropout=0.1, mode=mode)
    return Transformer(options, task.vocab_size, task.num_classes, task.window, sampler)


def tiny_train(
    run_dir: Path,
    *,
    resume: bool = False,
    progress: bool = False,
    model: Transformer | None = None,
    task: Task | None = None,
    weights: int | None = None,
    **changes: Any,
) -> TrainResult:
    """Train in a folder, from the weights of a seed.

    A run that is resumed from a checkpoint must not depend on its initial weights: without ``weights`` they then come
    from another seed.
    """
    task = task or tiny_task()
    if weights is None:
        weights = 99 if resume and (run_dir / LATEST).exists() else 0
    model = model or tiny_model(task, seed=weights)
    return train(model, task, replace(OPTIONS, **changes), run_dir, resume=resume, progress=progress)
