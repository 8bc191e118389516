"""The calibration beside a model: written, read, and refused for another one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_decoders import adapted, decoder

from diabat.checks import ArgumentError
from diabat.heads import Calibration, disable_gac, enable_gac, load_gac, save_gac

SETTING = Calibration({0: [3], 2: ()}, alpha=0.05, beta=0.3, redistribution="uniform")


def saved(folder: Path) -> Any:
    model = decoder("llama")
    enable_gac(model, SETTING)
    model.save_pretrained(folder)
    save_gac(model, folder)
    disable_gac(model)
    return model


def test_the_model_may_be_read_in_another_precision(tmp_path: Path) -> None:
    saved(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert load_gac(again, tmp_path) == SETTING


# peft 0.21 reads an attribute that transformers 5.23 is about to rename
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_an_adapter_is_part_of_the_model_while_it_is_active(tmp_path: Path) -> None:
    model = adapted(saved(tmp_path))
    with pytest.raises(ArgumentError, match="got one of a model with other adapters"):
        load_gac(model, tmp_path)
    with model.disable_adapter():
        assert load_gac(model, tmp_path) == SETTING
    save_gac(model, tmp_path)
    assert load_gac(model, tmp_path) == SETTING


def tuned() -> Any:
    """One weight changed a little."""
    model = decoder("llama")
    with torch.no_grad():
        model.model.layers[2].mlp.down_proj.weight[0, 0] *= 1 + 1e-5
    return model


ROPE = {"rope_type": "default", "rope_theta": 5e5}


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (lambda: decoder("llama", seed=1), "weights"),
        (lambda: decoder("gpt2"), "configuration and weights"),
        (lambda: decoder("llama", num_hidden_layers=4), "configuration and weights"),
        (lambda: decoder("llama", rope_parameters=ROPE), "configuration and weights"),  # a buffer
        (lambda: decoder("llama", rms_norm_eps=1e-3), "configuration"),
        (tuned, "weights"),
    ],
)
def test_calibrations_of_other_models_are_refused(
    other: Callable[[], Any], what: str, tmp_path: Path
) -> None:
    saved(tmp_path)
    model = other()
    sentence = rf"folder: expected the calibration of this model .* got one of a model with other {what}\."
    with pytest.raises(ArgumentError, match=sentence):
        load_gac(model, tmp_path)
    assert model.config._attn_implementation == "sdpa"


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    model, nowhere = decoder("llama"), tmp_path / "nowhere"
    for path, file in ((nowhere, "nowhere"), (tmp_path, r"gac\.json")):
        missing = f"{file}: no such file, expected a calibration that save_gac"
        with pytest.raises(FileNotFoundError, match=missing):
            load_gac(model, path)
    with pytest.raises(ArgumentError, match="model: expected a model with a calibration enabled, got one"):
        save_gac(model, tmp_path)
    enable_gac(model, SETTING)
    sentence = r"folder: expected the folder of a model, got '.*nowhere', which is not a folder"
    with pytest.raises(ArgumentError, match=sentence):
        save_gac(model, nowhere)


def setting(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda content: content["calibration"].update(changes)


WRITTEN = "expected a calibration that save_gac wrote in .*gac.json, got "


@pytest.mark.parametrize(("change", "sentence"), [
    (lambda c: c.pop("calibration"), WRITTEN + "no 'calibration'"),
    (lambda c: c.pop("model"), WRITTEN + "no 'model'"),
    (lambda c: c["model"].pop("adapters"), WRITTEN + "no 'adapters'"),
    (lambda c: c["model"].update(weights=3), WRITTEN + "a digest that is no text"),
    (lambda c: c.update(model=3), WRITTEN),
    (setting(alpha=2), WRITTEN + "alpha: expected a number in"),
    (setting(salient={"x": []}), WRITTEN + "salient: expected an integer >= 0, got 'x'"),
    (setting(gamma=1), WRITTEN + "calibration: expected the keys"),
    (setting(salient={"9": []}), r"expected .*gac\.json, got salient: expected layers among"),
], ids=range(9))  # fmt: skip
def test_damaged_files_are_refused(
    change: Callable[[dict[str, Any]], Any], sentence: str, tmp_path: Path
) -> None:
    model, file = saved(tmp_path), tmp_path / "gac.json"
    content = json.loads(file.read_text())
    file.write_text(file.read_text().replace('"alpha": 0.05', '"alpha": 0.15'))
    assert load_gac(model, tmp_path).alpha == 0.15  # which a user may change
    disable_gac(model)
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(ArgumentError, match=f"^folder: {sentence}"):
        load_gac(model, tmp_path)
    assert model.config._attn_implementation == "sdpa"


def test_files_that_are_no_calibration_are_refused(tmp_path: Path) -> None:
    for text in (b"", b"{", b"[]", b"\xff\xfe\x00", b'{"a": NaN}', b'{"a": 1, "a": 2}', b"[" * 9999):
        (tmp_path / "gac.json").write_bytes(text)
        with pytest.raises(ArgumentError, match=f"^folder: {WRITTEN}"):
            load_gac(decoder("llama"), tmp_path)


def test_a_file_is_replaced_whole_and_a_link_is_not_followed(tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "model"
    elsewhere.write_text("mine")
    folder.mkdir()
    (folder / "gac.json").symlink_to(elsewhere)
    model = decoder("llama")
    enable_gac(model, SETTING)
    assert save_gac(model, folder) == folder / "gac.json"
    assert elsewhere.read_text() == "mine"
    assert load_gac(model, folder) == SETTING
