"""What the package refuses, each with one sentence that names the argument."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import accelerate
import pytest
import tiny_decoders
import torch
import transformers
from tiny_decoders import decoder, logits, prompts

import diabat
from diabat.checks import ArgumentError
from diabat.huggingface import convert, parameter_groups, revert, save_couplings
from diabat.huggingface.boltzmann.layer import boltzmann_attention

from .methods import assert_close, coupled, randomised

Call = Callable[[], Any]


MASK = torch.ones(1, 1, 3, 3, dtype=torch.bool).tril()


def attended(mask: Any, **arguments: Any) -> Any:
    q, k = torch.randn(1, 8, 3, 4), torch.randn(1, 4, 3, 4)
    return boltzmann_attention(coupled().model.layers[0].self_attn, q, k, k, mask, **arguments)


def quantised() -> Any:
    model = decoder("llama")
    method = transformers.utils.quantization_config.QuantizationMethod.GPTQ
    model.hf_quantizer = SimpleNamespace(quantization_config=SimpleNamespace(quant_method=method))
    return model


def offloaded() -> Any:
    return accelerate.cpu_offload(decoder("llama"), torch.device("cpu"))


def with_pictures() -> Any:
    """A decoder inside a model that also sees pictures."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = decoder("gemma3_text").config
    vision = sizes | {"image_size": 16, "patch_size": 4}
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    return transformers.Gemma3ForConditionalGeneration(config).eval()


def unconverted() -> Any:
    model = decoder("llama")
    model.set_attn_implementation("boltzmann")
    return logits(model, prompts())


METHODS: list[tuple[Call, str]] = [
    (lambda: convert(decoder("gpt_oss"), 3), "model: expected a decoder .* of one of gemma, .*got GptOss"),
    (lambda: convert(decoder("llama").model.layers[0], 3), "model: .* got LlamaDecoderLayer"),
    (lambda: convert("llama", 3), "model: expected a decoder .*got str"),
    (lambda: convert(quantised(), 3), "model: expected weights that are not quantised, got those of 'gptq'"),
    (lambda: convert(decoder("gpt2", add_cross_attention=True), 3),
     "model: expected a decoder without cross-attention"),
    (lambda: convert(offloaded(), 3), "model: expected weights in memory, got offloaded ones; convert before"),
    (lambda: convert(coupled(), 3), "model: expected a model without couplings, got BoltzmannLlama"),
    (lambda: convert(tiny_decoders.adapted(decoder("llama")), 3),
     "model: expected a model without adapters, got PeftModelForCausalLM; convert it before"),
    (lambda: convert(transformers.GPT2DoubleHeadsModel(decoder("gpt2").config), 3),
     "model: expected no head, or one of CausalLM, SequenceClassification, TokenClassification, QuestionAnswering, got "
     r"GPT2DoubleHeadsModel; convert what is below it, model\.transformer"),
    (lambda: convert(with_pictures(), 3),
     r"model: expected no head, .*got Gemma3For.*; convert what is below it, model\.model\.language_model"),
    (lambda: convert(decoder("llama"), 3, heads=[0]),
     r"heads: expected nothing, since all heads have couplings, got \[0\]; diabat\.attention\.couplings_of.*hold\("),
    (lambda: convert(decoder("llama"), 3, bandwith=2), "options: .*got 'bandwith'. Did you mean 'bandwidth'?"),
    (lambda: type(coupled())(coupled().config, window=12),
     "window: expected nothing, since config.boltzmann has all settings but for the sampler, got 12"),
    *(
        (lambda part=part: save_couplings(part(tiny_decoders.adapted(coupled())), "none"),
         r"model: expected a model without adapters, got .*; take them off before \(merge_and_unload")
        for part in (lambda model: model, lambda model: model.get_base_model())
    ),
    (lambda: revert(decoder("llama")), "model: expected a model with couplings, got LlamaForCausalLM"),
    (unconverted, "attn_implementation: expected a model with couplings for 'boltzmann', .*convert"),
    (lambda: attended(None), r"attention_mask: expected a mask \[B, 1, Q, K\].*got None"),
    *(
        (lambda name=name: attended(MASK, **{name: 2.0}), f"{name}: expected None with .*'boltzmann'")
        for name in ("s_aux", "position_bias")
    ),
    (lambda: parameter_groups(coupled(), 0, 1e-2), "lr: expected a positive"),
    (lambda: parameter_groups(coupled(), 1e-3, float("nan")), "coupling_lr: expected a positive"),
    (lambda: parameter_groups(coupled(), 1e-3, 1e-2, -1), "weight_decay: expected a number in"),
    *(
        (lambda model=model: parameter_groups(model(), 1e-3, 1e-2),
         r"model: expected couplings that are trained, got none in .*modules_to_save=\['boltzmann'\]")
        for model in (decoder, lambda: tiny_decoders.adapted(coupled()))
    ),
]  # fmt: skip


@pytest.mark.parametrize(("options", "sentence"), [
    ({"window": 40}, "window: sampler 'exact' accepts at most 38 spins, got 40"),
    ({"window": 10**9, "sampler": "mean_field"}, "window: .*couplings of window = 1000000000 in 3 layers"),
    ({"window": 0}, "window: expected an integer >= 1, got 0"),
    ({"sampler": "exakt"}, "sampler: expected one of .*Did you mean 'exact'"),
    ({"readout": "odd"}, "readout: expected one of odds, probability, got 'odd'"),
    ({"layers": [0, 7]}, "layers: expected layers among 0 .. 2, got 7"),
    ({"layers": [-1]}, "layers: expected layers among 0 .. 2, got -1"),
    ({"layers": [1, 1]}, r"layers: expected different numbers of layers, got \[1, 1\]"),
    ({"layers": []}, r"layers: expected different numbers of layers, got \[\]"),
    ({"layers": ["1"]}, r"layers: expected different numbers of layers, got \['1'\]"),
    ({"layers": 1}, "layers: expected different numbers of layers, got 1"),
])  # fmt: skip
def test_a_refused_option_leaves_the_model_as_it_is(options: dict[str, Any], sentence: str) -> None:
    model = decoder("llama")
    names = [name for name, _ in model.named_parameters()]
    with pytest.raises(ValueError, match=f"^{sentence}"):
        convert(model, **options)
    assert type(model) is transformers.LlamaForCausalLM
    assert [name for name, _ in model.named_parameters()] == names
    assert model.config._attn_implementation == "sdpa"


def test_the_decoder_of_a_model_with_pictures_is_converted() -> None:
    """The model makes the masks, by its own configuration."""
    model, batch = with_pictures(), prompts()
    before = logits(model, batch)
    convert(model.model.language_model, 4)
    model.config.text_config = model.model.language_model.config
    assert_close(logits(model, batch), before)
    randomised(model)
    assert not torch.allclose(logits(model, batch), before, atol=1e-3)
    model.config.text_config = revert(model.model.language_model).config
    assert torch.equal(logits(model, batch), before)


@pytest.mark.parametrize("name", ["dqa", "tempering"])
def test_backends_that_miss_softmax_warn(name: str) -> None:
    with pytest.warns(UserWarning, match=rf"'{name}' does not return sigmoid\(2h\) exactly at J = 0"):
        model = convert(decoder("llama"), 3, diabat.sampler(name))
    found = logits(model, prompts())
    assert found.isfinite().all()
    assert 1e-4 < (found - logits(decoder("llama"), prompts())).abs().max() < 10


@pytest.mark.parametrize(("call", "sentence"), METHODS, ids=range(len(METHODS)))
def test_attention(call: Call, sentence: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{sentence}"):
        call()
