from __future__ import annotations

import json
from pathlib import Path

import pytest

from .decoders import decoder


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A decoder on disk, with a tokenizer of characters."""
    import torch
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path / "model"
    decoder("llama", dtype=torch.float32).save_pretrained(folder)
    inner = Tokenizer(
        models.WordLevel({c: k for k, c in enumerate("\n abcdefghijklmnopqrstuvwxyz.")}, unk_token="\n")
    )
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(folder)
    return folder


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Twelve lines of text, every other one with a completion."""
    path = tmp_path / "texts.jsonl"
    lines = [
        {"text": "the cat sat on the mat ", "completion": "and slept."}
        if k % 2
        else {"text": f"a dog {'ran ' * (k + 1)}"}
        for k in range(12)
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return path
