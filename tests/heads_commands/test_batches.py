"""Batches padded on the left against one sequence at a time, for several kinds of decoders."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diabat.attention.heads import Calibration
from diabat.attention.heads.decoder import padding_token
from diabat.attention.heads.values import Request
from diabat.huggingface import enable_gac
from diabat.huggingface.batches import Batches

from .tiny import WORDS, decoder


def other(name: str) -> Any:
    import transformers

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": len(WORDS), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 8, "num_key_value_heads": 4, "initializer_range": 0.25, "eos_token_id": 2,
        "pad_token_id": None,
    }  # fmt: skip
    if name == "gpt2":  # learned positions
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=len(WORDS), n_embd=32, n_layer=3, n_head=8, n_positions=64, initializer_range=0.25,
                eos_token_id=[2, 3], bos_token_id=1,
            )
        ).eval()  # fmt: skip
    if name == "mistral":
        return transformers.MistralForCausalLM(transformers.MistralConfig(**sizes, sliding_window=5)).eval()
    mixed: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes, **mixed)).eval()


def sequences(*lengths: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    return [torch.randint(4, len(WORDS), (length,), generator=g) for length in lengths]


@pytest.mark.parametrize("rows", [None, "running", "prompt"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "qwen2"])
def test_padded_logits_are_those_of_one_sequence_at_a_time(name: str, rows: str | None) -> None:
    model = decoder() if name == "llama" else other(name)
    batches = Batches(model)
    if rows is not None:
        enable_gac(model, Calibration({0: [], 2: [1, 5]}, alpha=0.08, rows=rows))
    keeps = [[-1]] * 4 if rows == "prompt" else [[-1], [3, 5, 8], [-2, -1], [0]]
    requests: list[Request] = [
        (tokens, torch.tensor(keep)) for tokens, keep in zip(sequences(4, 13, 7, 7), keeps, strict=True)
    ]
    for (tokens, keep), found in zip(requests, batches.logits(requests), strict=True):
        assert found.shape == (1, len(keep), len(WORDS))
        with torch.no_grad():
            last = {"logits_to_keep": 1} if rows == "prompt" else {}
            alone = model(tokens[None], use_cache=False, **last).logits[:, keep]
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows", [None, "running", "prompt"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "qwen2"])
def test_texts_are_those_of_one_prompt_at_a_time(name: str, rows: str | None) -> None:
    model = decoder() if name == "llama" else other(name)
    batches = Batches(model)
    if rows is not None:
        enable_gac(model, Calibration({0: [], 2: [1, 5]}, alpha=0.08, rows=rows))
    prompts = sequences(4, 13, 7, 9, 5, 6)
    ends = {2, 3} if name == "gpt2" else {2}
    for prompt, found in zip(prompts, batches.generate(prompts, 12), strict=True):
        (alone,) = batches.generate([prompt], 12)
        written = found.tolist()
        assert written[: len(alone)] == alone.tolist()
        # What follows an end is padding, which decoding leaves out.
        assert set(written[len(alone) :]) <= {padding_token(model)}
        assert len(alone) == 12 or int(alone[-1]) in ends


def test_padding_is_the_end_of_text_if_the_model_names_none() -> None:
    assert padding_token(decoder()) == 0
    assert padding_token(other("mistral")) == 2
    assert padding_token(other("gpt2")) == 2
