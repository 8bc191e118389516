"""The base model of the study: a grouped-query decoder that knows half of the facts and reads notes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diabat.runs.heads.facts import World, documents

LAYERS, HEADS, GROUPS, WIDTH = 4, 8, 2, 128
WORLD = World()
STEPS, BATCH = 4000, 32
_RATE = 1.5e-3
_READING = 0.4  # share of the steps in which every document has a note
_SEED = 1_000_000
_THETA, _FREQUENCIES, _STRENGTH = 1e6, 4, 6.0


def decoder() -> Any:
    """A Llama with biases in its attention, not yet trained.

    Half of the query heads of its first layer, those of the first key/value head, attend one or two tokens back, by
    the biases of queries and keys: the entity and the relation of a statement are then known at its value from the
    start.  Without this, a decoder of this size does not learn to read notes in the time given.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": LAYERS,
    }
    heads: dict[str, Any] = {
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "attention_bias": True,
    }
    config = LlamaConfig(
        vocab_size=WORLD.vocabulary, max_position_embeddings=64, initializer_range=WIDTH**-0.5, pad_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": _THETA}, **sizes, **heads,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    first: Any = model.model.layers[0].self_attn
    turn = model.model.rotary_emb.inv_freq[:_FREQUENCIES]
    size, half = WIDTH // HEADS, WIDTH // HEADS // 2
    with torch.no_grad():
        first.k_proj.bias[:_FREQUENCIES] = _STRENGTH
        for head in range(HEADS // GROUPS):
            at, back = torch.arange(_FREQUENCIES) + head * size, 1 + head % 2
            # q R_{j-i} k is largest at j = i - back.
            first.q_proj.bias[at] = _STRENGTH * (turn * back).cos()
            first.q_proj.bias[at + half] = -_STRENGTH * (turn * back).sin()
    return model


def train(steps: int, advance: Callable[[int], None]) -> Any:
    """Train on the old facts: first short documents that all have a note, then those of the world.

    Args:
        steps: Steps of AdamW.
        advance: Called after each step with 1.
    """
    torch.manual_seed(0)
    model = decoder().train()
    optimizer = torch.optim.AdamW(model.parameters(), _RATE, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 50, max(0.02, 2.5 * (1 - step / steps)), 1.0)
    )
    reading, old = replace(WORLD, noted=1.0, facts=2), old_pairs()
    for step in range(steps):
        world, rows = (reading, 2 * BATCH) if step < _READING * steps else (replace(WORLD, noted=0.5), BATCH)
        model(**batch(documents(world, rows, _SEED + step, old))).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        advance(1)
    return model.eval()


def old_pairs() -> np.ndarray:
    """Pairs of the pretraining: every second one that is not unseen."""
    return np.concatenate([WORLD.pairs("seen")[::2], WORLD.pairs("probabilistic")[::2]])


def batch(rows: list[dict[str, Tensor]]) -> Mapping[str, Tensor]:
    """Documents as one batch."""
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
