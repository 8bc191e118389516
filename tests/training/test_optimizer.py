"""Options, groups and learning rates, the average of the weights, smoothing: each against torch or by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.testing import assert_close

from diabat.training import PROTOCOLS, TrainOptions
from diabat.training.optimizer import Average, lr_scale, make_optimizer
from fuzz.tiny import tiny_model, tiny_task


def test_the_published_protocols() -> None:
    names = ("learning_rate", "coupling_learning_rate", "clip", "batch_size", "patience")
    sequences = {
        name: tuple(getattr(PROTOCOLS[name], key) for key in names) for name in ("shakespeare", "brackets")
    }
    assert sequences == {"shakespeare": (1e-3, 3e-5, 1.0, 64, 20), "brackets": (3e-4, 1e-4, 1.0, 64, 20)}
    p = PROTOCOLS["pairs"]
    assert (p.learning_rate, p.weight_decay, p.max_epochs) == (3e-5, 0.02, 5)
    assert (p.batch_size, p.accumulation) == (32, 2)
    assert (p.warmup, p.decay_epochs, p.decay, p.clip) == (0.1, (3, 4), 0.1, 1.0)
    assert (p.label_smoothing, p.mixup, p.ema_decay) == (0.1, 0.2, 0.999)


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


def test_decay_is_that_of_torch_after_the_same_epochs() -> None:
    options = TrainOptions(learning_rate=0.5, decay_epochs=(3, 4), decay=0.1)
    theirs = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = torch.optim.lr_scheduler.MultiStepLR(theirs, milestones=[3, 4], gamma=0.1)
    for epoch in range(6):
        for step in range(epoch * 7, epoch * 7 + 7):
            scaled = 0.5 * lr_scale(options, step, epoch, batches=7)
            assert scaled == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-12)
        theirs.step()
        schedule.step()


def test_warm_up_rises_to_the_full_rate_over_its_share_of_the_steps() -> None:
    options = TrainOptions(warmup=0.1, max_epochs=5)
    factors = [lr_scale(options, step, step // 10, batches=10) for step in range(50)]
    assert factors[:6] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert set(factors[5:]) == {1.0}
    # A limit of steps cuts the run short and leaves its schedule alone.
    assert lr_scale(replace(options, max_steps=3), 1, 0, batches=10) == factors[1]
    assert [lr_scale(TrainOptions(), step, epoch, 3) for step, epoch in ((0, 0), (999, 50))] == [1.0, 1.0]


def test_average_against_its_formula_and_that_of_torch_bit_by_bit() -> None:
    torch.manual_seed(1)
    linear = nn.Linear(5, 7)
    layer = nn.Sequential(linear, nn.LayerNorm(7))
    average = Average(layer, 0.97)
    expected = linear.weight.detach().clone()
    theirs = AveragedModel(layer, multi_avg_fn=get_ema_multi_avg_fn(0.97))
    theirs.n_averaged += 1  # the initial weights count as one
    for _ in range(5):
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(torch.randn_like(parameter))
        average.update()
        theirs.update_parameters(layer)
        expected = 0.97 * expected + 0.03 * linear.weight.detach()
    live = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    assert_close(average.mean["0.weight"], expected)
    with average.applied():
        for name, mean in average.mean.items():
            assert torch.equal(mean, theirs.module.state_dict()[name])
            assert torch.equal(mean, layer.state_dict()[name])
    assert all(torch.equal(live[name], tensor) for name, tensor in layer.state_dict().items())
    assert Average(layer, 0.0).mean == {}


RATES = ("learning_rate", "coupling_learning_rate", "schedule_learning_rate", "weight_decay", "mixup")
REFUSALS: list[tuple[str, Any, str]] = [
    *((name, value, r"a number in \[0, inf\)") for name in RATES for value in (-1e-9, math.nan, math.inf)),
    ("head_learning_rate", -1.0, r"a number in \[0, inf\) or None"),
    *(("clip", value, r"a number in \(0, inf\]") for value in (0.0, math.nan)),
    *((name, value, r"a number in \[0, 1\]") for name in ("warmup", "decay") for value in (-0.1, 1.5)),
    *(
        (name, value, r"a number in \[0, 1\)")
        for name in ("label_smoothing", "ema_decay")
        for value in (-0.1, 1.0)
    ),
    *((name, 0, "an integer >= 1") for name in ("batch_size", "accumulation", "max_epochs", "patience")),
    ("checkpoint_every", 0, "an integer >= 1"),
    ("max_steps", 0, "an integer >= 1 or None"),
    ("decay_epochs", (0,), "an integer >= 1"),
    ("log_every", -1, "an integer >= 0"),
    ("seed", -1, "an integer >= 0"),
    ("seed", 2**31, "at most 2147483647"),
    ("precision", "int8", "one of float32, bfloat16, float16"),
    ("max_epochs", 10**400, "at most 9223372036854775807, got about 1e400"),
]


@pytest.mark.parametrize(
    ("name", "value", "expected"), REFUSALS, ids=[f"{n}={v!r:.12}" for n, v, _ in REFUSALS]
)
def test_options_out_of_range_are_refused(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: expected {expected}") as caught:
        TrainOptions(**{name: value})
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_options_at_their_limits_are_taken(precision: Any) -> None:
    TrainOptions(
        clip=math.inf, warmup=1.0, decay=0.0, head_learning_rate=0.0, seed=2**31 - 1, precision=precision
    )
