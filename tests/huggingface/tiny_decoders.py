"""Small decoders with random weights: grouped heads, sliding and mixed layers, soft caps, no key/value groups."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

VOCABULARY, LAYERS, HEADS, WINDOW = 48, 3, 8, 5
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.25,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
NAMES = ("llama", "qwen2", "mistral", "gpt2", "gemma2")


def decoder(name: str, seed: int = 0, **changes: Any) -> Any:
    """A causal language model in evaluation mode, with the attention implementation that it has by default."""
    import transformers as t

    torch.manual_seed(seed)
    if name == "llama":
        model: Any = t.LlamaForCausalLM(t.LlamaConfig(**_SIZES | changes))
    elif name == "qwen2":  # the first layer sees everything, the others a window
        mixed = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
        model = t.Qwen2ForCausalLM(t.Qwen2Config(**_SIZES | mixed | changes))
    elif name == "mistral":
        model = t.MistralForCausalLM(t.MistralConfig(**_SIZES | {"sliding_window": WINDOW} | changes))
    elif name == "gemma2":  # a soft cap that every score feels; the second layer sees a window
        layers = {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}
        caps = {"head_dim": 8, "attn_logit_softcapping": 2.0, "final_logit_softcapping": None}
        model = t.Gemma2ForCausalLM(
            t.Gemma2Config(**_SIZES | {"sliding_window": WINDOW} | layers | caps | changes)
        )
    else:
        config = t.GPT2Config(
            vocab_size=VOCABULARY, n_embd=32, n_layer=LAYERS, n_head=HEADS, n_positions=64,
            initializer_range=0.25, bos_token_id=1, eos_token_id=2, pad_token_id=0, **changes,
        )  # fmt: skip
        model = t.GPT2LMHeadModel(config)
    return model.eval()


def prompts(padding: tuple[int, ...] = (0, 4, 1), length: int = 14, seed: int = 1) -> dict[str, Tensor]:
    """Random tokens behind left padding, with their mask and positions, each [B, T]."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (len(padding), length), generator=g)
    mask = (torch.arange(length) >= torch.tensor(padding)[:, None]).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    return {"input_ids": ids * mask, "attention_mask": mask, "position_ids": positions}


def logits(model: Any, batch: dict[str, Tensor], **options: Any) -> Tensor:
    """[B, T, vocabulary] without gradients; 0 at padding."""
    with torch.no_grad():
        found: Tensor = model(**batch, **options).logits
    return found * batch["attention_mask"][:, -found.shape[1] :, None]
