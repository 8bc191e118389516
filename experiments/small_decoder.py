"""A small grouped-query decoder trained on Tiny Shakespeare, for measurements on heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diabat.tasks.data import fetch

LENGTH, BATCH = 128, 16


def trained_decoder(
    steps: int, *, layers: int = 4, heads: int = 8, groups: int = 2, width: int = 128, seed: int = 0
) -> tuple[Any, Tensor, int]:
    """Train a Llama of random initialisation on characters; return it, the tokens and the number of symbols."""
    import transformers

    text = fetch("tinyshakespeare").read_text(encoding="utf-8")
    symbols = sorted(set(text))
    index = {symbol: k for k, symbol in enumerate(symbols)}
    tokens = torch.tensor([index[symbol] for symbol in text])
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=len(symbols), hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=groups, max_position_embeddings=LENGTH,
        bos_token_id=0, eos_token_id=1, pad_token_id=None,
    )  # fmt: skip
    model: Any = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=max(steps, 2))
    train = tokens[: len(tokens) * 9 // 10]
    g = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(steps):
        batch = draw_batch(train, g)
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model.eval(), tokens, len(symbols)


def draw_batch(
    tokens: Tensor, g: torch.Generator, *, rows: int = BATCH, length: int = LENGTH
) -> dict[str, Tensor]:
    """Random pieces of a text, every token a target."""
    starts = torch.randint(len(tokens) - length, (rows,), generator=g)
    pieces = torch.stack([tokens[start : start + length] for start in starts])
    return {"input_ids": pieces, "labels": pieces.clone()}
