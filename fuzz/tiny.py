"""A model, a task and a decoder so small that a training takes a fraction of a second, for the tests and the fuzz."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
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
    run_dir: Path, *, resume: bool = False, progress: bool = False, model: Transformer | None = None,
    task: Task | None = None, weights: int | None = None, **changes: Any,
) -> TrainResult:  # fmt: skip
    """Train in a folder, from the weights of a seed: another one for a run that is resumed, which must not matter."""
    task = task or tiny_task()
    if weights is None:
        weights = 99 if resume and (run_dir / LATEST).exists() else 0
    model = model or tiny_model(task, seed=weights)
    return train(model, task, replace(OPTIONS, **changes), run_dir, resume=resume, progress=progress)


VOCABULARY, LAYERS, HEADS, GROUPS = 24, 2, 4, 2
QUESTIONS = [{"input_ids": [k, 5, 6], "choices": [3, 7], "answer": 3} for k in range(1, 4)]


@cache
def decoder(seed: int = 0) -> Any:
    """A Llama with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=8, intermediate_size=8, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=GROUPS, max_position_embeddings=32, initializer_range=0.5,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def analyse(folder: Path, **_: Any) -> None:
    """Analyse the heads of the decoder, saved beside the folder, on from where the folder is."""
    from diabat.heads.commands.analysis import AnalysisOptions
    from diabat.heads.commands.analysis import analyse as analyse_heads

    model, data = folder.parent / "model", folder.parent / "questions.jsonl"
    if not data.exists():
        decoder().save_pretrained(model)
        data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    # One coalition at a time: its value does not depend on which others are still to be evaluated.
    analyse_heads(str(model), data, folder, AnalysisOptions(batch_size=1, resamples=50))
