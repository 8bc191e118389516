"""Questions, tokenizers and changed models for the tests of games on heads; decoders are those of `tiny_decoders`."""

from __future__ import annotations

import copy
from typing import Any

import torch
from tiny_decoders import VOCABULARY
from torch import Tensor

LENGTH = 12
CHOICES = [3, 17, 29]


def questions(count: int = 3, seed: int = 0) -> list[dict[str, Any]]:
    """Questions of different lengths with three choices."""
    g = torch.Generator().manual_seed(seed)
    tokens = [torch.randint(VOCABULARY, (LENGTH - k % 3,), generator=g).tolist() for k in range(count)]
    return [{"input_ids": ids, "choices": CHOICES, "answer": 17} for ids in tokens]


def log_odds(model: Any, tokens: list[int]) -> Tensor:
    """Of choice 17 behind tokens, by the model as it is, float64."""
    mode = model.training
    with torch.no_grad():
        z = model.eval()(input_ids=torch.tensor([tokens]), logits_to_keep=1).logits[0, -1].double()
    model.train(mode)
    return z[17] - torch.logsumexp(z[[3, 29]], 0)


def without(model: Any, heads: list[tuple[int, int]], ablation: str) -> Any:
    """Copy of a model with heads (layer, head) absent by their weights: W_q times 0 or ε, or W_o times 0."""
    changed = copy.deepcopy(model)
    factor = 1e-5 if ablation == "scaled" else 0
    for layer, head in heads:
        fused = model.config.model_type == "gpt2"
        block = changed.transformer.h[layer].attn if fused else changed.model.layers[layer].self_attn
        part = slice(head * block.head_dim, (head + 1) * block.head_dim)
        output = block.c_proj.weight.T if fused else block.o_proj.weight
        query = block.c_attn if fused else block.q_proj
        with torch.no_grad():
            if ablation == "zero":
                output[:, part] = 0
                continue
            (query.weight.T if fused else query.weight)[part] *= factor
            if query.bias is not None:
                query.bias[part] *= factor
    return changed


def bpe(*, chat: bool = False) -> Any:
    """A byte-level tokenizer of a few merges, optionally with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    text = ["the man sleeps good bad answer : good bad the man\nbad\ngood a dog"] * 8
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<s>", "</s>"], show_progress=False)
    inner.train_from_iterator(text, trainer)
    found = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
    if chat:
        found.chat_template = (
            "<s>{% for m in messages %}{{ {'user': 'man', 'assistant': 'answer'}[m.role] }}\n{{ m.content }}\n"
            "{% endfor %}{% if add_generation_prompt %}answer\n{% endif %}"
        )
    return found
