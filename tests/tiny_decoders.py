"""The small decoders of random weights that every test on models of transformers shares.

    from tiny_decoders import DECODERS, adapted, decoder, logits, prompts

    @pytest.mark.parametrize("name", DECODERS)
    def test_...(name: str) -> None:
        model = decoder(name)                        # float32, evaluation mode; the same weights for the same seed
        other = decoder(name, num_hidden_layers=1)   # changes by the names of a Llama, also for GPT-2
        found = logits(model, prompts())             # three sequences, two of them with padding on the left

A test of one property runs over `DECODERS`, or over the names that it is about; `adapted` wraps a model with LoRA,
`examples` are what a Trainer takes, and `tokenizer` has one token per word.  A new architecture is a line of `_KINDS`.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

VOCABULARY, LAYERS, HEADS, GROUPS, WINDOW = 48, 3, 8, 4, 5
_SIZE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "max_position_embeddings": 64,
    "initializer_range": 0.25,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_MIXED = {"sliding_window": WINDOW, "layer_types": ["full_attention", "sliding_attention"]}
_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
# Model type of transformers and what it has beside `_SIZE`; layer types are repeated up to the number of layers.
_KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"use_sliding_window": True, **_MIXED},  # every second layer sees a window; biases
    "qwen3": {"head_dim": 6},  # heads of another size than hidden / H, and a norm of their queries
    "mistral": {"sliding_window": WINDOW},  # every layer sees a window
    "gpt2": _DROPOUT,  # one projection for queries, keys and values; no groups
    "phi3": {},  # one projection for queries, keys and values
    "gemma": {"head_dim": 8},  # heads of another size than hidden / H
    "gemma3_text": {
        "head_dim": 8,
        "query_pre_attn_scalar": 2,
        **_MIXED,
    },  # norms of queries and keys, two rotary bases
    "gemma2": {"head_dim": 8, "attn_logit_softcapping": 2.0, "final_logit_softcapping": None, **_MIXED},
    "gpt_oss": {"head_dim": 8, "rope_parameters": _ROPE, **_EXPERTS, **_MIXED},  # attention sinks
}
DECODERS = tuple(_KINDS)
_TEXT = (
    "<pad> <s> </s> <unk> the a film book is was good bad fine dull very not and but plot cast Review: Sentiment: "
    "Question: Answer: Paris London Rome city river of in capital what where long short man sleeps dog yes no"
)
WORDS = tuple(_TEXT.split())


def decoder(name: str = "llama", seed: int = 0, *, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """One of `DECODERS` in evaluation mode; ``changes`` of its configuration by the names of a Llama, or its own."""
    import transformers

    settings = _SIZE | _KINDS[name] | changes
    if "layer_types" in settings:
        count = settings["num_hidden_layers"]
        settings["layer_types"] = (settings["layer_types"] * count)[:count]
    config = transformers.AutoConfig.for_model(name, **settings)
    torch.default_generator.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # biases and norms begin at 0 and 1
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to(dtype).eval()


def adapted(model: Any, *, trained: bool = True, **options: Any) -> Any:
    """A PEFT model with LoRA at every projection of the attention; its B is random if ``trained``, else 0."""
    from peft import LoraConfig, get_peft_model

    fused = "gpt2" in model.config.model_type
    names = ["c_attn", "attn.c_proj"] if fused else ["q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj"]
    config: dict[str, Any] = {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": names,
        "fan_in_fan_out": fused,
        "task_type": "CAUSAL_LM",
    }
    torch.default_generator.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft reads a property that transformers renames
        wrapped = get_peft_model(model, LoraConfig(**config | options), autocast_adapter_dtype=False)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if trained and "lora_B" in name:
                parameter.normal_(std=0.1)
    return wrapped


def prompts(padding: tuple[int, ...] = (0, 4, 1), length: int = 14, seed: int = 1) -> dict[str, Tensor]:
    """Random tokens behind left padding, with their mask and positions, each int64 [B, T]."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (len(padding), length), generator=g)
    mask = (torch.arange(length) >= torch.tensor(padding)[:, None]).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    return {"input_ids": ids * mask, "attention_mask": mask, "position_ids": positions}


def examples(count: int, length: int = 12, padding: int = 0, seed: int = 1) -> list[dict[str, Tensor]]:
    """Rows of `prompts` with labels, for a Trainer; every second one has padding, which is no target."""
    rows = prompts(tuple(padding * (k % 2) for k in range(count)), length, seed)
    del rows["position_ids"]
    rows["labels"] = rows["input_ids"].masked_fill(rows["attention_mask"] == 0, -100)
    return [{key: value[k] for key, value in rows.items()} for k in range(count)]


def logits(model: Any, batch: dict[str, Tensor], **options: Any) -> Tensor:
    """[B, T, vocabulary] without gradients; 0 at padding."""
    with torch.no_grad():
        found: Tensor = model(**batch, **options).logits
    return found * batch["attention_mask"][:, -found.shape[1] :, None]


def tokenizer() -> Any:
    """One token per word of `WORDS`; any other word is <unk>."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )
