"""Decoders and adapters from folders: loaded whole, refused in a sentence, and safe if somebody else made them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_decoders as tiny
import torch
import transformers
from safetensors.torch import load_file, save_file

from diabat.checks import ArgumentError
from diabat.huggingface import load_adapter, load_decoder

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.decoder().train().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def test_a_decoder_and_its_tokenizer(folder: Path) -> None:
    model, none = load_decoder(folder, dtype="bfloat16")
    assert none is None  # models on token ids need no tokenizer
    assert model.dtype == torch.bfloat16
    tiny.tokenizer().save_pretrained(folder)
    model, found = load_decoder(str(folder))
    assert not model.training
    assert model.dtype == torch.float32
    assert found("the film")["input_ids"] == tiny.tokenizer()("the film")["input_ids"]
    torch.testing.assert_close(
        tiny.logits(model, tiny.prompts()), tiny.logits(tiny.decoder(), tiny.prompts())
    )


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("/no/such/model", {}, "model: expected the name of a model or a folder, got '/no/such/model'"),
        (".", {}, r"model: expected a folder with config\.json"),
        ("diabat-tests/none", {"local_files_only": True}, "model: .*'diabat-tests/none' .*check the spelling"),
        ("https://hf.co/some/model", {}, "model: expected the name of a model or a folder, got an address"),
        ("some/model", {"dtype": "float64"}, "dtype: expected one of float32, bfloat16, float16, got 'float64'"),
        ("some/model", {"device": "abacus"}, "device: expected a device that torch has here, got 'abacus'"),
    ],
)  # fmt: skip
def test_names_and_options(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{sentence}"):
        load_decoder(name, **options)


def without_head(folder: Path) -> None:
    tiny.decoder().model.save_pretrained(folder)


def other_kind(folder: Path) -> None:
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 9}
    transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).save_pretrained(folder)


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(tiny.decoder().state_dict(), folder / "pytorch_model.bin")


def outside(folder: Path) -> None:
    """An index that names weights beside the folder, which are there."""
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    named = dict.fromkeys(tiny.decoder().state_dict(), "../outside.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": named}))


def device(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/dev/zero")


MODEL = "expected the folder of a causal language model, got '.*': .*"
ADAPTER = '{"peft_type": "LORA", "megatron_config": {"a": 1}}'
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
    tiny.decoder().save_pretrained(tmp_path / "blobs", max_shard_size="20KB")
    (tmp_path / "model").mkdir()
    for file in (tmp_path / "blobs").iterdir():
        (tmp_path / "model" / file.name).symlink_to(file)
    assert (tmp_path / "model" / "model.safetensors.index.json").exists()
    model, _ = load_decoder(tmp_path / "model")
    torch.testing.assert_close(
        tiny.logits(model, tiny.prompts()), tiny.logits(tiny.decoder(), tiny.prompts())
    )


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    tiny.adapted(tiny.decoder()).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


OWN = {"modules_to_save": ["lm_head"], "use_rslora": True, "rank_pattern": {"q_proj": 2}, "task_type": None}


@pytest.mark.parametrize("options", [{}, OWN], ids=["plain", "with modules of its own"])
def test_an_adapter_is_loaded(options: dict[str, Any], tmp_path: Path) -> None:
    wrapped = tiny.adapted(tiny.decoder(), **options)
    if options:
        with torch.no_grad():
            wrapped.base_model.model.lm_head.modules_to_save["default"].weight.mul_(2)
    wrapped.save_pretrained(tmp_path)
    model = load_adapter(tiny.decoder(), tmp_path)
    assert not model.training
    assert torch.equal(tiny.logits(model, tiny.prompts()), tiny.logits(wrapped.eval(), tiny.prompts()))


def tensors(file: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    found = load_file(file)
    change(found)
    save_file(found, file)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda f: (f / CONFIG).unlink(), "expected a folder with adapter_config.json, got '.*' without it"),
        (lambda f: (f / WEIGHTS).unlink(), "expected a folder with adapter_model.safetensors, got '.*' without it"),
        (lambda f: (f / CONFIG).write_text("{"), "expected JSON in '.*adapter_config.json', got: Expecting"),
        (lambda f: (f / CONFIG).write_text("[]"), "expected peft_type 'LORA', got None"),
        (lambda f: edit(f / CONFIG, peft_type="XLORA"), "expected peft_type 'LORA', got 'XLORA'"),
        *(
            (
                lambda f, key=key, value=value: edit(f / CONFIG, **{key: value}),
                f"expected {key} .*, the only value that is taken from a folder, got",
            )
            for key, value in {
                "megatron_config": {"hidden_size": 8},
                "megatron_core": "somebody_elses",
                "corda_config": {"cache_file": "/tmp/pickle"},
                "lora_ga_config": {"cache_file": "/tmp/pickle"},
                "eva_config": {"rho": 2.0},
                "loftq_config": {"loftq_bits": 4},
                "arrow_config": {"top_k": 1},
                "layer_replication": [[0, 2]],
                "of_a_later_peft": "somebody_elses",
            }.items()
        ),
        (lambda f: cut(f / WEIGHTS), "expected an adapter of this model, got '.*': .*"),
        (
            lambda f: tensors(f / WEIGHTS, lambda t: t.pop(sorted(t)[3])),
            "expected an adapter of this model, got '.*' without .*lora_",
        ),
        (
            lambda f: tensors(f / WEIGHTS, lambda t: t.update({"base_model.layers.9.lora_A.weight": torch.ones(1)})),
            "expected an adapter of this model, got '.*' with .*layers.9.lora_A",
        ),
        (
            lambda f: tensors(f / WEIGHTS, lambda t: t.update({"base_model.model.other.weight": torch.ones(1)})),
            "expected an adapter of this model, got '.*' with base_model.model.other.weight",
        ),
        (lambda f: edit(f / CONFIG, target_modules=["p_proj"]), "expected an adapter of this model, got .*p_proj"),
        (lambda f: edit(f / CONFIG, r=8), "expected an adapter of this model, got '.*': .*"),
        (lambda f: edit(f / CONFIG, r="x"), "expected an adapter of this model, got '.*': .*"),
    ],
    ids=range(21),
)  # fmt: skip
def test_adapters_that_are_refused(
    spoil: Callable[[Path], Any], sentence: str, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(adapter)
    (adapter / "somebody_elses.py").write_text("raise RuntimeError('code of somebody else was run')")
    monkeypatch.syspath_prepend(adapter)
    with pytest.raises(ArgumentError, match=f"^adapter: {sentence}") as refused:
        load_adapter(tiny.decoder(), adapter)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


def test_an_adapter_of_another_model_is_refused(adapter: Path) -> None:
    for other in (tiny.decoder(hidden_size=64), tiny.decoder(num_hidden_layers=2), tiny.decoder("gpt2")):
        with pytest.raises(ArgumentError, match=r"^adapter: expected an adapter of this model, got '.*"):
            load_adapter(other, adapter)
