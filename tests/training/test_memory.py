"""Training with chains that go on from batch to batch."""

from __future__ import annotations

from pathlib import Path

import torch
from run_checks import assert_same_run, metrics

from diabat.models import Transformer, TransformerOptions
from diabat.samplers import sampler
from diabat.samplers.state import carried, carry
from diabat.tasks import Task
from diabat.testing.problems import make_problem
from diabat.training.evaluate import evaluate
from fuzz.tiny import tiny_task, tiny_train


def chained_model(task: Task, *, seed: int = 0, persistent: bool = True) -> Transformer:
    torch.manual_seed(seed)
    options = TransformerOptions(embed_dim=8, ffn_dim=0, num_layers=2, dropout=0.0)
    backend = sampler("tempering", num_replicas=3, burn_in=2, sweeps=2, num_chains=4, persistent=persistent)
    model = Transformer(options, task.vocab_size, task.num_classes, task.window, backend)
    with torch.no_grad():
        for layer in model.attention_layers():  # at J = 0 a sweep forgets where it began
            assert layer.coupling_pairs is not None
            layer.coupling_pairs.normal_(std=1.5)
    return model


def one_step(model: Transformer, task: Task) -> dict[str, torch.Tensor]:
    model(task.train.inputs[:8])
    return carried(model)


def test_each_layer_has_its_own_chains() -> None:
    task = tiny_task()
    model = chained_model(task)
    memory = one_step(model, task)
    layers = ["blocks.0.attention", "blocks.1.attention"]
    assert sorted(memory) == sorted(
        f"{layer}.sampler.{key}" for key in ("chains", "couplings", "ladder") for layer in layers
    )
    first, second = (memory[f"{layer}.sampler.chains"] for layer in layers)
    assert first.shape == (4, 3, 8, 1, 4, 4)
    assert not torch.equal(first, second)
    assert carried(chained_model(task, persistent=False)) == {}


def test_a_resumed_run_goes_on_with_its_chains(tmp_path: Path) -> None:
    task = tiny_task(num_train=48)  # three equal batches, so that chains fit from batch to batch
    tiny_train(tmp_path / "straight", model=chained_model(task), task=task)
    tiny_train(tmp_path / "cut", model=chained_model(task), task=task, max_epochs=2)
    tiny_train(tmp_path / "cut", model=chained_model(task, seed=9), task=task, resume=True)
    assert_same_run(tmp_path / "cut", tmp_path / "straight")
    tiny_train(tmp_path / "fresh", model=chained_model(task, persistent=False), task=task)
    assert metrics(tmp_path / "fresh") != metrics(tmp_path / "straight")


def test_an_evaluation_does_not_change_the_chains() -> None:
    task = tiny_task()
    model = chained_model(task)
    before = one_step(model, task)
    first = evaluate(model, task.validation)
    after = carried(model)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert evaluate(model, task.validation) == first


def test_memory_is_put_back_by_layer() -> None:
    task = tiny_task()
    model, other = chained_model(task), chained_model(task)
    memory = one_step(model, task)
    carry(other, memory)
    found = carried(other)
    assert found.keys() == memory.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in memory.items())
    carry(other, {})
    assert carried(other) == {}


def test_composites_hand_on_the_memory_of_their_base() -> None:
    ising = make_problem((2,), 4, seed=1)
    refine = sampler("refine", sampler="tempering", options={"persistent": True, "num_replicas": 1}, sweeps=1)
    refine.sample(ising, 3, seed=1)
    memory = refine.state_dict()
    assert memory["base.chains"].shape == (3, 1, 2, 4)
    own = refine.with_own_parameters()
    assert own is not refine
    assert own.state_dict() == {}
    own.load_state_dict(memory)
    assert torch.equal(own.sample(ising, 3, seed=2).spins, refine.sample(ising, 3, seed=2).spins)
