"""Small decoders with fresh LoRA adapters, batches and trainings."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VOCABULARY, LAYERS, HEADS = 48, 3, 4
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


def decoder(**changes: Any) -> Any:
    """A Llama with grouped queries: four heads, two of keys and values."""
    import transformers as t

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "initializer_range": 0.25,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    return t.LlamaForCausalLM(t.LlamaConfig(**sizes | changes))


def adapted(base: Any = None, *, targets: tuple[str, ...] = PROJECTIONS, **options: Any) -> Any:
    """A PEFT model with adapters that begin at zero, without dropout unless it is given."""
    from peft import LoraConfig, get_peft_model

    config: dict[str, Any] = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "target_modules": list(targets)}
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft reads a property that transformers renames
        return get_peft_model(decoder() if base is None else base, LoraConfig(**config | options))


def rows(count: int, length: int = 12, padding: int = 0, seed: int = 1) -> list[dict[str, Tensor]]:
    """Examples; the first ``padding`` positions of every second one are padding."""
    g = torch.Generator().manual_seed(seed)
    found = []
    for index in range(count):
        ids = torch.randint(3, VOCABULARY, (length,), generator=g)
        mask = torch.ones(length, dtype=torch.int64)
        mask[: padding * (index % 2)] = 0
        labels = torch.where(mask.bool(), ids, -100)
        found.append({"input_ids": ids * mask, "attention_mask": mask, "labels": labels})
    return found


def batch(count: int = 4, **options: Any) -> dict[str, Tensor]:
    """The examples of `rows` as one batch, [B, T]."""
    examples = rows(count, **options)
    return {key: torch.stack([example[key] for example in examples]) for key in examples[0]}


def trainer(
    folder: Path, model: Any, examples: list[dict[str, Tensor]], game: Any, kind: Any = None, **changes: Any
) -> Any:
    """A GameTrainer of 8 examples per step, in their order, of six steps."""
    from transformers import TrainingArguments

    from diabat.huggingface import GameTrainer

    settings: dict[str, Any] = {
        "max_steps": 6,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "train_sampling_strategy": "sequential",
        "seed": 0,
        "dataloader_pin_memory": False,
    }
    args = TrainingArguments(str(folder), **settings | changes)
    return (kind or GameTrainer)(model, args, train_dataset=examples, game=game)


def adapters(model: Any) -> dict[str, Tensor]:
    """Copies of the trained parameters."""
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def gap(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Largest difference between two sets of parameters."""
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def tokenizer(folder: Path) -> Any:
    """Words w0 .. w47."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<bos>": 1, "<eos>": 2} | {f"w{i}": i for i in range(3, VOCABULARY)}
    raw = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
