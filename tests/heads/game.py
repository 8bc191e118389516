"""Small decoders with fresh LoRA adapters, their batches and trainings with GAME-LoRA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiny_decoders as tiny
import torch
from torch import Tensor

from diabat.heads import GameOptions, GameTrainer

HEADS, LAYER = 4, 1


def decoder(**changes: Any) -> Any:
    """A Llama with four heads, two of keys and values."""
    return tiny.decoder("llama", **{"num_attention_heads": HEADS, "num_key_value_heads": 2} | changes)


def adapted(base: Any = None, **options: Any) -> Any:
    """A PEFT model whose adapters begin at zero, in training mode."""
    return tiny.adapted(decoder() if base is None else base, **{"trained": False} | options).train()


def options(**changes: Any) -> GameOptions:
    return GameOptions(**{"layers": [LAYER]} | changes)


def batch(count: int = 4, length: int = 12, **changes: Any) -> dict[str, Tensor]:
    """Examples as one batch, [B, T]."""
    rows = tiny.examples(count, length, **changes)
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def trainer(
    folder: Path, model: Any, game: Any, examples: Any = None, kind: Any = None, **changes: Any
) -> Any:
    """A GameTrainer of 8 examples per step, in their order, of six steps."""
    from transformers import TrainingArguments

    settings: dict[str, Any] = {
        "max_steps": 6, "per_device_train_batch_size": 8, "learning_rate": 1e-2, "logging_steps": 1, "report_to": [],
        "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "train_sampling_strategy": "sequential",
        "dataloader_pin_memory": False,
    }  # fmt: skip
    args = TrainingArguments(str(folder), **settings | changes)
    rows = tiny.examples(48) if examples is None else examples
    return (kind or GameTrainer)(model, args, train_dataset=rows, game=game)


def logged(trainer: Any) -> list[dict[str, float]]:
    """The lines of training, without what differs between runs."""
    return [
        {k: v for k, v in line.items() if k == "loss" or k.startswith("game/")}
        for line in trainer.state.log_history
        if "loss" in line
    ]


def adapters(model: Any) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def gap(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)
