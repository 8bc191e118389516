"""Decoders, couplings and adapters from folders: loaded whole, refused in a sentence, safe if others made them."""

from __future__ import annotations

import copy
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tiny_decoders import adapted, decoder, logits, prompts, tokenizer
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import diabat
from diabat.checkpoints import CheckpointError, save_checkpoint
from diabat.checks import ArgumentError
from diabat.heads import disable_gac, enable_gac
from diabat.huggingface import convert, load_adapter, load_couplings, load_decoder, revert, save_couplings
from diabat.huggingface.boltzmann import model as models
from diabat.samplers.capabilities import UnsupportedError

from .methods import FIRST, HEADS, SETTING, SUPPORTED, assert_close, coupled, couplings, randomised

pytestmark = pytest.mark.filterwarnings("ignore:.*changes what the model computes:UserWarning")
CONFIG, WEIGHTS, FILE = "adapter_config.json", "adapter_model.safetensors", "boltzmann.json"
ADAPTER = '{"peft_type": "LORA", "megatron_config": {"a": 1}}'
every_architecture = pytest.mark.parametrize("name", SUPPORTED["boltzmann"])
from_pretrained = AutoModelForCausalLM.from_pretrained


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    decoder().train().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def test_a_decoder_and_its_tokenizer(folder: Path) -> None:
    model, none = load_decoder(folder, dtype="bfloat16")
    assert none is None  # models on token ids need no tokenizer
    assert model.dtype == torch.bfloat16
    tokenizer().save_pretrained(folder)
    model, found = load_decoder(str(folder))
    assert not model.training
    assert model.dtype == torch.float32
    assert found("the film")["input_ids"] == tokenizer()("the film")["input_ids"]
    torch.testing.assert_close(logits(model, prompts()), logits(decoder(), prompts()))


@pytest.mark.parametrize(("name", "options", "sentence"), [
    ("diabat-tests/none", {"local_files_only": True}, "model: .*'diabat-tests/none' .*check the spelling"),
    ("some/model", {"dtype": "float64"}, "dtype: expected one of float32, bfloat16, float16, got 'float64'"),
    ("some/model", {"device": "abacus"}, "device: expected a device that torch has here, got 'abacus'"),
])  # fmt: skip
def test_names_and_options(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{sentence}"):
        load_decoder(name, **options)


def without_head(folder: Path) -> None:
    decoder().model.save_pretrained(folder)


def other_kind(folder: Path) -> None:
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 9}
    transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).save_pretrained(folder)


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(decoder().state_dict(), folder / "pytorch_model.bin")


def outside(folder: Path) -> None:
    """An index that names weights beside the folder, which are there."""
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    named = dict.fromkeys(decoder().state_dict(), "../outside.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": named}))


