"""Options of a training, and the groups of its optimiser."""

from __future__ import annotations

import math

from diabat.training import PROTOCOLS, TrainOptions
from diabat.training.optimizer import make_optimizer
from fuzz.tiny import tiny_model, tiny_task


def test_the_published_protocols() -> None:
    names = ("learning_rate", "coupling_learning_rate", "clip", "batch_size", "patience")
    sequences = {
        name: tuple(getattr(PROTOCOLS[name], key) for key in names) for name in ("shakespeare", "brackets")
    }
    assert sequences == {"shakespeare": (1e-3, 3e-5, 1.0, 64, 20), "brackets": (3e-4, 1e-4, 1.0, 64, 20)}


def test_couplings_have_a_group_of_their_own() -> None:
    task = tiny_task()
    options = TrainOptions(
        learning_rate=1e-3, coupling_learning_rate=1e-5, weight_decay=0.1, coupling_weight_decay=0.2
    )
    others, couplings = make_optimizer(tiny_model(task, "h+J+K"), options).param_groups
    assert [p.shape for p in couplings["params"]] == [(1, 6), (1, 4)]
    assert (couplings["lr"], couplings["weight_decay"]) == (1e-5, 0.2)
    assert (others["lr"], others["weight_decay"]) == (1e-3, 0.1)
    assert len(others["params"]) + 2 == len(list(tiny_model(task, "h+J+K").parameters()))
    assert len(make_optimizer(tiny_model(task, "softmax"), options).param_groups) == 1


def test_options_at_their_limits_are_taken() -> None:
    TrainOptions(clip=math.inf, learning_rate=0.0, seed=2**31 - 1, precision="bfloat16")
