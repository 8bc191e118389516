"""Couplings as modules: parts that are held or ablated, where they start, and the path of a pass that they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from layers import LAYERS, answer, attention, reloaded, tokens
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

import diabat
from diabat.attention import CouplingInit, WindowCouplings, coupling_parameters, couplings_of
from diabat.attention.couplings import pair_numbers
from diabat.lab.config import make_config
from diabat.samplers.state import sampler_parameters

MADE: dict[str, Callable[..., Any]] = {
    "window": lambda: attention(4, relative=True, readout="odds"),
    "far keys": lambda: attention(4, relative=True, far="independent", bandwidth=2),
    "positions": lambda: attention(11, bandwidth=3, sampler="banded"),
}


def trained(layer: Any, steps: int = 3) -> None:
    """Steps of an optimiser with strong decay."""
    optimiser = torch.optim.AdamW(layer.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(steps):
        optimiser.zero_grad()
        answer(layer, tokens()).square().sum().backward()
        optimiser.step()


def chosen(couplings: Any, heads: list[int] | None, distances: list[int] | None) -> Tensor:
    """The places of these heads and distances in the parameter, bool [H, P]."""
    parameter, distance = couplings.by_pair()
    rows = torch.tensor([heads is None or h in heads for h in range(len(parameter))])
    return rows[:, None] & torch.tensor([distances is None or int(d) in distances for d in distance])


PARTS: list[dict[str, Any]] = [{}, {"heads": [1]}, {"distances": [1]}, {"heads": [0], "distances": [1]}]


@pytest.mark.parametrize("value", [None, 0.0, 0.7])
@pytest.mark.parametrize("part", PARTS, ids=str)
@pytest.mark.parametrize("name", MADE)
def test_what_is_held_stays_and_the_rest_trains(name: str, part: dict[str, Any], value: float | None) -> None:
    """Under decay as well; a file has the values that were held, and after a release all of them train."""
    layer = MADE[name]()
    couplings, x = layer.couplings, tokens()
    parameter, _ = couplings.by_pair()
    held = chosen(couplings, **{"heads": None, "distances": None} | part)
    before = parameter.detach().clone()
    if value is not None:
        before[held] = value
    couplings.hold(value, **part)
    assert torch.equal(parameter, before)
    trained(layer)
    moved = layer.state_dict()["couplings.pairs"]
    assert torch.equal(moved[held], before[held])
    assert held.all() or bool((moved[~held] != before[~held]).any())
    assert not any("held" in name for name in layer.state_dict())
    fresh = reloaded(layer, MADE[name]())
    assert fresh.couplings.held is None
    assert torch.equal(answer(fresh, x), answer(layer, x))
    couplings.release()
    assert torch.equal(answer(fresh, x), answer(layer, x))
    trained(layer)
    assert bool((parameter[held] != before[held]).any())


@pytest.mark.parametrize("name", MADE)
def test_without_couplings_of_a_head_it_is_the_head_at_zero(name: str) -> None:
    """Ablation by a hold is that by hand; the other head does not change."""
    layer, other, x = MADE[name](), MADE[name](), tokens()
    whole = layer(x, None, True)[1]
    for part in (layer, other):
        part.couplings.hold(0.0, heads=[1]) if part is layer else part.couplings.by_pair()[0].data[1].zero_()
    _, weights = layer(x, None, True)
    assert torch.equal(weights, other(x, None, True)[1])
    assert torch.equal(weights[:, 0], whole[:, 0])
    assert not torch.equal(weights[:, 1], whole[:, 1])


def test_holds_add_up_and_take_no_gradient() -> None:
    layer = attention(4, relative=True)
    layer.couplings.hold(0.0, heads=[0])
    layer.couplings.hold(0.5, distances=[2])
    parameter, distance = layer.couplings.by_pair()
    assert bool((parameter[:, distance == 2] == 0.5).all())
    assert not parameter[0, distance != 2].any()
    layer(tokens()).square().sum().backward()
    held = chosen(layer.couplings, [0], None) | chosen(layer.couplings, None, [2])
    assert torch.equal(parameter.grad == 0, held)
    with torch.no_grad():
        parameter += 3.0  # somebody else
    J = layer.couplings.matrix()
    assert not J[0, 0].diagonal(1).any()
    assert bool((J[:, 0].diagonal(2, 1, 2) == 0.5).all())


def test_what_is_held_moves_and_is_copied_with_the_layer() -> None:
    layer = attention(4, relative=True)
    layer.couplings.hold(0.25)
    low = layer.to(torch.float32)
    assert low.couplings.held.dtype == torch.float32
    J = low.to("meta").to_empty(device="cpu").couplings.values()  # not memory without values
    assert torch.equal(J, torch.full_like(J, 0.25))


def test_a_load_gives_what_is_held_its_value() -> None:
    """Also after ``to_empty``; a file without J changes nothing."""
    for emptied in (False, True):
        couplings = WindowCouplings(1, 3, init=0.4)
        couplings.hold(0.1, distances=[1])
        if emptied:
            couplings.to("meta").to_empty(device="cpu")
        couplings.load_state_dict(WindowCouplings(1, 3, init=0.7).state_dict())
        nn.init.zeros_(couplings.pairs)
        couplings.load_state_dict({}, strict=False)
        assert couplings.values().tolist() == couplings.pairs.tolist() == [pytest.approx([0.7, 0.0, 0.7])]


class Halved(nn.Module):
    def forward(self, J: Tensor) -> Tensor:
        return J / 2


def test_j_that_is_computed_or_has_no_values_is_not_held() -> None:
    """Neither now nor, where it became so since, in a file."""
    couplings, sentence = (
        WindowCouplings(1, 3, init=0.4),
        r"^couplings: expected J as a parameter where it is held, ",
    )
    parametrize.register_parametrization(couplings, "pairs", Halved())
    with pytest.raises(ValueError, match=sentence):
        couplings.hold(0.1)
    parametrize.remove_parametrizations(couplings, "pairs")
    couplings.hold(0.1)
    parametrize.register_parametrization(couplings, "pairs", Halved())
    for call in (
        couplings.state_dict,
        lambda: couplings.load_state_dict({}, strict=False),
        couplings.release,
    ):
        with pytest.raises(ValueError, match=sentence):
            call()
    pruned = prune.l1_unstructured(WindowCouplings(1, 3, init=0.4), "pairs", 1)
    with pytest.raises(ValueError, match=sentence):
        pruned.hold(0.1)
    with pytest.raises(
        ValueError, match=r"^couplings: expected J in memory, got it on 'meta'; load it before\.$"
    ):
        WindowCouplings(1, 3, device="meta").hold(0.1)


@pytest.mark.parametrize("kind", LAYERS)
def test_half_precision_leaves_what_is_learned_of_the_law_in_float32(kind: str) -> None:
    """Steps of an optimiser would be lost: in J, K and biases, and in parameters of a backend."""
    layer = nn.Sequential(LAYERS[kind]()).bfloat16().half().to(torch.bfloat16)
    learned = [*coupling_parameters(layer), *sampler_parameters(layer)]
    assert {p.dtype for p in learned} <= {torch.float32, torch.float64}
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert WindowCouplings(1, 3).pairs.dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"heads": [2]}, r"heads: expected numbers in 0 \.\. 1, got 2\.$"),
        ({"heads": [-1]}, r"heads: expected numbers in 0 \.\. 1, got -1\.$"),
        ({"heads": [True]}, r"heads: expected numbers in 0 \.\. 1, got True\.$"),
        ({"distances": [0]}, r"distances: expected numbers in 1 \.\. 3, got 0\.$"),
        ({"distances": [4]}, r"distances: expected numbers in 1 \.\. 3, got 4\.$"),
        ({"value": float("nan")}, "value: expected a number in"),
        ({"value": "0"}, "value: expected a number in"),
    ],
)
def test_holds_of_what_there_is_not_are_refused(options: dict[str, Any], sentence: str) -> None:
    couplings = WindowCouplings(2, 4)
    with pytest.raises((ValueError, TypeError), match=f"^{sentence}"):
        couplings.hold(**options)
    assert couplings.held is None
    with pytest.raises(ValueError, match=r"^couplings: expected couplings with J, got none\.$"):
        WindowCouplings(2, 4, terms="K").hold(0.0)


@pytest.mark.parametrize("make", [diabat.BoltzmannAttention, diabat.BoltzmannMultiheadAttention])
def test_they_start_at_a_number_or_what_is_drawn(make: Any) -> None:
    for init, value in ((None, 0.0), (0.5, 0.5), (-1, -1.0), (CouplingInit(mean=0.25), 0.25)):
        parameter, _ = make(8, 2, window=4, coupling_init=init).couplings.by_pair()
        assert bool((parameter == value).all())
    assert make(8, 2, window=4, mode="softmax", coupling_init=0.5).couplings.pairs is None
    start = CouplingInit(mean=0.5, std=0.1, max_distance=2)
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        J, distance = make(8, 2, window=12, coupling_init=start, bandwidth=4).couplings.by_pair()
        assert torch.equal(J != 0, (distance <= 2).expand(2, -1))
        found.append(J[:, distance <= 2].detach())
    # 2 x 21 draws: six standard errors of mean and standard deviation
    assert found[0].mean().item() == pytest.approx(0.5, abs=6 * 0.1 / 42**0.5)
    assert found[0].std().item() == pytest.approx(0.1, rel=6 / 84**0.5)
    assert torch.equal(*found), "torch's seed decides"


def test_a_configuration_says_how_they_start() -> None:
    model = {"name": "transformer", "coupling_init": {"mean": 0.5, "max_distance": 1}}
    config: Any = make_config({"task": {"name": "brackets"}, "model": model})
    assert config.model.coupling_init == CouplingInit(mean=0.5, max_distance=1)


def test_couplings_of_a_model_by_their_names() -> None:
    model = nn.ModuleDict({kind: LAYERS[kind]() for kind in ("attention", "multihead")})
    found = couplings_of(model)
    assert list(found) == ["attention.couplings", "multihead.couplings"]
    assert [type(part) for part in found.values()] == [WindowCouplings, WindowCouplings]
    assert {id(p) for p in coupling_parameters(model)} == {id(part.by_pair()[0]) for part in found.values()}


def test_tables_of_a_pass_in_inference_mode_serve_training() -> None:
    """A window of a size that no other test has; its tables are made where its parameters are."""
    window = WindowCouplings(2, 19, bandwidth=3, init=0.3, dtype=torch.float64)
    q = torch.randn(1, 2, 23, 4, dtype=torch.float64)
    with torch.inference_mode(), torch.device("meta"):
        numbers = pair_numbers(*window.slots(19), torch.device("cpu"))
    assert numbers.device.type == "cpu"
    assert not numbers.is_inference()
    assert pair_numbers(*window.slots(19), torch.device("cpu")) is numbers
    with torch.inference_mode():
        diabat.boltzmann_attention(q, q, q, window, is_causal=True, sampler="banded")
    q.requires_grad_()
    out = diabat.boltzmann_attention(q, q, q, window, is_causal=True, sampler="banded")
    (slope,) = torch.autograd.grad(out.sin().sum(), q, create_graph=True)
    slope.square().sum().backward()
    assert q.grad is not None
    assert window.pairs.grad is not None
