"""A decoder and an analysis of its heads, so small that they take milliseconds."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch

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
