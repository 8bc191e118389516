"""Saved models with couplings: loaded whole, refused in a sentence otherwise, and safe if somebody else made them."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_decoders import decoder, logits, prompts
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

import diabat
from diabat.checks import ArgumentError
from diabat.huggingface import convert, load_couplings, load_decoder, save_couplings
from diabat.huggingface.boltzmann import model as models
from diabat.samplers.capabilities import UnsupportedError
from diabat.training.checkpoint import save_checkpoint
from diabat.training.folder import CheckpointError

from .methods import FIRST, SUPPORTED, assert_close, coupled, couplings, randomised

every_architecture = pytest.mark.parametrize("name", SUPPORTED["boltzmann"])
load = AutoModelForCausalLM.from_pretrained


def changed(folder: Path, settings: Any) -> None:
    """Write other settings into the configuration of a model folder."""
    file = folder / "config.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"boltzmann": settings}))


@pytest.mark.filterwarnings("ignore:.*changes what the model computes:UserWarning")
def test_settings_and_backends_are_saved(tmp_path: Path) -> None:
    backend = diabat.sampler("mean_field", max_iterations=60)
    model = coupled(sampler=backend, window=7, far="none", weights="probability", bandwidth=3)
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.boltzmann["sampler_options"]["max_iterations"] == 60
    heads = load(tmp_path).model.layers[0].self_attn.boltzmann
    assert repr(heads) == repr(model.model.layers[0].self_attn.boltzmann)
    assert heads.sampler.options["max_iterations"] == 60
    assert heads.coupling_pairs.shape == (8, 6 + 5 + 4)


FOREIGN: list[dict[str, Any]] = [
    {"sampler": "dimod", "sampler_options": {"sampler": "somebody_elses:Sampler"}},
    {"sampler": "dimod", "sampler_options": {"sampler": "dwave.system:DWaveSampler", "endpoint": "https://e.example"}},
    {"sampler": "distributed", "sampler_options": {"sampler": "exact", "executor": "tcp://e.example:8786"}},
    {"sampler": "refine", "sampler_options": {"sampler": "dimod"}},
    {"sampler": "dqa"},
    {"sampler": "somebody_elses:Sampler"},
    {"sampler": ["exact"]},
    {"sampler": None},
]  # fmt: skip


@pytest.mark.parametrize("settings", FOREIGN, ids=lambda s: str(s["sampler"]))
def test_a_folder_names_only_backends_that_compute(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever loads it; nothing is imported, built or connected to before the refusal."""
    model = coupled()
    model.save_pretrained(tmp_path)
    changed(tmp_path, {"window": 4, **settings})
    (tmp_path / "somebody_elses.py").write_text("raise RuntimeError('code of somebody else was run')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("diabat.samplers.registry.backend_factory", lambda name: pytest.fail(f"built {name}"))
    sentence = r"^config.boltzmann: expected sampler exact, banded, mean_field in the configuration of a model, got .*"
    config = AutoConfig.from_pretrained(tmp_path)
    for loading in (
        lambda: load(tmp_path),
        lambda: type(model).from_pretrained(tmp_path),
        lambda: AutoModelForCausalLM.from_config(config),
        lambda: load_decoder(str(tmp_path)),
    ):
        with pytest.raises(ArgumentError, match=sentence + r"from_pretrained\(folder, sampler="):
            loading()


@pytest.mark.filterwarnings("ignore:sampler 'dqa' does not return:UserWarning")
def test_any_other_backend_is_given_in_code(tmp_path: Path) -> None:
    """Learned angles are weights; they stay in float32."""
    backend: Any = diabat.sampler("dqa", learn_schedule=True)
    model = randomised(convert(decoder("llama"), 2, backend)).bfloat16()
    assert model.config.boltzmann["sampler"] == "dqa"
    assert "sampler_options" not in model.config.boltzmann
    name = f"{FIRST}.sampler.schedule_angles"
    with torch.no_grad():
        model.get_parameter(name).mul_(1.001)
    model.save_pretrained(tmp_path)
    loaded = load(tmp_path, dtype=torch.bfloat16, sampler=backend)
    assert loaded.get_parameter(name).dtype == torch.float32
    assert torch.equal(loaded.get_parameter(name), model.get_parameter(name))
    assert not torch.equal(loaded.get_parameter(name), backend.schedule_angles)
    fresh = AutoModelForCausalLM.from_config(model.config, sampler=backend, dtype=torch.bfloat16)
    assert {J.dtype for J in couplings(fresh).values()} == {torch.float32}
    exact = load(tmp_path, sampler="exact")
    exact.save_pretrained(tmp_path / "exact")
    assert torch.equal(logits(load(tmp_path / "exact"), prompts()), logits(exact, prompts()))


def test_options_of_such_a_backend_are_not_written(tmp_path: Path) -> None:
    """And a backend whose options JSON does not hold can be used all the same."""
    backend = diabat.sampler("refine", sampler=diabat.sampler("exact"))
    with pytest.warns(UserWarning, match=r"'refine' does not return sigmoid\(2h\) exactly at J = 0"):
        convert(decoder("llama"), 3, backend).save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())["boltzmann"]
    assert stored["sampler"] == "refine"
    assert "sampler_options" not in stored


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"window": 4, "wibdow": 3}, "config.boltzmann: expected settings among window, .*got \\['wibdow'\\]"),
        ([4], "config.boltzmann: expected settings among window"),
        ({"window": 0}, "window: expected an integer >= 1, got 0"),
        ({"window": 4, "weights": "odd"}, "weights: expected one of probability, odds, got 'odd'"),
        ({"window": 4, "sampler_options": {"steps": 3}}, "sampler_options of 'exact', got .* has no option 'steps'"),
        ({"window": 4, "sampler_options": 3}, "config.boltzmann: expected sampler_options of 'exact', got 3"),
        (
            {"window": 4, "sampler": "mean_field", "sampler_options": {"damping": 3}},
            r"config.boltzmann: .*damping: expected a number in \(0, 1\], got 3",
        ),
        (None, "config.boltzmann: expected the settings of a converted model, got None; .*convert"),
    ],
)  # fmt: skip
def test_damaged_settings_are_refused(settings: Any, sentence: str, tmp_path: Path) -> None:
    coupled().save_pretrained(tmp_path)
    changed(tmp_path, settings)
    with pytest.raises(ArgumentError, match=sentence):
        load(tmp_path)


