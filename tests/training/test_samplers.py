"""Samplers that a training changes: chains that go on from batch to batch, and learned angles of an anneal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_checks import assert_same_run, metrics

from diabat.attention.coupled import coupling_parameters
from diabat.circuits import TrotterPlan
from diabat.lab.models import Transformer, TransformerOptions
from diabat.lab.tasks import Task
from diabat.lab.training import TrainOptions, evaluate, load_model
from diabat.lab.training.train import make_optimizer
from diabat.samplers import sampler
from diabat.samplers.dqa import DQASampler
from diabat.samplers.state import chain_state
from fuzz.tiny import tiny_model, tiny_task, tiny_train


def chained_model(task: Task, *, seed: int = 0, persistent: bool = True) -> Transformer:
    torch.manual_seed(seed)
    options = TransformerOptions(embed_dim=8, ffn_dim=0, num_layers=2, dropout=0.0)
    backend = sampler("tempering", num_replicas=3, burn_in=2, sweeps=2, num_chains=4, persistent=persistent)
    model = Transformer(options, task.vocab_size, task.num_classes, task.window, backend)
    with torch.no_grad():
        for layer in model.attention_layers():  # at J = 0 a sweep forgets where it began
            layer.couplings.get_parameter("pairs").normal_(std=1.5)
    return model


def one_step(model: Transformer, task: Task) -> dict[str, torch.Tensor]:
    model(task.train.inputs[:8])
    return chain_state(model)


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
    assert chain_state(chained_model(task, persistent=False)) == {}


def test_an_evaluation_does_not_change_the_chains() -> None:
    task = tiny_task()
    model = chained_model(task)
    before = one_step(model, task)
    first = evaluate(model, task.validation)
    after = chain_state(model)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert evaluate(model, task.validation) == first


PLAN = TrotterPlan(*np.random.default_rng(3).normal(size=(3, 4)))
NAME = "blocks.0.attention.sampler.schedule_angles"


def learning_model(task: Task, *, layers: int = 1, seed: int = 0, gradient: str = "auto") -> Transformer:
    torch.manual_seed(seed)
    options = TransformerOptions(embed_dim=8, ffn_dim=0, num_layers=layers, dropout=0.1)
    sampler = DQASampler(schedule=PLAN, learn_schedule=True, precision="single")
    return Transformer(options, task.vocab_size, task.num_classes, task.window, sampler, gradient)


def start() -> torch.Tensor:
    return torch.from_numpy(np.stack((PLAN.field_angles, PLAN.coupling_angles, PLAN.mixer_angles))).float()


def test_angles_and_couplings_have_groups_of_their_own() -> None:
    rates: dict[str, Any] = {
        "learning_rate": 1e-3,
        "coupling_learning_rate": 1e-5,
        "schedule_learning_rate": 7e-3,
    }
    options = TrainOptions(**rates, weight_decay=0.1, coupling_weight_decay=0.2)
    task, terms = tiny_task(), [(1, 6), (1, 4)]
    anneal = [(3, 4)] * 2  # whose angles do not decay
    for model, shapes in (
        (learning_model(task, layers=2), [[(1, 6)] * 2, anneal]),
        (tiny_model(task, "h+J+K"), [terms]),
        (tiny_model(task, "softmax"), []),
    ):
        groups = make_optimizer(model, options).param_groups
        assert [[p.shape for p in group["params"]] for group in groups[1:]] == shapes
        values = [(group["lr"], group["weight_decay"]) for group in groups]
        assert values == [(1e-3, 0.1), (1e-5, 0.2), (7e-3, 0.0)][: len(groups)]
        grouped = [id(p) for group in groups for p in group["params"]]
        assert sorted(grouped) == sorted(id(p) for p in model.parameters())


@pytest.mark.parametrize("make", [chained_model, learning_model])
def test_an_interrupted_run_goes_on_bit_for_bit(make: Callable[..., Transformer], tmp_path: Path) -> None:
    """With its chains and its angles; it does not depend on the weights that it is given."""
    task = tiny_task(num_train=48)  # three equal batches, so that chains fit from batch to batch
    options: dict[str, Any] = {"schedule_learning_rate": 1e-2, "task": task}
    tiny_train(tmp_path / "straight", model=make(task), **options)
    tiny_train(tmp_path / "run", model=make(task), max_epochs=1, **options)
    tiny_train(tmp_path / "run", model=make(task, seed=99), resume=True, **options)
    assert_same_run(tmp_path / "run", tmp_path / "straight")
    if make is chained_model:
        tiny_train(tmp_path / "fresh", model=chained_model(task, persistent=False), **options)
        assert metrics(tmp_path / "fresh") != metrics(tmp_path / "straight")
    else:
        assert bool((load_model(tmp_path / "run", "latest")[NAME] != start()).all())
        losses = [line["train_loss"] for line in metrics(tmp_path / "straight") if line["event"] == "epoch"]
        assert losses[-1] < losses[0]


def test_the_weights_that_were_saved_are_those_that_sample(tmp_path: Path) -> None:
    task = tiny_task()
    model = learning_model(task).eval()
    tiny_train(tmp_path / "run", model=model, task=task, schedule_learning_rate=5e-2)
    fresh = learning_model(task, seed=5).eval()
    fresh.load_state_dict(load_model(tmp_path / "run", "latest"))
    model.eval()
    assert torch.equal(fresh(task.validation.inputs), model(task.validation.inputs))
    (layer,) = fresh.attention_layers()
    assert isinstance(layer.sampler, DQASampler)
    assert np.array_equal(
        layer.sampler.plan.field_angles, load_model(tmp_path / "run", "latest")[NAME][0].double()
    )


OBSERVED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "exact": ({}, {"law": "boltzmann", "gradient": "exact", "num_reads": None, "watched": {}}),
    "mean_field": ({}, {"law": "mean-field", "gradient": "exact", "num_reads": None}),
    "tempering": (
        {"num_reads": 64, "num_chains": 4, "num_replicas": 2},
        {"law": "boltzmann", "gradient": "straight_through"},
    ),
    "dqa": (
        {"schedule": "boltzmann-4", "num_reads": 50},
        {"law": "diabatic", "engine": "native", "gradient": "adjoint", "num_reads": 50},
    ),
}


@pytest.mark.parametrize("name", OBSERVED)
def test_a_run_says_what_sampled_every_validation(tmp_path: Path, name: str) -> None:
    options, expected = OBSERVED[name]
    task = tiny_task()
    model = tiny_model(task, sampler=sampler(name, **options))
    tiny_train(tmp_path / "run", model=model, task=task, max_epochs=2)
    lines = [line for line in metrics(tmp_path / "run") if line["event"] == "sampler"]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert {key: lines[-1][key] for key in expected} == expected
    assert lines[-1]["backend"] == name
    largest = max(float(p.detach().abs().max()) for p in coupling_parameters(model))
    assert lines[-1]["largest_coupling"] == pytest.approx(largest)
    # Quality of the answer is among what the backend watches, and all of it is plain.
    watched = {"mean_field": "converged", "tempering": "rhat_max", "dqa": "effective_beta"}
    if name in watched:
        assert watched[name] in lines[-1]["watched"]


def test_doubtful_answers_are_named(tmp_path: Path) -> None:
    task = tiny_task()
    model = tiny_model(task, sampler=sampler("mean_field", max_iterations=1))
    tiny_train(tmp_path / "run", model=model, task=task, max_epochs=1)
    (line,) = [line for line in metrics(tmp_path / "run") if line["event"] == "sampler"]
    assert line["watched"]["converged"] is False
    assert line["doubtful"] == ["converged", "residual"]


def test_softmax_is_sampled_by_nothing(tmp_path: Path) -> None:
    task = tiny_task()
    tiny_train(tmp_path / "run", model=tiny_model(task, "softmax"), task=task, max_epochs=1)
    assert {line["event"] for line in metrics(tmp_path / "run")} <= {"step", "epoch"}
