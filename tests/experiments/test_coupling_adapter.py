from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from script_tables import tables
from tiny_decoders import VOCABULARY, decoder

from experiments import coupling_adapter
from experiments.coupling_adapter import ARMS, LENGTH, adapter, ledger, losses, offsets

IDS = torch.randint(VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(0))
BUILT = {arm: build for arm, (_, build) in ARMS.items() if "4 layers" not in arm}
BUILT["LoRA"] = lambda model: adapter(model, None)


@pytest.mark.parametrize("arm", BUILT)
def test_an_arm_begins_with_the_model_and_is_trained(arm: str) -> None:
    model: Any = decoder("llama").requires_grad_(False)
    with torch.no_grad():
        before = losses(model, IDS)
    parameters = [p.requires_grad_() for p in BUILT[arm](model)]
    found = losses(model, IDS)
    assert (found - before).abs().max() < 1e-4
    optimiser = torch.optim.Adam(parameters, 1e-3)
    found.mean().backward()
    optimiser.step()
    with torch.no_grad():
        assert losses(model, IDS).mean() < before.mean()


def test_a_bias_per_offset_is_added_to_the_scores() -> None:
    """A large one at distance 1 makes every token attend to the one before; later tokens are not seen."""
    model: Any = decoder("llama", num_hidden_layers=1)
    model.set_attn_implementation("eager")
    (bias,) = offsets(model)
    with torch.no_grad():
        bias[:, 1] = 50
        weights = model(IDS, output_attentions=True).attentions[0]
    at = torch.arange(1, LENGTH)
    assert (weights[:, :, at, at - 1] > 0.99).all()
    assert not weights.triu(1).any()


def test_the_ledger_repeats_names_with_their_numbers() -> None:
    text = ledger(0, 200)
    assert text == ledger(0, 200) != ledger(1, 200)
    numbers = [word.strip(".") for word in text.split() if word.strip(".").isdigit()]
    assert 3 * len(set(numbers)) < len(numbers)


def test_every_seed_takes_the_best_rate_of_seed_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        "tokens": lambda text, folder: (IDS.flatten(), IDS),
        "load_decoder": lambda folder: (decoder("llama"), None),
        "smollm2": lambda folder: folder,
    }
    for name, value in made.items():
        monkeypatch.setattr(coupling_adapter, name, value)
    words = [tmp_path, "--texts", "ledger", "--arms", "biases per offset", "--steps", 2, "--seeds", 2]
    [[row]] = tables(coupling_adapter, *words, "--workers", 1)
    kept = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "ledger").iterdir()}
    rates = {kept[f"biases per offset, {factor} 0"]["loss"]: factor for factor in ("0.3", "1", "3")}
    names = [f"biases per offset, {rates[min(rates)]} {seed}" for seed in (0, 1)]
    assert len(kept) == 3 + 1
    assert row["seeds"] == 2
    assert row["loss"] == pytest.approx(sum(kept[name]["loss"] for name in names) / 2)
    assert row["gain"] == pytest.approx(sum(kept[name]["gain"] for name in names) / 2)
