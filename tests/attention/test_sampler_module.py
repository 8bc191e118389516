"""The sampler of a layer is a module: what torch does with modules works for its angles and chains."""

from __future__ import annotations

import copy
from typing import Any

import layers
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import diabat
from diabat.lab.models import Transformer, TransformerOptions
from diabat.samplers.state import chain_state, reset_chains, sampler_parameters, weights_of
from diabat.samplers.tempering import TemperingSampler

KINDS = ("attention", "multihead", "neurogame")


def angles(**options: Any) -> diabat.Sampler:
    return diabat.sampler("dqa", schedule="boltzmann-4", learn_schedule=True, **options)


def chains(**options: Any) -> diabat.Sampler:
    return diabat.sampler(
        "tempering", num_replicas=2, burn_in=2, sweeps=3, num_chains=3, persistent=True, **options
    )


def answer(layer: nn.Module, x: Tensor) -> Tensor:
    torch.manual_seed(1)  # of the reads
    return layers.answer(layer, x)


def built(kind: str, sampler: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    options |= {"eval_seed": 3} if kind == "neurogame" else {}
    return layers.coupled(layers.LAYERS[kind](sampler=sampler, **options), std=0.8).eval()


def inputs(batch: int = 3) -> Tensor:
    return layers.tokens(batch, 6, dtype=torch.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_has_the_angles_exactly_once(kind: str) -> None:
    layer = built(kind, angles())
    stack = nn.ModuleList([layer])
    names = [name for name, _ in stack.named_parameters() if "angles" in name]
    assert names == ["0.sampler.schedule_angles"]
    assert sampler_parameters(stack) == [dict(stack.named_parameters())[names[0]]]
    answer(layer, inputs()).square().sum().backward()
    (own,) = sampler_parameters(stack)
    assert bool((own.grad != 0).any())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampler", [angles, chains], ids=["angles", "chains"])
def test_deep_copies_and_states_go_on_alike(kind: str, sampler: Any) -> None:
    layer, x = built(kind, sampler()), inputs()
    answer(layer, x)
    twin = copy.deepcopy(layer)
    other = layers.reloaded(layer, built(kind, sampler()))
    expected = answer(layer, x)
    assert torch.equal(answer(twin, x), expected)
    assert torch.equal(answer(other, x), expected)
    assert twin.state_dict().keys() == layer.state_dict().keys()


@pytest.mark.parametrize("kind", KINDS)
def test_the_chains_are_state_that_comes_and_goes(kind: str) -> None:
    layer, x = built(kind, chains()), inputs()
    fresh = dict(layer.state_dict())
    assert not chain_state(layer)
    answer(layer, x)
    state = layer.state_dict()
    assert state.keys() - fresh.keys() == {"sampler.chains", "sampler.couplings", "sampler.ladder"}
    assert chain_state(layer).keys() == state.keys() - fresh.keys()
    assert weights_of(layer).keys() == fresh.keys()
    expected = answer(layer, x)
    layer.load_state_dict(state)
    assert torch.equal(answer(layer, x), expected)
    answer(layer, inputs(5))  # of another shape
    layer.load_state_dict(state)
    assert torch.equal(answer(layer, x), expected)
    layer.load_state_dict(fresh)
    assert not chain_state(layer)


def test_an_evaluation_in_the_block_does_not_change_the_chains() -> None:
    layer, x = built("attention", chains()), inputs()
    answer(layer, x)
    before = chain_state(layer)
    with reset_chains(layer):
        assert not chain_state(layer)
        answer(layer, inputs(2))
    after = chain_state(layer)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_a_cast_changes_the_angles_and_neither_spins_nor_ladder() -> None:
    layer = built("attention", angles()).double()
    assert [p.dtype for p in sampler_parameters(layer)] == [torch.float64]
    assert answer(layer, inputs().double()).dtype == torch.float64
    chained, x = built("attention", chains()), inputs()
    answer(chained, x)
    before = chain_state(chained)
    for cast in (torch.float64, torch.float32):
        chained.to(cast)
        after = chain_state(chained)
        assert all(after[n].dtype == t.dtype and torch.equal(after[n], t) for n, t in before.items())
    assert torch.equal(answer(chained, x), answer(built_from(chained, before), x))
    meta = built("attention", angles()).to("meta")
    assert {p.device.type for p in meta.parameters()} == {"meta"}


def built_from(layer: nn.Module, state: dict[str, Tensor]) -> nn.Module:
    """The same layer, with its chains as they were."""
    other = built("attention", chains())
    other.load_state_dict({**weights_of(layer), **state})
    return other


def test_a_gradient_reaches_the_angles_by_functional_call() -> None:
    layer, x = built("attention", angles()), inputs()
    own = "sampler.schedule_angles"
    parameters = {name: p.detach().clone() for name, p in layer.named_parameters()}
    parameters[own] *= 0.7
    found = torch.func.grad(lambda p: functional_call(layer, p, (x,)).square().sum())(parameters)
    leaves = {name: p.clone().requires_grad_() for name, p in parameters.items()}
    functional_call(layer, leaves, (x,)).square().sum().backward()
    assert all(p.grad is None for p in layer.parameters())
    with torch.no_grad():
        dict(layer.named_parameters())[own].copy_(parameters[own])
    layer(x).square().sum().backward()
    for name, p in layer.named_parameters():
        assert torch.allclose(found[name], p.grad, atol=1e-6), name
        by_hand = leaves[name].grad
        assert torch.allclose(by_hand, p.grad, atol=1e-6), name


def model(num_layers: int, sampler: Any) -> Transformer:
    torch.manual_seed(0)
    options = TransformerOptions(embed_dim=8, num_heads=2, ffn_dim=0, num_layers=num_layers, dropout=0.0)
    return Transformer(options, 11, 7, 4, sampler)


def test_a_model_shows_its_sampler_once() -> None:
    shown = repr(model(1, angles()))
    assert shown.count("DQASampler(") == 1
    assert "(sampler): DQASampler(engine='native', schedule='boltzmann-4'" in shown
    assert "learn_schedule=True)" in shown


def test_a_sampler_that_is_assigned_is_bound_like_the_first() -> None:
    """A refusal changes nothing."""
    layer = built("attention", "exact", gradient="straight_through")
    layer.sampler = chains()
    assert layer.gradient == "straight_through"
    assert isinstance(layer.sampler, TemperingSampler)
    assert [name for name, _ in layer.named_children()].count("sampler") == 1
    assert layer.sampler is layer._bridge.sampler
    answer(layer, inputs())
    assert "sampler.chains" in layer.state_dict()
    layer.use_sampler("mean_field")
    assert layer.gradient == "auto"
    assert not chain_state(layer)
    with pytest.raises(diabat.UnsupportedError, match="accepts at most 3 spins, got 6"):
        layer.use_sampler(diabat.sampler("exact", max_seconds=2e-8))
    with pytest.raises(diabat.UnsupportedError, match="sampler 'tempering' supports"):
        layer.use_sampler("tempering", gradient="exact")
    assert layer.sampler.name == "mean_field"


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("padded", [False, True])
def test_gradient_of_the_angles_equals_central_differences_of_the_loss(engine: str, padded: bool) -> None:
    layer, x = built("attention", angles(engine=engine)).double(), inputs().double()
    mask = torch.zeros(3, 6, dtype=torch.bool)
    mask[1, 2:] = mask[2] = padded

    def loss(own: Tensor) -> Tensor:
        return functional_call(layer, {"sampler.schedule_angles": own}, (x, mask)).square().sum()

    (own,) = sampler_parameters(layer)
    assert (own.dtype, own.shape) == (torch.float64, (3, 4))
    assert torch.autograd.gradcheck(loss, own, eps=1e-4, rtol=1e-5, atol=1e-7)


def test_each_layer_has_its_own_angles() -> None:
    sampler, x = angles(), inputs()
    start = [p.clone() for p in sampler.parameters()]
    first, second = built("attention", sampler), built("attention", sampler)
    before, one = answer(second, x), answer(first, x)
    with torch.no_grad():
        sampler_parameters(first)[0].mul_(0.5)
    assert torch.equal(answer(second, x), before)
    assert not torch.allclose(answer(first, x), one, atol=1e-4)
    assert all(torch.equal(p, old) for p, old in zip(sampler.parameters(), start, strict=True))
    stacked = model(3, sampler)
    found = sampler_parameters(stacked)
    assert len({id(p) for p in found}) == 3
    stacked(torch.tensor([[1, 2, 3, 4]])).square().sum().backward()
    assert all(bool((p.grad != 0).any()) for p in found)
    assert not torch.equal(found[0].grad, found[1].grad)


def test_angles_that_are_replaced_are_the_ones_used() -> None:
    """``load_state_dict(assign=True)`` and ``functional_call`` put other tensors in place of the parameters."""
    source, target, x = built("attention", angles()), built("attention", angles()), inputs()
    with torch.no_grad():
        sampler_parameters(source)[0].mul_(0.5)
    want = source(x)
    assert torch.equal(functional_call(target, dict(source.named_parameters()), (x,)), want)
    target.load_state_dict(copy.deepcopy(source.state_dict()), assign=True)
    assert torch.equal(target(x), want)
    target(x).square().sum().backward()
    assert sampler_parameters(target)[0].grad is not None


def test_initialisation_changes_no_angles_and_angles_change_no_weights() -> None:
    sampler = angles()
    own, plain = (dict(model(2, backend).named_parameters()) for backend in (sampler, "exact"))
    names = {f"blocks.{k}.attention.sampler.schedule_angles" for k in range(2)}
    assert own.keys() - plain.keys() == names
    (start,) = sampler.parameters()
    assert all(torch.equal(own[name], start) for name in names)
    assert all(torch.equal(own[name], p) for name, p in plain.items())


def test_reads_forward_train_the_angles_as_well() -> None:
    layer = diabat.BoltzmannAttention(8, 2, 6, sampler=angles(), num_reads=30)
    nn.init.normal_(layer.couplings.pairs, std=0.5)
    answer(layer, inputs()).square().sum().backward()
    assert bool(sampler_parameters(layer)[0].grad.any())


def test_softmax_layers_have_no_angles_in_their_output() -> None:
    layer = diabat.BoltzmannAttention(8, 2, 6, sampler=angles(), mode="softmax")
    layer(inputs()).square().sum().backward()
    for name, p in layer.named_parameters():
        assert (p.grad is None) == (name == "sampler.schedule_angles")
