"""A decoder and a tokenizer so small that a case on them takes milliseconds."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

VOCABULARY, LAYERS, HEADS, GROUPS = 24, 2, 4, 2
_WORDS = ("<unk>", "the", "man", "sleeps", "good", "bad", "Answer", ":", "a", "yes", "no", ".")


@cache
def decoder(seed: int = 0) -> Any:
    """A Llama with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=8, intermediate_size=8, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=GROUPS, max_position_embeddings=32, initializer_range=0.5,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@cache
def tokenizer() -> Any:
    """Whole words between white space."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({word: k for k, word in enumerate(_WORDS)}, unk_token=_WORDS[0]))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token=_WORDS[0])
