"""Small decoders with Boltzmann or calibrated attention, and a naive form of the first."""

from __future__ import annotations

from typing import Any

import torch
from tiny_decoders import decoder, prompts
from torch import Tensor, nn

from diabat.attention.coupled import couplings_of
from diabat.heads import Calibration, enable_gac
from diabat.huggingface import convert
from diabat.huggingface.boltzmann.model import FAMILIES

COUPLED = 4
SETTING = Calibration({0: [0, 1], 1: [], 2: [3]})
SUPPORTED = {"boltzmann": FAMILIES, "gac": ("llama", "qwen2", "qwen3", "mistral", "gpt2", "gemma2")}
CASES = [(method, name) for method, names in SUPPORTED.items() for name in names]
HEADS = "model.layers.0.self_attn.boltzmann"
FIRST = f"{HEADS}.couplings.pairs"


def applied(method: str, model: Any) -> Any:
    """The model with random couplings, or calibrated."""
    if method != "gac":
        return randomised(convert(model, COUPLED))
    enable_gac(model, SETTING)
    return model


def coupled(name: str = "llama", window: int = COUPLED, *, changes: Any = None, **options: Any) -> Any:
    """A converted decoder with random couplings, in evaluation mode."""
    return randomised(convert(decoder(name, **(changes or {})), window, **options))


def randomised(model: Any, seed: int = 5) -> Any:
    generator = torch.Generator().manual_seed(seed)
    for J in couplings(model).values():
        J.data.copy_(0.4 * torch.randn(J.shape, generator=generator))
    return model


def couplings(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that J depends on, by their names."""
    return {
        f"{name}.{key}".removeprefix("."): parameter
        for name, part in couplings_of(model).items()
        for key, parameter in part.named_parameters()
    }


def in_pieces(model: Any, batch: dict[str, Tensor], cuts: list[int], cache: Any) -> Tensor:
    """Logits of a prompt that is given in pieces, 0 at padding."""
    found = []
    for start, stop in zip([0, *cuts], [*cuts, batch["input_ids"].shape[1]], strict=True):
        piece = {key: value[:, start:stop] for key, value in batch.items()}
        piece["attention_mask"] = batch["attention_mask"][:, :stop]
        with torch.no_grad():
            found.append(model(**piece, past_key_values=cache, use_cache=True).logits)
    return torch.cat(found, 1) * batch["attention_mask"][:, :, None]


def generated(model: Any, beams: int, **options: Any) -> Any:
    """Six tokens behind `prompts`, more than any window of the models has, with their scores."""
    batch = {key: value for key, value in prompts().items() if key != "position_ids"}
    settings = {"max_new_tokens": 6, "num_beams": beams, "do_sample": False, "output_scores": True}
    return model.generate(**batch, **settings, return_dict_in_generate=True, **options)


def check_generation(model: Any, beams: int) -> Any:
    """Tokens and scores with a cache are those without; returns both."""
    cached, plain = (generated(model, beams, use_cache=use) for use in (True, False))
    assert torch.equal(cached.sequences, plain.sequences)
    for a, b in zip(cached.scores, plain.scores, strict=True):
        assert_close(a, b)
    return cached


def assert_close(found: Tensor, expected: Tensor) -> None:
    """Equal up to 32 units in the last place of the largest entry: sums of some dozen terms in another order."""
    size = expected[expected.isfinite()].abs().max()
    torch.testing.assert_close(found, expected, rtol=0, atol=32 * 2.0**-23 * max(1.0, float(size)))
