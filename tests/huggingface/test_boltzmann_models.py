"""Model types with couplings: saved and loaded whole, refused in a sentence otherwise."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="the extra 'hf' is not installed")

import transformers
from safetensors.torch import load_file, save_file
from tiny_decoders import decoder, logits, prompts
from transformers import AutoConfig, AutoModelForCausalLM

import diabat
from diabat.attention.heads import Calibration
from diabat.checks import ArgumentError
from diabat.huggingface import convert, enable_gac
from diabat.huggingface.boltzmann import models
from diabat.huggingface.boltzmann.attention import boltzmann_attention
from diabat.samplers.base import UnsupportedError

from .boltzmann_decoders import ARCHITECTURES, coupled, couplings

every_architecture = pytest.mark.parametrize("name", ARCHITECTURES)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@every_architecture
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_model_is_loaded_bit_by_bit(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    coupled(name).save_pretrained(tmp_path / "first")
    # The buffers of rotary positions stay in float32 where a model is loaded in half precision.
    model, batch = AutoModelForCausalLM.from_pretrained(tmp_path / "first", dtype=dtype), prompts()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    for key, J in couplings(coupled(name)).items():
        assert torch.equal(J, couplings(loaded)[key])
    assert type(loaded) is type(model)
    assert loaded.config._attn_implementation == "boltzmann"
    assert loaded.config.boltzmann == model.config.boltzmann
    saved = model.state_dict()
    for key, value in loaded.state_dict().items():
        assert torch.equal(value, saved[key]), key
        assert value.dtype == saved[key].dtype == (torch.float32 if "coupling" in key else dtype)
    assert torch.equal(logits(loaded, batch), logits(model, batch))
    kind: Any = type(model)
    again, info = kind.from_pretrained(tmp_path, output_loading_info=True, dtype=dtype)
    assert not info["missing_keys"]
    assert torch.equal(logits(again.eval(), batch), logits(model, batch))


def test_settings_and_backends_are_saved(tmp_path: Path) -> None:
    backend = diabat.sampler("mean_field", max_iterations=60)
    model = coupled(sampler=backend, window=7, far="none", weights="probability", bandwidth=3)
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.boltzmann["sampler_options"]["max_iterations"] == 60
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    heads = loaded.model.layers[0].self_attn.boltzmann
    assert repr(heads) == repr(model.model.layers[0].self_attn.boltzmann)
    assert heads.sampler.options["max_iterations"] == 60
    assert heads.coupling_pairs.shape == (8, 6 + 5 + 4)


@pytest.mark.filterwarnings("ignore:sampler 'dqa' does not return:UserWarning")
def test_learned_angles_of_an_anneal_are_saved_in_float32(tmp_path: Path) -> None:
    model = coupled(sampler=diabat.sampler("dqa", learn_schedule=True), window=2).bfloat16()
    name = "model.layers.0.self_attn.boltzmann.sampler.schedule_angles"
    with torch.no_grad():
        model.get_parameter(name).mul_(1.001)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).get_parameter(name)
    assert loaded.dtype == torch.float32
    assert torch.equal(loaded, model.get_parameter(name))
    fresh = AutoModelForCausalLM.from_config(model.config, dtype=torch.bfloat16)
    assert fresh.get_parameter(name).dtype == torch.float32
    assert {J.dtype for J in couplings(fresh).values()} == {torch.float32}
    assert fresh.lm_head.weight.dtype == torch.bfloat16


def test_plain_transformers_refuses_a_saved_model(tmp_path: Path) -> None:
    coupled().save_pretrained(tmp_path)
    code = "import sys, transformers; transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "boltzmann_llama" in done.stderr.splitlines()[-1] + done.stderr
    assert "ValueError" in done.stderr


@every_architecture
def test_a_model_from_its_configuration_has_couplings_of_zero(name: str) -> None:
    config = coupled(name).config
    model = AutoModelForCausalLM.from_config(config)
    assert model.config._attn_implementation == "boltzmann"
    assert len(couplings(model)) == 3
    assert not any(J.any() for J in couplings(model).values())
    plain = decoder(name)
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if "boltzmann" not in k})
    assert (logits(model.eval(), prompts()) - logits(plain, prompts())).abs().max() < 2e-5


@every_architecture
def test_a_checkpoint_without_couplings_is_refused(name: str, tmp_path: Path) -> None:
    model = coupled(name)
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    kept = {k: v.clone() for k, v in load_file(file).items() if ".1." not in k or "boltzmann" not in k}
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(
        ArgumentError, match=r"expected a checkpoint with couplings, got one without .*boltzmann"
    ):
        AutoModelForCausalLM.from_pretrained(tmp_path)
    save_file({k: v for k, v in kept.items() if "boltzmann" not in k}, file, metadata={"format": "pt"})
    with pytest.raises(ArgumentError, match="and 2 others; load it as"):
        type(model).from_pretrained(tmp_path)


def test_missing_couplings_are_zero_before_they_are_refused(tmp_path: Path) -> None:
    """transformers leaves parameters that a checkpoint lacks uninitialised, unless the model fills them."""
    model = coupled()
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file(
        {k: v.clone() for k, v in load_file(file).items() if "boltzmann" not in k},
        file,
        metadata={"format": "pt"},
    )
    # The loading of transformers itself, without the refusal.
    loaded = super(models.BoltzmannMixin, type(model)).from_pretrained(tmp_path)
    assert len(couplings(loaded)) == 3
    assert not any(J.any() for J in couplings(loaded).values())


def test_plain_weights_are_refused(tmp_path: Path) -> None:
    decoder("llama").save_pretrained(tmp_path)
    kind = models.kinds()["llama"]
    with pytest.raises(ArgumentError, match=r"config.boltzmann: expected the settings .*got None; .*convert"):
        kind.model.from_pretrained(tmp_path)


def test_damaged_settings_are_refused(tmp_path: Path) -> None:
    coupled().save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    good = json.loads(file.read_text())
    for settings, sentence in (
        (
            {"window": 4, "wibdow": 3},
            "config.boltzmann: expected settings among window, .*got \\['wibdow'\\]",
        ),
        ([4], "config.boltzmann: expected settings among window"),
        ({"window": 0}, "window: expected an integer >= 1, got 0"),
        ({"window": 4, "weights": "odd"}, "weights: expected one of probability, odds, got 'odd'"),
        ({"window": 4, "sampler": "exakt"}, "sampler: expected one of .*Did you mean 'exact'"),
    ):
        file.write_text(json.dumps(good | {"boltzmann": settings}))
        with pytest.raises(ValueError, match=sentence):
            AutoModelForCausalLM.from_pretrained(tmp_path)


def test_no_other_attention_runs(tmp_path: Path) -> None:
    model = coupled()
    model.save_pretrained(tmp_path)
    sentence = "attn_implementation: expected 'boltzmann' for BoltzmannLlamaForCausalLM, since others ignore"
    with pytest.raises(UnsupportedError, match=sentence):
        AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa")
    for name in ("eager", "sdpa", "flash_attention_2", "gac"):
        with pytest.raises(UnsupportedError, match=sentence):
            model.set_attn_implementation(name)
    with pytest.raises(UnsupportedError, match=sentence):
        enable_gac(model, Calibration({0: [0]}))
    before = logits(model, prompts())
    model.set_attn_implementation("boltzmann")
    assert torch.equal(logits(model, prompts()), before)


def test_copies_and_pickles() -> None:
    model = coupled()
    before = logits(model, prompts())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(logits(other, prompts()), before)
        couplings(other)["model.layers.0.self_attn.boltzmann"].data.zero_()
    assert torch.equal(logits(model, prompts()), before)


def refused_models() -> list[tuple[Any, type[Exception], str]]:
    cross = decoder("gpt2", add_cross_attention=True)
    return [
        (
            decoder("mistral"),
            UnsupportedError,
            "model: expected one of LlamaForCausalLM, .*got MistralForCausalLM",
        ),
        (decoder("llama").model, UnsupportedError, "got LlamaModel"),
        (cross, UnsupportedError, "model: expected a decoder without cross-attention"),
        (
            coupled(),
            ArgumentError,
            "model: expected a model without couplings, got BoltzmannLlamaForCausalLM",
        ),
        ("llama", UnsupportedError, "model: expected one of .*got str"),
    ]


def test_other_models_are_refused() -> None:
    for model, error, sentence in refused_models():
        with pytest.raises(error, match=sentence):
            convert(model, 3)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"window": 40}, "window: sampler 'exact' accepts at most 38 spins, got 40"),
        (
            {"window": 10**9, "sampler": "mean_field"},
            "window: .*couplings of window = 1000000000 in 3 layers",
        ),
        ({"window": 0}, "window: expected an integer >= 1, got 0"),
        ({"window": 2.0}, "window: expected an integer >= 1, got 2.0"),
        ({"sampler": "exakt"}, "sampler: expected one of .*Did you mean 'exact'"),
        ({"weights": "odd"}, "weights: expected one of probability, odds, got 'odd'"),
        ({"far": "near"}, "far: expected one of none, independent, got 'near'"),
        ({"gradient": "adjoint"}, "gradient: sampler 'exact' supports"),
        ({"num_reads": 5}, "num_reads: gradient 'exact' differentiates"),
        ({"bandwidth": 0}, "bandwidth: expected an integer >= 1 or None, got 0"),
    ],
)
def test_a_refused_option_leaves_the_model_as_it_is(options: dict[str, Any], sentence: str) -> None:
    model = decoder("llama")
    before = logits(model, prompts())
    with pytest.raises(ValueError, match=sentence):
        convert(model, **options)
    assert type(model) is transformers.LlamaForCausalLM
    assert not couplings(model)
    assert torch.equal(logits(model, prompts()), before)


def test_a_backend_that_cannot_be_saved_is_refused() -> None:
    backend = diabat.sampler("refine", sampler=diabat.sampler("exact"))
    with pytest.raises(ArgumentError, match="sampler: expected a backend whose options can be saved as JSON"):
        convert(decoder("llama"), 3, backend)


@pytest.mark.parametrize("name", ["dqa", "tempering"])
def test_backends_that_miss_softmax_warn(name: str) -> None:
    with pytest.warns(UserWarning, match=rf"'{name}' does not return sigmoid\(2h\) exactly at J = 0"):
        model = convert(decoder("llama"), 3, name)
    found = logits(model, prompts())
    assert found.isfinite().all()
    assert 1e-4 < (found - logits(decoder("llama"), prompts())).abs().max() < 10


def test_a_model_that_is_not_converted_is_refused() -> None:
    model = decoder("llama")
    model.set_attn_implementation("boltzmann")
    sentence = (
        r"attn_implementation: expected a model with couplings for 'boltzmann', got LlamaAttention .*convert"
    )
    with pytest.raises(UnsupportedError, match=sentence):
        logits(model, prompts())


def test_what_the_attention_cannot_do_is_refused() -> None:
    module = coupled().model.layers[0].self_attn
    q, k = torch.randn(1, 8, 3, 4), torch.randn(1, 4, 3, 4)
    attend = boltzmann_attention
    mask = torch.ones(1, 1, 3, 3, dtype=torch.bool).tril()
    with pytest.raises(UnsupportedError, match=r"attention_mask: expected a mask \[B, 1, Q, K\].*got None"):
        attend(module, q, k, k, None)
    for name in ("softcap", "s_aux", "position_bias"):
        with pytest.raises(
            UnsupportedError, match=f"{name}: expected None with attn_implementation 'boltzmann'"
        ):
            attend(module, q, k, k, mask, **{name: 2.0})