def test_plain_transformers_refuses_a_saved_model(tmp_path: Path) -> None:
    coupled().save_pretrained(tmp_path)
    code = "import sys, transformers; transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "ValueError" in done.stderr
    assert "boltzmann_llama" in done.stderr


@every_architecture
def test_a_model_from_its_configuration_has_couplings_of_zero(name: str) -> None:
    model = AutoModelForCausalLM.from_config(coupled(name).config)
    assert model.config._attn_implementation == "boltzmann"
    assert len(couplings(model)) == 3
    assert not any(J.any() for J in couplings(model).values())


@every_architecture
def test_a_checkpoint_without_couplings_is_refused(name: str, tmp_path: Path) -> None:
    """transformers leaves parameters that a checkpoint lacks uninitialised, unless the model fills them."""
    model = coupled(name)
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    kept = {k: v.clone() for k, v in load_file(file).items() if ".1." not in k or "boltzmann" not in k}
    save_file(kept, file, metadata={"format": "pt"})
    sentence = r"expected a checkpoint with couplings, got one without .*boltzmann"
    with pytest.raises(ArgumentError, match=sentence):
        load(tmp_path)
    save_file({k: v for k, v in kept.items() if "boltzmann" not in k}, file, metadata={"format": "pt"})
    with pytest.raises(ArgumentError, match="and 2 others; load it as"):
        type(model).from_pretrained(tmp_path)
    # The loading of transformers itself, without the refusal.
    loaded = super(models.BoltzmannMixin, type(model)).from_pretrained(tmp_path)
    assert not any(J.any() for J in couplings(loaded).values())


def test_an_adapter_beside_a_model_is_not_loaded(tmp_path: Path) -> None:
    """peft would import the module that it names."""
    model = coupled()
    model.save_pretrained(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "megatron_config": {"a": 1}}')
    for loading in (load, type(model).from_pretrained):
        sentence = r"^model: expected a model without adapter, got .*adapter_config"
        with pytest.raises(ArgumentError, match=sentence):
            loading(tmp_path)


