"""Small decoders of random weights, adapters around them, and batches."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

VOCABULARY = 32
NAMES = ("llama", "qwen2", "qwen3", "mistral", "gpt2")
_SIZE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}


def decoder(name: str = "llama", *, dtype: torch.dtype = torch.float64, seed: int = 0, **changes: Any) -> Any:
    """Build a decoder in training mode; qwen3 has heads of another size than hidden/H."""
    import transformers

    torch.manual_seed(seed)
    size = {**_SIZE, **changes}
    if name == "gpt2":
        config: Any = transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=24, n_layer=3, n_head=size["num_attention_heads"], n_positions=64,
            bos_token_id=0, eos_token_id=1, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )  # fmt: skip
    else:
        kinds = {
            "llama": transformers.LlamaConfig,
            "qwen2": transformers.Qwen2Config,
            "qwen3": transformers.Qwen3Config,
            "mistral": transformers.MistralConfig,
        }
        config = kinds[name](**size, **({"head_dim": 6} if name == "qwen3" else {}))
    built = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return built.train()


def adapted(model: Any, *, trained: bool = True, **options: Any) -> Any:
    """Wrap a decoder with LoRA; a fresh adapter has B = 0, a trained one has not."""
    from peft import LoraConfig, get_peft_model

    gpt2 = model.config.model_type == "gpt2"
    names = ["c_attn", "c_proj"] if gpt2 else ["q_proj", "k_proj", "v_proj", "o_proj"]
    config = LoraConfig(
        r=2, lora_alpha=4, target_modules=names, task_type="CAUSAL_LM", fan_in_fan_out=gpt2, **options
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft reads a property that transformers renames
        wrapped = get_peft_model(model, config, autocast_adapter_dtype=False)
    if trained:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, parameter in wrapped.named_parameters():
                if "lora_B" in name:
                    parameter.copy_(
                        0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
                    )
    return wrapped


def batch(rows: int = 3, length: int = 9, *, seed: int = 0) -> dict[str, Tensor]:
    """Random tokens, each one a target."""
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (rows, length), generator=g)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()}
