"""Attention in one function, held against the operators that it stands for."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import layers
import pytest
import torch
from layers import F64, KINDS, MOVING
from torch import Tensor

from diabat import BoltzmannAttention, Sampler, sampler
from diabat.attention import WindowCouplings, boltzmann_attention, compiled_windows, operators
from diabat.attention.bridge import GradientBridge
from diabat.attention.compiled_windows import WindowLaw
from diabat.attention.couplings import PairSlots
from diabat.attention.readout import ODDS
from diabat.attention.streaming import far_sums
from diabat.attention.visible import Visible, Windows
from diabat.samplers.exact import ExactSampler


def converged() -> Sampler:
    return sampler("mean_field", tolerance=1e-13)


COMPILED: dict[str, dict[str, Any]] = {
    **{
        kind: KINDS[kind]
        for kind in (
            *(
                "still h+J probability",
                "still h+J odds",
                "still h probability",
                "still h+J probability of all keys",
            ),
            *("probability", "far odds", "rotary", "h odds"),
        )
    },
    "band": {"bandwidth": 2},
    "sigmoid": {"mode": "h", "relative": True},
    "rotary odds": {"relative": True, "readout": "odds", "rotary": True},
    "dropout": {"dropout": 0.4},
    "odds with dropout": {"readout": "odds", "dropout": 0.4},
    "moving with dropout": {"relative": True, "dropout": 0.4},
    "mean field": {"sampler": converged()},
    "mean field of moving odds": MOVING["odds"] | {"sampler": converged()},
}


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each pass in one function had a result."""
    made: list[bool] = []
    attend = compiled_windows.attend

    def spy(*args: Any, **options: Any) -> Any:
        found = attend(*args, **options)
        made.append(found is not None)
        return found

    monkeypatch.setattr(compiled_windows, "attend", spy)
    return made


def built(dtype: torch.dtype = F64, window: int = 6, **options: Any) -> BoltzmannAttention:
    return layers.attention(window, dtype=dtype, **options)


def tokens(length: int, dtype: torch.dtype = F64) -> Tensor:
    return layers.tokens(3, length, dtype=dtype).requires_grad_()


def results(layer: BoltzmannAttention, x: Tensor, mask: Tensor | None) -> list[Tensor]:
    """Output, weights, fields and couplings, and gradients of a function of output and weights.

    The numbers of dropout are the same at every call.
    """
    torch.manual_seed(3)
    with layer.recording():
        out, weights = layer(x, mask, need_weights=True)
        problem = layer.last_problem()
        recorded = [t for t in (problem.fields, problem.couplings) if t is not None]
    # Larger factors would leave the rounding of float32 where the derivative by a bias is 0.
    loss = out.sin().sum() + (weights * torch.arange(weights.shape[-1]) / 4).square().sum()
    leaves = [x, *(p for p in layer.parameters() if p.requires_grad)]
    return [out.detach(), weights.detach(), *recorded, *torch.autograd.grad(loss, leaves)]


@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-12), (torch.float32, 5e-5)])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("name", "length"),
    [
        (name, length)
        for name in COMPILED
        for length in (4, 6, 40)
        if length < 7 or "relative" in COMPILED[name]
    ],
)
def test_it_equals_the_operators(
    passes: list[bool], name: str, length: int, padded: bool, dtype: torch.dtype, tolerance: float
) -> None:
    layer = built(dtype, **COMPILED[name])
    x = tokens(length, dtype)
    mask = torch.arange(length) < torch.tensor([[0], [3], [length]]) if padded else None
    found = results(layer, x, mask)
    assert passes == [True]
    with operators():
        want = results(layer, x, mask)
    assert passes == [True]
    assert len(found) == len(want)
    if "mean field" in name:  # its response amplifies rounding
        tolerance *= 50
    for a, b in zip(found, want, strict=True):
        assert (a - b).abs().max() < tolerance * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("name", ["dropout", "mean field", "mean field of moving odds"])
def test_second_derivatives(passes: list[bool], name: str) -> None:
    layer, x = built(window=3, dim=4, **COMPILED[name]), layers.tokens(1, 3, 4).requires_grad_()

    def function(x: Tensor) -> Tensor:
        torch.manual_seed(3)
        out: Tensor = layer(x)
        return out

    assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradgradcheck(function, (x,), atol=1e-4)
    assert all(passes)


def test_dropout_without_gradients(passes: list[bool]) -> None:
    layer, x = built(dropout=0.4), tokens(6)
    torch.manual_seed(3)
    want = layer(x, need_weights=True)
    torch.manual_seed(3)
    with torch.no_grad():
        found = layer(x, need_weights=True)
    assert all((a - b).abs().max() < 1e-12 for a, b in zip(found, want, strict=True))
    assert (found[1] == 0).sum() > (layer.eval()(x, need_weights=True)[1] == 0).sum()
    assert passes == [True] * 3