def test_no_other_attention_runs(tmp_path: Path) -> None:
    model = coupled()
    model.save_pretrained(tmp_path)
    sentence = "attn_implementation: expected 'boltzmann' for BoltzmannLlamaForCausalLM, since others ignore"
    with pytest.raises(UnsupportedError, match=sentence):
        load(tmp_path, attn_implementation="sdpa")
    for name in ("eager", "sdpa", "flash_attention_2", "gac"):
        with pytest.raises(UnsupportedError, match=sentence):
            model.set_attn_implementation(name)
    before = logits(model, prompts())
    model.set_attn_implementation("boltzmann")
    assert torch.equal(logits(model, prompts()), before)


@every_architecture
def test_classes_of_sequences_are_converted_saved_and_loaded(name: str, tmp_path: Path) -> None:
    """Equal at J = 0, and trained; the card of the folder says how to load it, and one that is there stays.

    What is below the head is a model of its own.
    """
    plain = AutoModelForSequenceClassification.from_config(decoder(name).config).eval()
    batch = {key: value for key, value in prompts().items() if key != "position_ids"}
    with torch.no_grad():
        before = plain(**batch).logits
        model = convert(plain, 4)
        assert_close(model(**batch).logits, before)
    randomised(model)(**batch, labels=torch.tensor([0, 1, 1])).loss.backward()
    assert all(J.grad.abs().max() > 0 for J in couplings(model).values())
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(loaded(**batch).logits, model(**batch).logits)
        body = AutoModel.from_pretrained(tmp_path)
        below = model.base_model(**batch).last_hidden_state
        assert torch.equal(body(**batch).last_hidden_state, below)
    card = tmp_path / "README.md"
    assert "AutoModelForSequenceClassification.from_pretrained(folder)" in card.read_text()
    card.write_text("mine")
    model.save_pretrained(tmp_path)
    assert card.read_text() == "mine"


def test_models_are_pickled() -> None:
    model = coupled()
    assert torch.equal(logits(pickle.loads(pickle.dumps(model)), prompts()), logits(model, prompts()))


@pytest.mark.parametrize("window", [4, None])
def test_couplings_alone_are_saved_and_given_to_the_plain_model(window: int | None, tmp_path: Path) -> None:
    """Also to one that was loaded in half precision; another model refuses them."""
    model = randomised(convert(decoder("llama"), window))
    path = save_couplings(model, tmp_path / "new")
    assert path.stat().st_size < 40_000  # the model has 170,000
    loaded = load_couplings(decoder("llama"), path.parent)
    assert type(loaded) is type(model)
    assert torch.equal(logits(loaded, prompts()), logits(model, prompts()))
    half = load_couplings(decoder("llama").bfloat16(), path.parent)
    for name, J in couplings(half).items():
        assert torch.equal(J, couplings(model)[name])
    with pytest.raises(
        ArgumentError, match=r"folder: expected couplings of this model in .* of other weights"
    ):
        load_couplings(decoder("llama", seed=1), path.parent)
    with pytest.raises(ArgumentError, match="model: expected a model without couplings"):
        load_couplings(model, path.parent)
    with pytest.raises(ArgumentError, match="model: expected a model with couplings"):
        save_couplings(decoder("llama"), tmp_path)
    with pytest.raises(CheckpointError, match="expected the file"):
        load_couplings(decoder("llama"), tmp_path)


@pytest.mark.parametrize(
    ("facts", "problem"),
    [({}, "expected the entry 'boltzmann'"), ({"boltzmann": {}, "model": [1]}, "is damaged")],
)
def test_a_file_that_is_not_of_couplings_is_refused(
    facts: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    save_checkpoint(tmp_path / "couplings.safetensors", {}, facts)
    with pytest.raises(CheckpointError, match=problem):
        load_couplings(decoder("llama"), tmp_path)


def test_an_index_that_names_files_elsewhere_is_refused(tmp_path: Path) -> None:
    convert(decoder("llama"), window=2, sampler="exact").save_pretrained(tmp_path / "model")
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "../outside.safetensors"}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(
        ArgumentError, match=r"^pretrained_model_name_or_path: .*got '../outside.safetensors'"
    ):
        load(tmp_path / "model")
