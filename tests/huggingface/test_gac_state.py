"""The calibration beside a model: written, read, and refused for another one."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="the extra 'hf' is not installed")

import transformers
from tiny_decoders import decoder, logits, prompts

from diabat.attention.heads import Calibration
from diabat.checks import ArgumentError
from diabat.files import seal
from diabat.huggingface import disable_gac, enable_gac, load_gac, save_gac

NAMES = ("llama", "qwen2", "qwen3", "mistral", "gpt2", "gemma2")
SETTING = Calibration({0: [3], 2: ()}, alpha=0.05, beta=0.3, redistribution="uniform")


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def saved(name: str, folder: Path, **changes: Any) -> Any:
    model = decoder(name, **changes)
    enable_gac(model, SETTING)
    model.save_pretrained(folder)
    save_gac(model, folder)
    return model


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_model_is_calibrated_again_by_one_call(name: str, tmp_path: Path) -> None:
    model, batch = saved(name, tmp_path), prompts()
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.config._attn_implementation == (
        "eager" if name == "gemma2" else "sdpa"
    )  # what it has by default
    assert load_gac(again, tmp_path) == SETTING
    assert torch.equal(logits(again, batch), logits(model, batch))
    assert [file.name for file in tmp_path.glob("*gac*")] == ["gac.json"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_model_may_be_read_in_another_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    saved("llama", tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    assert load_gac(again, tmp_path) == SETTING


# peft 0.21 reads an attribute that transformers 5.23 is about to rename
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_with_an_adapter_it_is_still_the_model(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="the extra 'hf' is not installed")
    saved("llama", tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    adapted = peft.get_peft_model(again, peft.LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
    assert load_gac(adapted, tmp_path) == SETTING
    with torch.no_grad():
        again.model.layers[1].self_attn.q_proj.base_layer.weight.mul_(1.5)
    with pytest.raises(ArgumentError, match=r"got one of other weights \(layer 1\)"):
        load_gac(adapted, tmp_path)


def test_the_calibration_of_another_model_is_refused(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    other = decoder("llama", seed=1)
    with pytest.raises(
        ArgumentError, match=r"folder: expected the calibration of this model .* \(embedding\)"
    ):
        load_gac(other, tmp_path)
    assert other.config._attn_implementation == "sdpa"
    with pytest.raises(
        ArgumentError, match="got one of a model with model_type 'llama', where this one has 'gpt2'"
    ):
        load_gac(decoder("gpt2"), tmp_path)
    with pytest.raises(ArgumentError, match="num_hidden_layers 3, where this one has 4"):
        load_gac(decoder("llama", num_hidden_layers=4), tmp_path)
    tuned = decoder("llama")
    with torch.no_grad():  # fine-tuned a little, embeddings frozen
        for layer in tuned.model.layers:
            layer.self_attn.v_proj.weight.mul_(1 + 1e-5)
    with pytest.raises(ArgumentError, match=r"got one of other weights \(layer 0\)"):
        load_gac(tuned, tmp_path)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    model = decoder("llama")
    with pytest.raises(
        ArgumentError, match=r"folder: expected the folder of a model, got '.*nowhere', which is not a folder"
    ):
        load_gac(model, tmp_path / "nowhere")
    with pytest.raises(
        FileNotFoundError, match=r"gac\.json: no such file, expected a calibration that save_gac wrote"
    ):
        load_gac(model, tmp_path)
    with pytest.raises(
        ArgumentError, match="model: expected a model with a calibration enabled, got one without"
    ):
        save_gac(model, tmp_path)
    enable_gac(model, SETTING)
    with pytest.raises(ArgumentError, match="folder: expected the folder of a model"):
        save_gac(model, tmp_path / "nowhere")
    disable_gac(model)
    assert list(tmp_path.iterdir()) == []


def without(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda content: content.pop(key)


BROKEN: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (without("format"), "expected the format 'diabat-gac', version 1"),
    (lambda c: c.update(version=2), "expected the format 'diabat-gac', version 1"),
    (without("calibration"), "expected calibration, architecture and samples"),
    (without("model"), "expected calibration, architecture and samples"),
    (lambda c: c["model"].pop("samples"), "expected calibration, architecture and samples"),
    (lambda c: c["model"]["samples"].update(embedding="x"), "expected calibration, architecture and samples"),
    (
        lambda c: c["model"]["samples"].update(embedding=[None]),
        "expected calibration, architecture and samples",
    ),
    (
        lambda c: c["model"]["samples"].update(embedding=[10**400]),
        "expected calibration, architecture and samples",
    ),
    (
        lambda c: c["calibration"].update(alpha=2),
        r"expected a calibration in .*, got alpha: expected a number in",
    ),
    (lambda c: c["calibration"].update(salient={"x": []}), "got salient: expected an integer >= 0, got 'x'"),
    (lambda c: c["calibration"].update(gamma=1), "got calibration: expected the keys"),
    (
        lambda c: c["calibration"].update(salient={"9": []}),
        r"folder: expected .*gac\.json, got salient: expected layers among",
    ),
]


@pytest.mark.parametrize(("change", "sentence"), BROKEN, ids=range(len(BROKEN)))
def test_damaged_files_are_refused(
    change: Callable[[dict[str, Any]], Any], sentence: str, tmp_path: Path
) -> None:
    model = saved("llama", tmp_path)
    disable_gac(model)
    file = tmp_path / "gac.json"
    content = json.loads(file.read_text())
    del content["sha256"]
    change(content)
    file.write_bytes(seal(content))
    with pytest.raises(ArgumentError, match=sentence):
        load_gac(model, tmp_path)
    assert model.config._attn_implementation == "sdpa"


def test_a_changed_file_is_refused_though_it_is_a_calibration(tmp_path: Path) -> None:
    """One bit of a digit would be another calibration, silently."""
    model = saved("llama", tmp_path)
    disable_gac(model)
    file = tmp_path / "gac.json"
    text = file.read_text()
    assert '"alpha": 0.05' in text
    for changed in (
        text.replace('"alpha": 0.05', '"alpha": 0.15'),
        text.replace('"sha256": "', '"sha256": "0'),
    ):
        file.write_text(changed)
        with pytest.raises(
            ArgumentError, match=r"^folder: expected .*gac\.json as save_gac wrote it, got .*\.$"
        ):
            load_gac(model, tmp_path)
        assert model.config._attn_implementation == "sdpa"
    file.write_text(json.dumps(json.loads(text)))  # other white space
    assert load_gac(model, tmp_path) == SETTING


def test_numbers_of_other_types_are_written(tmp_path: Path) -> None:
    model = decoder("llama")
    enable_gac(model, Calibration({0: {1, 2}}, alpha=np.float32(0.25), beta=Fraction(1, 2)))  # type: ignore[arg-type]
    save_gac(model, tmp_path)
    assert load_gac(model, tmp_path) == Calibration({0: [1, 2]}, alpha=0.25, beta=0.5)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe\x00", b'{"a": NaN}', b'{"a": 1, "a": 2}'])
def test_files_that_are_no_calibration_are_refused(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "gac.json").write_bytes(text)
    with pytest.raises(ArgumentError, match=r"^folder: expected .*gac\.json, got .*\.$"):
        load_gac(decoder("llama"), tmp_path)


def test_a_file_is_replaced_whole_and_a_link_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "gac.json").symlink_to(elsewhere)
    model = decoder("llama")
    enable_gac(model, SETTING)
    assert save_gac(model, folder) == folder / "gac.json"
    assert elsewhere.read_text() == "mine"
    assert load_gac(model, folder) == SETTING
