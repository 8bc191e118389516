"""Run folders from before samplers were modules of the model: angles belonged to the layer, chains to nobody."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from run_checks import assert_same_run

from diabat.circuits import TrotterPlan
from diabat.files import digest, seal
from diabat.models import Transformer, TransformerOptions
from diabat.samplers import Sampler, sampler
from diabat.samplers.dqa import DQASampler
from diabat.training import CheckpointError, load_model
from diabat.training.checkpoint import find_checkpoints
from fuzz.tiny import tiny_task, tiny_train

PLAN = TrotterPlan(*np.random.default_rng(3).normal(size=(3, 4)))
CHAINS = {"num_replicas": 2, "burn_in": 2, "persistent": True}
SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "angles": lambda: DQASampler(schedule=PLAN, learn_schedule=True, precision="single"),
    "chains": lambda: sampler("tempering", **CHAINS, sweeps=2, num_chains=3),
    "chains of a base": lambda: sampler("refine", sampler="tempering", options=CHAINS, sweeps=1, num_reads=9),
}
EQUAL_BATCHES = 48


def model(name: str, seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    task = tiny_task(EQUAL_BATCHES)
    options = TransformerOptions(embed_dim=8, ffn_dim=0, num_layers=2, dropout=0.0)
    built = Transformer(options, task.vocab_size, task.num_classes, task.window, SAMPLERS[name]())
    with torch.no_grad():
        for layer in built.attention_layers():
            assert layer.coupling_pairs is not None
            layer.coupling_pairs.normal_(std=1.0)
    return built


def former(name: str) -> str:
    """As an earlier version named this tensor."""
    if name.startswith("samplers."):
        path, _, key = name.removeprefix("samplers.").rpartition(".")
        return f"sampler.{key}.{path.partition('.sampler')[0]}"
    return name.replace("sampler.schedule_angles", "schedule_angles.0")


def age(run: Path) -> int:
    """Give every tensor of a run its former name; how many had another."""
    changed = 0
    for folder in [*find_checkpoints(run, "step"), *find_checkpoints(run, "best")]:
        facts: dict[str, Any] = json.loads((folder / "state.json").read_bytes())
        del facts["sha256"]
        for path in folder.glob("*.safetensors"):
            tensors = safetensors.torch.load(path.read_bytes())
            changed += sum(former(name) != name for name in tensors)
            content = safetensors.torch.save({former(name): tensor for name, tensor in tensors.items()})
            path.write_bytes(content)
            facts["files"][path.name] = {"bytes": len(content), "sha256": digest(content)}
        (folder / "state.json").write_bytes(seal(facts))
    return changed


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_former_run_goes_on_bit_for_bit(tmp_path: Path, name: str) -> None:
    task = tiny_task(EQUAL_BATCHES)
    options: dict[str, Any] = {"task": task, "ema_decay": 0.5}
    tiny_train(tmp_path / "straight", model=model(name), **options)
    tiny_train(tmp_path / "run", model=model(name), max_epochs=2, **options)
    assert age(tmp_path / "run") >= 6
    tiny_train(tmp_path / "run", model=model(name, seed=9), resume=True, **options)
    assert_same_run(tmp_path / "run", tmp_path / "straight")


def test_former_weights_load_into_a_model(tmp_path: Path) -> None:
    trained = model("angles")
    tiny_train(tmp_path / "run", model=trained, task=tiny_task(EQUAL_BATCHES))
    expected = load_model(tmp_path / "run")
    age(tmp_path / "run")
    found = load_model(tmp_path / "run")
    assert found.keys() == expected.keys()
    # A state that was stored by hand has the former names still.
    by_hand = {former(name): tensor for name, tensor in expected.items()}
    assert "blocks.1.attention.schedule_angles.0" in by_hand
    other = model("angles", seed=5)
    other.load_state_dict(by_hand)
    state = other.state_dict()
    assert all(torch.equal(state[key], tensor) for key, tensor in expected.items())


def test_chains_of_another_sampler_are_refused(tmp_path: Path) -> None:
    task = tiny_task(EQUAL_BATCHES)
    tiny_train(tmp_path / "run", model=model("chains"), task=task, max_epochs=1)
    options = TransformerOptions(embed_dim=8, ffn_dim=0, num_layers=2, dropout=0.0)
    for backend, told in (
        (sampler("tempering"), "state: expected no chains for a sampler with persistent=False"),
        ("exact", r"state: expected the state of the samplers of the model, got blocks\.0.*chains"),
    ):
        other = Transformer(options, task.vocab_size, task.num_classes, task.window, backend)
        with pytest.raises(CheckpointError, match=told):
            tiny_train(tmp_path / "run", model=other, task=task, resume=True)
