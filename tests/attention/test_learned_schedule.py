"""Angles of an anneal that are trained with the attention layer."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from diabat.attention import BoltzmannAttention
from diabat.circuits import TrotterPlan
from diabat.models import Transformer, TransformerOptions
from diabat.samplers.dqa import DQASampler

F64 = torch.float64
PLAN = TrotterPlan(*np.random.default_rng(3).normal(size=(3, 4)))


def learning(**options: Any) -> DQASampler:
    return DQASampler(schedule=PLAN, learn_schedule=True, **options)


def layer(**options: Any) -> BoltzmannAttention:
    torch.manual_seed(0)
    built = BoltzmannAttention(6, 2, 4, **({"sampler": learning()} | options))
    with torch.no_grad():
        built.coupling_pairs.normal_(std=0.5)
    return built


def inputs(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(1)).to(dtype)


def angles_of(module: BoltzmannAttention) -> Tensor:
    (angles,) = module.sampler.parameters()
    return angles


def model(num_layers: int = 2, sampler: Any = None) -> Transformer:
    torch.manual_seed(0)
    options = TransformerOptions(embed_dim=8, num_heads=2, ffn_dim=0, num_layers=num_layers, dropout=0.0)
    return Transformer(options, 11, 7, 4, sampler or learning())


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("padded", [False, True])
def test_gradient_of_the_angles_equals_central_differences_of_the_loss(engine: str, padded: bool) -> None:
    built, x = layer(sampler=learning(engine=engine)).double(), inputs(F64)
    angles = angles_of(built)
    assert angles.dtype == F64
    mask = torch.zeros(3, 4, dtype=torch.bool)
    mask[1, 2:] = mask[2] = padded

    def loss() -> Tensor:
        return built(x, mask).square().sum()

    loss().backward()
    assert angles.grad.shape == (3, 4)
    start, e = angles.detach().clone(), 1e-4
    for kind in range(3):
        for step in (0, 2, 3):
            values = []
            for sign in (1, -1):
                with torch.no_grad():
                    angles[kind, step] = start[kind, step] + sign * e
                    values.append(float(loss()))
            with torch.no_grad():
                angles.copy_(start)
            want = (values[0] - values[1]) / (2 * e)
            assert float(angles.grad[kind, step]) == pytest.approx(want, rel=1e-5, abs=1e-7)


def test_each_layer_has_its_own_angles() -> None:
    sampler = learning()
    first, second = layer(sampler=sampler), layer(sampler=sampler)
    x = inputs()
    before, one = second(x), first(x)
    with torch.no_grad():
        angles_of(first).mul_(0.5)
    assert torch.equal(second(x), before)
    assert not torch.allclose(first(x), one, atol=1e-4)
    assert np.allclose(sampler.plan.mixer_angles, PLAN.mixer_angles, atol=1e-6)
    stacked = model(3)
    found = [angles_of(attention) for attention in stacked.attention_layers()]
    assert len({id(a) for a in found}) == 3
    stacked(torch.tensor([[1, 2, 3, 4]])).square().sum().backward()
    grads = [a.grad for a in found]
    assert all(g is not None and bool((g != 0).any()) for g in grads)
    assert not torch.equal(grads[0], grads[1])


def test_angles_that_are_replaced_are_the_ones_used() -> None:
    """``load_state_dict(assign=True)`` and ``functional_call`` put other tensors in place of the parameters."""
    source, target, x = layer(), layer(), inputs()
    with torch.no_grad():
        angles_of(source).mul_(0.5)
    want = source(x)
    called = torch.func.functional_call(target, dict(source.named_parameters()), (x,))
    assert torch.equal(called, want)
    target.load_state_dict(copy.deepcopy(source.state_dict()), assign=True)
    assert torch.equal(target(x), want)
    target(x).square().sum().backward()
    assert angles_of(target).grad is not None


def test_initialisation_changes_no_angles_and_angles_change_no_weights() -> None:
    want = torch.from_numpy(np.stack((PLAN.field_angles, PLAN.coupling_angles, PLAN.mixer_angles))).float()
    for attention in model().attention_layers():
        assert torch.equal(angles_of(attention).detach(), want)
    own = dict(model().named_parameters())
    plain = dict(model(sampler="exact").named_parameters())
    assert own.keys() - plain.keys() == {f"blocks.{k}.attention.sampler.schedule_angles" for k in range(2)}
    assert all(torch.equal(own[name], p) for name, p in plain.items())


def test_reads_forward_train_the_angles_as_well() -> None:
    built = layer(num_reads=30)
    torch.manual_seed(1)
    built(inputs()).square().sum().backward()
    grad = angles_of(built).grad
    assert bool(grad.any())


def test_softmax_layers_have_no_angles_in_their_output() -> None:
    built = BoltzmannAttention(6, 2, 4, sampler=learning(), mode="softmax")
    built(inputs()).square().sum().backward()
    for name, p in built.named_parameters():
        assert (p.grad is None) == (name == "sampler.schedule_angles")