def test_a_backend_without_a_solution_is_asked_once(
    passes: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaves the numbers of dropout to operators."""
    monkeypatch.setattr(ExactSampler, "enumerates", False)
    monkeypatch.setattr(ExactSampler, "solution", lambda self, ising, *, odds=False: None)
    layer, x, found = built(dropout=0.4), tokens(6), []
    for path in (nullcontext, operators):
        torch.manual_seed(3)
        with path():
            found.append(layer(x))
    assert passes == [False]
    assert torch.equal(*found)


def test_any_part_may_be_frozen(passes: list[bool]) -> None:
    whole = results(built(), tokens(6), None)
    for frozen in ({"query", "key"}, {"value"}, {"couplings.pairs"}, {"query", "key", "couplings.pairs"}):
        layer, x = built(), tokens(6)
        for name, parameter in layer.named_parameters():
            parameter.requires_grad_(name.split(".")[0] not in frozen)
        found = iter(results(layer, x, None)[5:])
        for (_, parameter), want in zip(layer.named_parameters(), whole[5:], strict=True):
            if parameter.requires_grad:
                assert (next(found) - want).abs().max() < 1e-12
    assert all(passes)


HEADS, KEY_HEADS, WINDOW = 4, 2, 3


def states(
    queries: int, keys: int, dtype: torch.dtype = F64, *, by_token: bool = True, width: int = 5
) -> list[Tensor]:
    """Queries, keys and values that is wider, of heads in groups; views of tokens, or heads by heads."""
    torch.manual_seed(5)
    shapes = ((queries, HEADS, 4), (keys, KEY_HEADS, 4), (keys, KEY_HEADS, width))
    found = [torch.randn(2, *shape, dtype=dtype).transpose(1, 2) for shape in shapes]
    return [(t if by_token else t.contiguous()).requires_grad_() for t in found]


def couplings(dtype: torch.dtype = F64) -> tuple[Tensor, PairSlots]:
    torch.manual_seed(6)
    pairs = torch.randn(HEADS, WINDOW * (WINDOW - 1) // 2, dtype=dtype, requires_grad=True)
    return pairs, (WINDOW, WINDOW - 1, 0, WINDOW)


def attended(
    law: WindowLaw,
    terms: list[Tensor],
    pairs: tuple[Tensor, PairSlots] | None,
    windows: Windows,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """In one function; far keys as one."""
    q, k, v = terms
    odds = law.odds
    far = None
    if windows.far is not None:
        far = far_sums(q * law.scale, k, v, windows.far, odds=odds, dropout=options.get("dropout", 0.0))
    J, slots = (None, None) if pairs is None else pairs
    found = compiled_windows.attend(law, q, k, v, J, slots, windows, far, need_weights=True, **options)
    assert found is not None
    mixed, weights = found
    assert weights is not None
    return mixed, weights


def test_any_number_of_threads_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where heads share keys."""
    monkeypatch.setattr(compiled_windows, "_WORK_PER_THREAD", 1)
    windows = Visible(40, 40, True).windows(WINDOW, torch.device("cpu"), far=True)
    law = WindowLaw(GradientBridge(sampler("exact")), ODDS, 0.7)
    terms, pairs = states(40, 40, torch.float32), couplings(torch.float32)
    found = []
    for number in (1, 3):
        torch.set_num_threads(number)
        both = attended(law, terms, pairs, windows)
        slopes = torch.autograd.grad(both, [*terms, pairs[0]], [t.detach() for t in both])
        found.append([*both, *slopes])
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize("far", ["none", "independent"])
def test_the_last_queries_of_a_longer_sequence(passes: list[bool], far: str) -> None:
    """A part of a prompt behind a cache: compiled, as the queries of all keys are."""
    q, k, v = states(9, 9)
    window = WindowCouplings(HEADS, WINDOW, init=0.3, dtype=F64)
    options: Any = {"enable_gqa": True, "far": far}
    whole: Any = boltzmann_attention(q, k, v, window, is_causal=True, **options)
    mask = torch.ones(4, 9, dtype=torch.bool).tril(5)
    part = boltzmann_attention(q[:, :, 5:], k, v, window, attn_mask=mask, **options)
    torch.testing.assert_close(part, whole[:, :, 5:], rtol=0, atol=1e-12)
    assert passes == [True, True]


def test_windows_that_are_no_rule_are_not_served() -> None:
    visible = Visible.of(torch.rand(1, 1, 9, 9) < 0.5)
    law = WindowLaw(None, ODDS, 0.7)
    windows = visible.windows(WINDOW, torch.device("cpu"), far=False)
    q, k, v = states(9, 9)
    assert compiled_windows.attend(law, q, k, v, None, None, windows, None) is None


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "J"},
        {"sampler": sampler("tempering", burn_in=2, sweeps=2, num_chains=2)},
        {"mode": "h+K"},
        {"relative": True, "offset_bias": True},
    ],
)
def test_other_layers_use_operators(passes: list[bool], options: dict[str, Any]) -> None:
    built(**options)(tokens(6))
    assert not any(passes)


def test_problems_beyond_float64_take_the_same_pass(
    passes: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results and derivatives of the operators."""
    layer, found = built(), []
    with torch.no_grad():
        layer.query.weight.mul_(3e4)
        layer.couplings.pairs.mul_(3e4)
    for _ in range(2):
        out = layer(tokens(6))
        found.append((out.detach(), *torch.autograd.grad(out.square().sum(), [*layer.parameters()])))
        assert passes == [True]
        monkeypatch.setattr(compiled_windows, "attend", lambda *args, **options: None)
    for got, want in zip(*found, strict=True):
        assert torch.isfinite(got).all()
        least = max(1e-9 * float(want.abs().max()), 1e-300)  # exponentials end there
        torch.testing.assert_close(got, want, rtol=1e-6, atol=least)
