"""Decoders of random weights, built from configurations: grouped heads, sliding windows, mixed layers, soft caps."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

VOCABULARY, LAYERS, HEADS, GROUPS, LENGTH = 40, 4, 8, 4, 12
SIZE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
NAMES = ("llama", "gpt2", "mistral", "qwen2")


def model(name: str, *, attention: str = "sdpa", dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """Build a model in training mode, as some have it before they are looked at."""
    import transformers

    torch.manual_seed(seed)
    mixed = ["full_attention", "sliding_attention"] * (LAYERS // 2)
    config = {
        "llama": lambda: transformers.LlamaConfig(**SIZE),
        "mistral": lambda: transformers.MistralConfig(**SIZE, sliding_window=4),
        "qwen2": lambda: transformers.Qwen2Config(
            **SIZE, use_sliding_window=True, sliding_window=4, layer_types=mixed
        ),
        "gpt2": lambda: transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=32, n_layer=LAYERS, n_head=GROUPS, n_positions=64, bos_token_id=0,
            eos_token_id=1,
        ),
        "gemma2": lambda: transformers.Gemma2Config(
            **SIZE, head_dim=8, sliding_window=4, query_pre_attn_scalar=8, attn_logit_softcapping=1.0
        ),
        "gpt_oss": lambda: transformers.GptOssConfig(
            **SIZE, head_dim=8, num_local_experts=2, num_experts_per_tok=1, sliding_window=4, layer_types=mixed,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        ),
    }[name]()  # fmt: skip
    built = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return built.train()


def samples(count: int = 3, seed: int = 0) -> list[dict[str, Any]]:
    """Questions of different lengths with three choices."""
    g = torch.Generator().manual_seed(seed)
    return [
        {"input_ids": torch.randint(VOCABULARY, (LENGTH - k % 3,), generator=g).tolist(), "choices": [3, 17, 29],
         "label": 17}
        for k in range(count)
    ]  # fmt: skip


def logits(built: Any, tokens: list[int]) -> Tensor:
    """Last logits of a model as it is, float64 [vocabulary]."""
    mode = built.training
    with torch.no_grad():
        found = built.eval()(input_ids=torch.tensor([tokens]), logits_to_keep=1).logits[0, -1].double()
    built.train(mode)
    return found


def log_odds(z: Tensor) -> Tensor:
    """Of choice 17 among those of ``samples``."""
    return z[17] - torch.logsumexp(z[[3, 29]], 0)


def without(built: Any, name: str, heads: list[tuple[int, int]], absent: str) -> Any:
    """Copy of a model with heads (layer, head) absent by their weights: W_q times 0 or ε, or W_o times 0."""
    changed = copy.deepcopy(built)
    for layer, head in heads:
        with torch.no_grad():
            if name == "gpt2":
                block = changed.transformer.h[layer].attn
                width = block.head_dim
                part = slice(head * width, (head + 1) * width)
                if absent == "dropped":
                    block.c_proj.weight[part] = 0
                else:
                    block.c_attn.weight[:, part] *= 0 if absent == "uniform" else 1e-5
                    block.c_attn.bias[part] *= 0 if absent == "uniform" else 1e-5
            else:
                block = changed.model.layers[layer].self_attn
                width = block.head_dim
                part = slice(head * width, (head + 1) * width)
                if absent == "dropped":
                    block.o_proj.weight[:, part] = 0
                else:
                    block.q_proj.weight[part] *= 0 if absent == "uniform" else 1e-5
                    if block.q_proj.bias is not None:
                        block.q_proj.bias[part] *= 0 if absent == "uniform" else 1e-5
    return changed


def tokenizer() -> Any:
    """A byte-level tokenizer of a few merges, made here."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    text = ["the man sleeps good bad answer : good bad the man a dog"] * 8
    inner.train_from_iterator(
        text, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<s>", "</s>"], show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
