from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from diabat.checks import ArgumentError
from diabat.huggingface.loading import load_decoder

from .tiny import decoder, tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    decoder().train().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_decoder_and_its_tokenizer(folder: Path) -> None:
    tokenizer().save_pretrained(folder)
    model, found = load_decoder(str(folder))
    assert not model.training
    assert model.dtype == torch.float32
    assert found("the film")["input_ids"] == tokenizer()("the film")["input_ids"]
    tokens = torch.tensor([[4, 5, 6]])
    torch.testing.assert_close(model(tokens).logits, decoder()(tokens).logits)


def test_a_folder_without_tokenizer_serves_token_ids(folder: Path) -> None:
    model, found = load_decoder(str(folder), dtype="bfloat16")
    assert found is None
    assert model.dtype == torch.bfloat16


def test_models_that_are_not_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ArgumentError, match=r"model: expected the name of a model or a folder, got '/no/such/model'"
    ):
        load_decoder("/no/such/model")
    with pytest.raises(ArgumentError, match=r"model: expected a folder with config\.json"):
        load_decoder(str(tmp_path))
    with pytest.raises(ArgumentError, match=r"model: .*'diabat-tests/none' .*check the spelling"):
        load_decoder("diabat-tests/none", local_files_only=True)


def test_models_that_are_no_complete_decoder(tmp_path: Path) -> None:
    import transformers

    sizes: dict[str, Any] = {
        "d_model": 16,
        "d_kv": 4,
        "d_ff": 16,
        "num_layers": 1,
        "num_heads": 2,
        "vocab_size": 9,
    }
    transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).save_pretrained(tmp_path / "t5")
    with pytest.raises(ArgumentError, match=r"model: expected a causal language model, got .* of type t5"):
        load_decoder(str(tmp_path / "t5"))
    decoder().model.save_pretrained(tmp_path / "headless")
    with pytest.raises(
        ArgumentError, match=r"expected the weights of a causal language model, .*without lm_head"
    ):
        load_decoder(str(tmp_path / "headless"))


def test_options_that_are_unknown(folder: Path) -> None:
    with pytest.raises(
        ArgumentError, match="dtype: expected one of float32, bfloat16, float16, got 'float64'"
    ):
        load_decoder(str(folder), dtype="float64")
    with pytest.raises(ArgumentError, match="device: expected a device that torch has here, got 'abacus'"):
        load_decoder(str(folder), device="abacus")
