"""Training of the angles of an anneal together with the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_checks import assert_same_run, metrics

from diabat.circuits import TrotterPlan
from diabat.models import Transformer, TransformerOptions
from diabat.samplers import UnsupportedError
from diabat.samplers.dqa import DQASampler
from diabat.samplers.state import sampler_parameters
from diabat.tasks import Task
from diabat.training import CheckpointError, TrainOptions, load_model
from diabat.training.state import make_optimizer
from fuzz.tiny import OPTIONS, tiny_task, tiny_train

PLAN = TrotterPlan(*np.random.default_rng(3).normal(size=(3, 4)))
NAME = "blocks.0.attention.sampler.schedule_angles"


def learning_model(task: Task, *, layers: int = 1, seed: int = 0, gradient: str = "auto") -> Transformer:
    torch.manual_seed(seed)
    options = TransformerOptions(embed_dim=8, ffn_dim=0, num_layers=layers, dropout=0.1)
    sampler = DQASampler(schedule=PLAN, learn_schedule=True, precision="single")
    return Transformer(options, task.vocab_size, task.num_classes, task.window, sampler, gradient)


def start() -> torch.Tensor:
    return torch.from_numpy(np.stack((PLAN.field_angles, PLAN.coupling_angles, PLAN.mixer_angles))).float()


def test_angles_have_a_group_of_their_own_without_decay() -> None:
    options = TrainOptions(
        learning_rate=1e-3,
        coupling_learning_rate=1e-5,
        schedule_learning_rate=7e-3,
        weight_decay=0.1,
        coupling_weight_decay=0.2,
    )
    model = learning_model(tiny_task(), layers=2)
    others, couplings, schedules = make_optimizer(model, options).param_groups
    assert [p.shape for p in schedules["params"]] == [(3, 4)] * 2
    assert (schedules["lr"], schedules["weight_decay"]) == (7e-3, 0.0)
    assert (couplings["lr"], couplings["weight_decay"]) == (1e-5, 0.2)
    assert (others["lr"], others["weight_decay"]) == (1e-3, 0.1)
    grouped = [id(p) for group in (others, couplings, schedules) for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters())


def test_a_short_run_changes_the_angles_at_their_own_rate(tmp_path: Path) -> None:
    task = tiny_task()
    model = learning_model(task)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("coupling_pairs"):
                p.normal_(std=0.3)  # else the coupling angles have no gradient at the first step
    tiny_train(tmp_path / "run", model=model, task=task, max_steps=1, schedule_learning_rate=2e-3)
    moved = dict(model.named_parameters())[NAME].detach() - start()
    # The first AdamW step is lr·g/(|g| + 1e-8), and some of these gradients are as small as that.
    assert bool((moved != 0).all())
    assert 0.9 * 2e-3 < float(moved.abs().max()) < 1.001 * 2e-3


def test_a_learning_rate_of_zero_does_not_change_the_angles(tmp_path: Path) -> None:
    task = tiny_task()
    model = learning_model(task)
    tiny_train(tmp_path / "run", model=model, task=task, schedule_learning_rate=0.0)
    assert torch.equal(dict(model.named_parameters())[NAME].detach(), start())


def test_an_interrupted_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    task = tiny_task()
    options: dict[str, Any] = {"schedule_learning_rate": 1e-2, "task": task}
    tiny_train(tmp_path / "straight", model=learning_model(task), **options)
    tiny_train(tmp_path / "run", model=learning_model(task), max_epochs=1, **options)
    # A resumed run does not depend on the weights that it is given.
    tiny_train(tmp_path / "run", model=learning_model(task, seed=99), resume=True, **options)
    assert_same_run(tmp_path / "run", tmp_path / "straight")
    saved = load_model(tmp_path / "run", "latest")[NAME]
    assert bool((saved != start()).all())
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


def test_a_run_with_learned_angles_is_not_resumed_without_them(tmp_path: Path) -> None:
    task = tiny_task()
    tiny_train(tmp_path / "run", model=learning_model(task), task=task, max_epochs=1)
    torch.manual_seed(0)
    options = TransformerOptions(embed_dim=8, ffn_dim=0, dropout=0.1)
    fixed = Transformer(
        options, task.vocab_size, task.num_classes, task.window, DQASampler(schedule=PLAN, precision="single")
    )
    with pytest.raises(
        CheckpointError, match=rf"of another model: .*{NAME}: expected no such weight, got \[3, 4\]"
    ):
        tiny_train(tmp_path / "run", model=fixed, task=task, resume=True)


def test_straight_through_is_refused_when_the_model_is_built() -> None:
    with pytest.raises(
        UnsupportedError, match="gradient: sampler 'dqa' supports adjoint, got 'straight_through'"
    ):
        learning_model(tiny_task(), gradient="straight_through")


def test_the_default_rate_is_finite_and_the_options_are_stored() -> None:
    assert OPTIONS.schedule_learning_rate == TrainOptions().schedule_learning_rate == 1e-3
    assert len(sampler_parameters(learning_model(tiny_task()))) == 1