def device(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/dev/zero")


MODEL = "expected the folder of a causal language model, got '.*': .*"
MODELS: list[tuple[Callable[[Path], Any], str]] = [
    (other_kind, "expected a causal language model, got '.*' of type t5"),
    (without_head, "expected the weights of a causal language model, .*without lm_head"),
    (pickled, MODEL + "model.safetensors"),
    (lambda f: cut(f / "model.safetensors"), MODEL),
    (lambda f: (f / "config.json").write_text("{"), "expected the folder of a model, got '.*': .*JSON"),
    (lambda f: edit(f / "config.json", model_type="llamma"), "expected the folder of a model, got '.*': .*llamma"),
    (lambda f: edit(f / "config.json", hidden_size=-3), "expected the folder of a"),
    (outside, "expected an index of files beside it in '.*index.json', got '../outside.safetensors'"),
    (lambda f: (f / "a.index.json").write_text("[]"), "expected an index of weights in '.*a.index.json', got: "),
    (device, "expected a folder of regular files, got '.*model.safetensors', which is none"),
    (lambda f: os.mkfifo(f / "tokenizer.json"), "expected a folder of regular files, got '.*tokenizer.json'"),
    # transformers fetches a kernel of this name and runs it.
    (lambda f: edit(f / "config.json", attn_implementation="somebody/kernel"),
     "expected a configuration without attn_implementation, got 'somebody/kernel'"),
    (lambda f: edit(f / "config.json", experts_implementation="somebody/kernel"),
     "expected a configuration without experts_implementation, got 'somebody/kernel'"),
    # transformers loads it, and would import what it names.
    (lambda f: (f / CONFIG).write_text(ADAPTER), "expected a model without adapter, got '.*' with adapter_config.json"),
    (lambda f: edit(f / "config.json", auto_map={"AutoModelForCausalLM": "code.Model"}, model_type="own"),
     "expected the folder of a model, got '.*': .*own"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "sentence"), MODELS, ids=range(len(MODELS)))
def test_folders_of_models_that_are_refused(
    spoil: Callable[[Path], Any], sentence: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damaged, of another kind, or naming code: nothing of it is run, and no advice about spelling is given."""
    spoil(folder)
    (folder / "code.py").write_text("raise RuntimeError('code of somebody else was run')")
    monkeypatch.setattr(
        "transformers.PreTrainedModel.load_adapter", lambda *a, **k: pytest.fail("an adapter was loaded")
    )
    with pytest.raises(ArgumentError, match=f"^model: {sentence}") as refused:
        load_decoder(str(folder))
    assert "spelling" not in str(refused.value)


def test_weights_in_pieces_and_links_to_files_are_loaded(tmp_path: Path) -> None:
    """As the cache of the hub has them."""
    decoder().save_pretrained(tmp_path / "blobs", max_shard_size="20KB")
    (tmp_path / "model").mkdir()
    for file in (tmp_path / "blobs").iterdir():
        (tmp_path / "model" / file.name).symlink_to(file)
    assert (tmp_path / "model" / "model.safetensors.index.json").exists()
    model, _ = load_decoder(tmp_path / "model")
    torch.testing.assert_close(logits(model, prompts()), logits(decoder(), prompts()))


@pytest.fixture
def plain_adapter(tmp_path: Path) -> Path:
    adapted(decoder()).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


OWN = {"modules_to_save": ["lm_head"], "use_rslora": True, "rank_pattern": {"q_proj": 2}, "task_type": None}


@pytest.mark.parametrize("options", [{}, OWN], ids=["plain", "with modules of its own"])
def test_an_adapter_is_loaded(options: dict[str, Any], tmp_path: Path) -> None:
    wrapped = adapted(decoder(), **options)
    if options:
        with torch.no_grad():
            wrapped.base_model.model.lm_head.modules_to_save["default"].weight.mul_(2)
    wrapped.save_pretrained(tmp_path)
    model = load_adapter(decoder(), tmp_path)
    assert not model.training
    assert torch.equal(logits(model, prompts()), logits(wrapped.eval(), prompts()))


def tensors(file: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    found = load_file(file)
    change(found)
    save_file(found, file)


def with_tensor(file: Path, name: str) -> None:
    tensors(file, lambda found: found.update({name: torch.ones(1)}))


# What would name code or files of others, or ask for what is not trained here.
UNSAFE: dict[str, Any] = {
    "megatron_config": {"hidden_size": 8}, "megatron_core": "somebody_elses", "eva_config": {"rho": 2.0},
    "corda_config": {"cache_file": "/tmp/pickle"}, "lora_ga_config": {"cache_file": "/tmp/pickle"},
    "loftq_config": {"loftq_bits": 4}, "arrow_config": {"top_k": 1}, "layer_replication": [[0, 2]],
    "of_a_later_peft": "somebody_elses",
}  # fmt: skip
OTHER = "expected an adapter of this model, got "
ADAPTERS: list[tuple[Callable[[Path], Any], str]] = [
    (lambda f: (f / CONFIG).unlink(), "expected a folder with adapter_config.json, got '.*' without it"),
    (lambda f: (f / WEIGHTS).unlink(), "expected a folder with adapter_model.safetensors, got '.*' without it"),
    (lambda f: (f / CONFIG).write_text("{"), "expected JSON in '.*adapter_config.json', got: Expecting"),
    (lambda f: (f / CONFIG).write_text("[]"), "expected peft_type 'LORA', got None"),
    (lambda f: edit(f / CONFIG, peft_type="XLORA"), "expected peft_type 'LORA', got 'XLORA'"),
    *((lambda f, key=key: edit(f / CONFIG, **{key: UNSAFE[key]}),
       f"expected {key} .*, the only value that is taken from a folder, got") for key in UNSAFE),
    (lambda f: cut(f / WEIGHTS), OTHER + "'.*': .*"),
    (lambda f: tensors(f / WEIGHTS, lambda t: t.pop(sorted(t)[3])), OTHER + "'.*' without .*lora_"),
    (lambda f: with_tensor(f / WEIGHTS, "base_model.layers.9.lora_A.weight"), OTHER + "'.*' with .*layers.9.lora_A"),
    (lambda f: with_tensor(f / WEIGHTS, "base_model.model.other.weight"),
     OTHER + "'.*' with base_model.model.other.weight"),
    (lambda f: edit(f / CONFIG, target_modules=["p_proj"]), OTHER + ".*p_proj"),
    (lambda f: edit(f / CONFIG, r=8), OTHER + "'.*': .*"),
    (lambda f: edit(f / CONFIG, r="x"), OTHER + "'.*': .*"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "sentence"), ADAPTERS, ids=range(len(ADAPTERS)))
def test_adapters_that_are_refused(
    spoil: Callable[[Path], Any], sentence: str, plain_adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(plain_adapter)
    (plain_adapter / "somebody_elses.py").write_text("raise RuntimeError('code of somebody else was run')")
    monkeypatch.syspath_prepend(plain_adapter)
    with pytest.raises(ArgumentError, match=f"^adapter: {sentence}") as refused:
        load_adapter(decoder(), plain_adapter)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


def test_an_adapter_of_another_model_is_refused(plain_adapter: Path) -> None:
    """By sizes and names, not by weights."""
    load_adapter(decoder(seed=1), plain_adapter)
    for other in (decoder(hidden_size=64), decoder(num_hidden_layers=2), decoder("gpt2")):
        with pytest.raises(ArgumentError, match=r"^adapter: expected an adapter of this model, got '.*"):
            load_adapter(other, plain_adapter)


def changed(folder: Path, settings: Any) -> None:
    """Write other settings into the configuration of a model folder."""
    file = folder / "config.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"boltzmann": settings}))


def test_settings_and_backends_are_saved(tmp_path: Path) -> None:
    backend = diabat.sampler("mean_field", max_iterations=60)
    model = coupled(sampler=backend, window=7, far="none", readout="probability", bandwidth=3, layers=(2, 0))
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.boltzmann["sampler_options"]["max_iterations"] == 60
    heads = from_pretrained(tmp_path).model.layers[0].self_attn.boltzmann
    assert repr(heads) == repr(model.model.layers[0].self_attn.boltzmann)
    assert heads.sampler.options["max_iterations"] == 60
    assert heads.couplings.pairs.shape == (8, 6 + 5 + 4)
    assert config.boltzmann["layers"] == [0, 2]


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
        lambda: from_pretrained(tmp_path),
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
    name = f"{HEADS}.sampler.schedule_angles"
    with torch.no_grad():
        model.get_parameter(name).mul_(1.001)
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(tmp_path, dtype=torch.bfloat16, sampler=backend)
    assert loaded.get_parameter(name).dtype == torch.float32
    assert torch.equal(loaded.get_parameter(name), model.get_parameter(name))
    assert not torch.equal(loaded.get_parameter(name), backend.schedule_angles)
    fresh = AutoModelForCausalLM.from_config(model.config, sampler=backend, dtype=torch.bfloat16)
    assert {J.dtype for J in couplings(fresh).values()} == {torch.float32}
    exact = from_pretrained(tmp_path, sampler="exact")
    exact.save_pretrained(tmp_path / "exact")
    assert torch.equal(logits(from_pretrained(tmp_path / "exact"), prompts()), logits(exact, prompts()))


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
        ({"window": 4, "readout": "odd"}, "readout: expected one of odds, probability, got 'odd'"),
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
        from_pretrained(tmp_path)


def test_plain_transformers_refuses_a_saved_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coupled().save_pretrained(tmp_path)
    monkeypatch.setattr(transformers.CONFIG_MAPPING, "_extra_content", {})  # what diabat has registered
    with pytest.raises(ValueError, match="type `boltzmann_llama` but Transformers does not"):
        from_pretrained(tmp_path)
    # Its own class does not, with diabat or without.
    own: Any = transformers.LlamaForCausalLM
    _, report = own.from_pretrained(tmp_path, output_loading_info=True)
    assert FIRST in report["unexpected_keys"]


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
        from_pretrained(tmp_path)
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
    (tmp_path / CONFIG).write_text(ADAPTER)
    for loading in (from_pretrained, type(model).from_pretrained):
        sentence = r"^model: expected a model without adapter, got .*adapter_config"
        with pytest.raises(ArgumentError, match=sentence):
            loading(tmp_path)


def test_no_other_attention_runs(tmp_path: Path) -> None:
    model = coupled()
    model.save_pretrained(tmp_path)
    sentence = "attn_implementation: expected 'boltzmann' for BoltzmannLlamaForCausalLM, since others ignore"
    with pytest.raises(UnsupportedError, match=sentence):
        from_pretrained(tmp_path, attn_implementation="sdpa")
    for name in ("eager", "sdpa", "flash_attention_2", "gac"):
        with pytest.raises(UnsupportedError, match=sentence):
            model.set_attn_implementation(name)
    before = logits(model, prompts())
    model.set_attn_implementation("boltzmann")
    assert torch.equal(logits(model, prompts()), before)


HEADED = [
    (name, task)
    for task in ("SequenceClassification", "TokenClassification", "QuestionAnswering")
    for name in SUPPORTED["boltzmann"]
    if transformers.CONFIG_MAPPING[name] in getattr(transformers, f"AutoModelFor{task}")._model_mapping
]
# Every architecture below one head; GPT-2 has heads of its own, the others are those of all models of transformers.
CHOSEN = [pair for pair in HEADED if pair[1] == "SequenceClassification" or pair[0] in ("llama", "gpt2")]
TARGETS: dict[str, dict[str, Tensor]] = {
    "SequenceClassification": {"labels": torch.tensor([0, 1, 1])},
    "TokenClassification": {"labels": torch.arange(42).view(3, 14) % 2},
    "QuestionAnswering": {
        "start_positions": torch.tensor([5, 6, 7]),
        "end_positions": torch.tensor([8, 9, 9]),
    },
}


def test_every_head_of_a_supported_architecture_has_a_kind_with_couplings() -> None:
    found = {(kind.config_class.model_type, kind._auto.__name__) for kind in models.kinds()}
    assert {(f"boltzmann_{name}", f"AutoModelFor{task}") for name, task in HEADED} <= found


@pytest.mark.parametrize(("name", "task"), CHOSEN)
def test_other_heads_are_converted_saved_loaded_and_reverted(name: str, task: str, tmp_path: Path) -> None:
    """Equal at J = 0, and trained; the card of the folder says how to load it, and one that is there stays.

    What is below the head is a model of its own.
    """
    auto = getattr(transformers, f"AutoModelFor{task}")
    plain = auto.from_config(decoder(name).config).eval()
    batch = {key: value for key, value in prompts().items() if key != "position_ids"}
    before, kinds = outputs(plain, batch), [type(part) for part in plain.modules()]
    attention = plain.config._attn_implementation
    model = convert(plain, 4)
    assert_close(outputs(model, batch), before)
    randomised(model)(**batch, **TARGETS[task]).loss.backward()
    assert all(J.grad.abs().max() > 0 for J in couplings(model).values())
    model.save_pretrained(tmp_path)
    loaded = auto.from_pretrained(tmp_path)
    assert torch.equal(outputs(loaded, batch), outputs(model, batch))
    if (
        model.base_model_prefix == model.base_model.base_model_prefix
    ):  # transformers does not find other bodies either
        body = AutoModel.from_pretrained(tmp_path)
        with torch.no_grad():
            below = model.base_model(**batch).last_hidden_state
            assert torch.equal(body(**batch).last_hidden_state, below)
    card = tmp_path / "README.md"
    assert f"AutoModelFor{task}.from_pretrained(folder)" in card.read_text()
    card.write_text("mine")
    model.save_pretrained(tmp_path)
    assert card.read_text() == "mine"
    for found in (model, loaded):
        assert torch.equal(outputs(revert(found), batch), before)
        assert [type(part) for part in found.modules()] == kinds
        assert found.config._attn_implementation == attention


def test_below_another_head_the_body_is_converted_and_reverted(tmp_path: Path) -> None:
    """Its couplings are saved alone."""
    model, batch = transformers.GPT2DoubleHeadsModel(decoder("gpt2").config).eval(), prompts((0,))
    before = logits(model, batch)
    randomised(convert(model.transformer, 4))
    after = logits(model, batch)
    assert not torch.allclose(after, before, atol=1e-3)
    save_couplings(model.transformer, tmp_path)
    assert torch.equal(logits(model, batch, use_cache=False), after)
    revert(model.transformer)
    assert torch.equal(logits(model, batch), before)
    load_couplings(model.transformer, tmp_path)
    assert torch.equal(logits(model, batch), after)


def outputs(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """What the head returns, without gradients; 0 at padding."""
    with torch.no_grad():
        found = model(**batch)
    logits = found.logits if "logits" in found else torch.stack((found.start_logits, found.end_logits), -1)
    return logits if logits.ndim == 2 else logits * batch["attention_mask"][:, :, None]


def test_models_are_pickled() -> None:
    model = coupled()
    assert torch.equal(logits(pickle.loads(pickle.dumps(model)), prompts()), logits(model, prompts()))


FORMS: list[dict[str, Any]] = [
    {"window": 4},
    {"window": 4, "far": "none", "readout": "probability", "bandwidth": 2},
    {"window": 3, "sampler": diabat.sampler("mean_field", max_iterations=60)},
    {"window": 4, "layers": [2, 0]},
]


@pytest.mark.parametrize("form", FORMS[:1] + FORMS[3:], ids=str)
def test_couplings_alone_are_saved_and_given_to_the_plain_model(form: dict[str, Any], tmp_path: Path) -> None:
    """Also to one that was loaded in half precision; another model refuses them."""
    model = randomised(convert(decoder("llama"), **form))
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
        from_pretrained(tmp_path / "model")


def with_couplings(model: Any, **options: Any) -> Any:
    """The model of peft, with couplings of its own."""
    wrapped = adapted(model, modules_to_save=["boltzmann"], **options).eval()
    randomised(wrapped, seed=7)
    return wrapped


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    with_couplings(convert(decoder(), 4)).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize("form", FORMS, ids=range(len(FORMS)))
def test_the_plain_model_is_converted_as_the_adapter_says(form: dict[str, Any], tmp_path: Path) -> None:
    """Its backend with its options too; and a model that is converted alike takes the adapter as well."""
    model, batch = with_couplings(convert(decoder(), **form)), prompts()
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / FILE).read_text()) == {"boltzmann": model.config.boltzmann}
    loaded = load_adapter(decoder(), tmp_path)
    assert loaded.config.boltzmann == model.config.boltzmann
    assert torch.equal(logits(loaded, batch), logits(model, batch))
    again = load_adapter(convert(decoder(), **form), tmp_path)
    assert torch.equal(logits(again, batch), logits(model, batch))
    loaded.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / FILE).read_bytes() == (tmp_path / FILE).read_bytes()


@pytest.mark.parametrize(("others", "sentence"), [
    ({"far": "none"}, "expected couplings with far = 'none', as the model has, got far = 'independent' in"),
    ({"readout": "probability"}, "expected couplings with readout = 'probability', .* got readout = 'odds' in"),
    ({"bandwidth": 2}, "expected couplings with bandwidth = 2, as the model has, got bandwidth = 3 in"),
    ({"window": 5}, "expected couplings with window = 5, as the model has, got window = 4 in"),
    ({"layers": [1]}, r"expected couplings with layers = \[1\], as the model has, got layers = None in"),
], ids=str)  # fmt: skip
def test_a_model_with_other_settings_refuses_the_adapter(
    others: dict[str, Any], sentence: str, adapter: Path
) -> None:
    model = convert(decoder(), **{"window": 4} | others)
    with pytest.raises(ArgumentError, match=f"^adapter: {sentence}"):
        load_adapter(model, adapter)


def test_a_calibrated_model_takes_no_couplings(adapter: Path, tmp_path: Path) -> None:
    """They would replace the calibration, and `revert` would leave its attention without it."""
    save_couplings(coupled(), tmp_path)
    for converting in (convert, lambda m: load_couplings(m, tmp_path), lambda m: load_adapter(m, adapter)):
        model = decoder()
        enable_gac(model, SETTING)
        before = logits(model, prompts())
        for part in (model, model.model):
            with pytest.raises(
                UnsupportedError, match=r"^model: .* not calibrated, got .*'gac'; disable_gac first"
            ):
                converting(part)
        assert torch.equal(logits(model, prompts()), before)
        disable_gac(model)
        assert torch.equal(logits(model, prompts()), logits(decoder(), prompts()))
        converting(model)


def test_defaults_that_are_spelled_out_are_the_same_settings(adapter: Path) -> None:
    """And the backend is chosen in code."""
    loaded = load_adapter(convert(decoder(), 4, "mean_field", bandwidth=3), adapter)
    assert loaded.config.boltzmann["sampler"] == "mean_field"


def test_an_adapter_without_settings_is_not_guessed_at(adapter: Path) -> None:
    """As those that were saved before the file existed: the model says how, and nobody can compare."""
    (adapter / FILE).unlink()
    with pytest.raises(
        ArgumentError,
        match=r"^adapter: expected boltzmann.json beside .*got '.*' without it; convert the model",
    ):
        load_adapter(decoder(), adapter)
    with pytest.warns(
        UserWarning, match=r"^adapter: '.*' has couplings without boltzmann.json; .*cannot be checked"
    ):
        model = load_adapter(convert(decoder(), 4), adapter)
    assert torch.equal(logits(model, prompts()), logits(with_couplings(convert(decoder(), 4)), prompts()))


def test_couplings_that_stayed_in_the_model_are_missed(tmp_path: Path) -> None:
    """An adapter of projections alone, beside a model whose J it does not hold."""
    model = adapted(coupled())
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(load_adapter(coupled(), tmp_path), prompts()), logits(model.eval(), prompts()))
    with pytest.raises(
        ArgumentError, match=r"^model: expected the model with couplings that .*got LlamaFor.* without"
    ):
        load_adapter(decoder(), tmp_path)


@pytest.mark.parametrize(("content", "sentence"), [
    ("{", "expected JSON in '.*boltzmann.json', got: Expecting"),
    ("[]", r"expected settings as 'boltzmann' in '.*boltzmann.json', got \[\]"),
    ('{"boltzmann": null}', "expected settings as 'boltzmann' in '.*boltzmann.json', got {'boltzmann': None}"),
    ('{"boltzmann": {"window": 0}}', "expected settings in '.*boltzmann.json', got: window: expected an integer"),
    ('{"boltzmann": {"window": 40}}', "expected settings in .*, got: window: sampler 'exact' accepts at most"),
    ('{"boltzmann": {"sampler": "dqa"}}', "expected settings in .*got 'dqa'; .*, convert.model, sampler=...."),
])  # fmt: skip
def test_settings_that_are_refused(content: str, sentence: str, adapter: Path) -> None:
    (adapter / FILE).write_text(content)
    model = decoder()
    with pytest.raises(ArgumentError, match=f"^adapter: {sentence}"):
        load_adapter(model, adapter)
    assert type(model) is type(decoder())


def test_every_adapter_has_the_settings_of_its_own_model(tmp_path: Path) -> None:
    """One configuration may serve several models, with couplings or without, and a model several adapters."""
    shared = LoraConfig(target_modules=["q_proj"], modules_to_save=["boltzmann"], task_type="CAUSAL_LM")
    models = {window: get_peft_model(convert(decoder(), window), shared) for window in (3, 4)}
    for window, model in models.items():
        model.add_adapter("second", shared)
        model.train().save_pretrained(tmp_path / str(window))
        for folder in (tmp_path / str(window), tmp_path / str(window) / "second"):
            assert json.loads((folder / FILE).read_text())["boltzmann"]["window"] == window
    shared.modules_to_save = None
    get_peft_model(decoder(), shared).save_pretrained(tmp_path / "plain")
    assert not (tmp_path / "plain" / FILE).exists()
    other = copy.deepcopy(models[3])
    pickle.loads(pickle.dumps(other)).save_pretrained(tmp_path / "copy")
    assert json.loads((tmp_path / "copy" / FILE).read_text())["boltzmann"]["window"] == 3


def test_adapters_of_transformers_itself(tmp_path: Path) -> None:
    model = convert(decoder(), 4)
    model.add_adapter(LoraConfig(target_modules=["q_proj"], modules_to_save=["boltzmann"]))
    randomised(model).save_pretrained(tmp_path)
    loaded = load_adapter(decoder(), tmp_path)
    assert torch.equal(logits(loaded, prompts()), logits(model, prompts()))


@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_saving_warns_of_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """peft reads the configuration of the plain model as one with couplings, to compare vocabularies."""
    decoder(name).save_pretrained(tmp_path / "plain")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    model = with_couplings(convert(plain, 4))
    logger = "transformers.configuration_utils.logger.warning"
    monkeypatch.setattr(logger, lambda text, *_: pytest.fail(text))
    model.save_pretrained(tmp_path / "adapter")
    with pytest.raises(ArgumentError, match="expected the settings of a converted model, got None"):
        type(model.base_model.model).from_pretrained(tmp_path / "plain")
