"""Relative couplings, far keys and odds: every row against an enumeration of its own problem."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from diabat import BoltzmannAttention, UnsupportedError
from diabat.ising import Ising
from diabat.samplers.dqa import DQASampler
from diabat.testing import brute_force

F64 = torch.float64
WINDOW = 4
OPTIONS: dict[str, dict[str, Any]] = {
    "probability": {},
    "far": {"far": "independent"},
    "odds": {"weights": "odds"},
    "far odds": {"far": "independent", "weights": "odds"},
    "rotary": {"rotary": True, "far": "independent", "weights": "odds"},
    "K": {"mode": "h+J+K", "weights": "odds"},
    "far K": {"mode": "h+K", "far": "independent"},
    "without fields": {"mode": "J+K", "weights": "odds", "far": "independent"},
    "J": {"mode": "J"},
    "far J": {"mode": "J", "far": "independent", "weights": "odds"},
    "h": {"mode": "h", "far": "independent"},
    "h odds": {"mode": "h", "weights": "odds"},
    "softmax": {"mode": "softmax"},
    "far softmax": {"mode": "softmax", "far": "independent"},
    "J-self": {"mode": "J-self"},
    "far J-self": {"mode": "J-self", "far": "independent"},
    "bias": {"offset_bias": True},
    "far bias": {"offset_bias": True, "far": "independent", "weights": "odds"},
    "softmax bias": {"mode": "softmax", "offset_bias": True},
    "far softmax bias": {"mode": "softmax", "offset_bias": True, "far": "independent"},
}


def layer(
    window: int = WINDOW, dtype: torch.dtype = F64, scale: float = 0.5, **options: Any
) -> BoltzmannAttention:
    """A relative layer of 2 heads whose couplings are not zero."""
    torch.manual_seed(1)
    built = BoltzmannAttention(8, 2, window, relative=True, **options).to(dtype)
    with torch.no_grad():
        for parameter in (built.coupling_pairs, built.coupling_triples, built.offset_bias):
            if parameter is not None:
                parameter.normal_(std=scale)
    return built


def inputs(batch: int = 2, length: int = 11, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(batch, length, 8, generator=torch.Generator().manual_seed(2), dtype=dtype)


def expected_row(built: BoltzmannAttention, scores: Tensor, seen: Tensor, head: int, i: int) -> Tensor:
    """Weights of query i over all keys, by enumeration of the keys that it sees, far ones included.

    Far keys are spins of the enumerated problem, without couplings.
    """
    T = built.layout.window
    keys = [j for j in range(i + 1) if seen[j] and (built.far == "independent" or j > i - T)]
    weights = torch.zeros(len(scores), dtype=F64)
    if not keys:
        return weights
    s = scores[keys]
    if built.mode == "softmax":
        weights[keys] = torch.softmax(s, 0)
        return weights
    with_fields = "h" in built.mode.split("+")
    h = s if built.weighting == "probability" else (s - s.logsumexp(0)) / 2
    h = h if with_fields else torch.zeros_like(h)
    slots = [j - (i - T + 1) for j in keys]  # negative for far keys
    J, K = built.couplings(), built.three_body()
    near = torch.tensor([t >= 0 for t in slots])
    index = torch.tensor(slots).clamp(min=0)
    pair = None if J is None else J[head, 0][index][:, index] * near * near[:, None]
    triple = None
    if K is not None:
        triple = K[head, 0][index][:, index][:, :, index] * near * near[:, None] * near[:, None, None]
    if built.mode == "J-self" and seen[i]:
        alpha = (1 + brute_force(Ising(h, pair)).correlation[-1]) / 2
    else:
        alpha = brute_force(Ising(h, pair, None, triple)).probability
    positive = alpha if built.weighting == "probability" else alpha / (1 - alpha)
    weights[keys] = positive / positive.sum()
    return weights


def expected(built: BoltzmannAttention, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Weights [B, H, L, L], one enumeration per query."""
    with torch.no_grad():
        q, k, _ = map(built._split, built._projected(x))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if built.offset_bias is not None:
            offsets = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
            slots = built.layout.window - 1 - offsets
            near = (offsets >= 0) & (slots >= 0)
            scores = scores + torch.where(near, built.offset_bias[:, slots * near], 0)
        seen = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else ~mask
        rows = [
            expected_row(built, scores[b, head, i], seen[b], head, i)
            for b in range(len(x))
            for head in range(2)
            for i in range(x.shape[1])
        ]
    return torch.stack(rows).view(len(x), 2, x.shape[1], x.shape[1])


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("length", [1, 3, 11])
def test_every_row_is_its_own_problem(name: str, length: int) -> None:
    built, x = layer(**OPTIONS[name]), inputs(length=length)
    out, weights = built(x, None, True)
    want = expected(built, x)
    assert (weights - want).abs().max() < 1e-12
    v = built.value(x).unflatten(-1, (2, 4)).transpose(1, 2)
    assert (out - built.output((want @ v).transpose(1, 2).flatten(2))).abs().max() < 1e-12


@pytest.mark.parametrize("name", OPTIONS)
def test_padding_on_either_side_and_inside(name: str) -> None:
    built, x = layer(**OPTIONS[name]), inputs(3)
    mask = torch.zeros(3, 11, dtype=torch.bool)
    mask[0, :5] = True
    mask[1, 8:] = True
    mask[2, [0, 3, 4, 9]] = True
    out, weights = built(x, mask, True)
    assert (weights - expected(built, x, mask)).abs().max() < 1e-12
    alone, _ = built(x[:1, 5:], None, True)
    assert (out[0, 5:] - alone[0]).abs().max() < 1e-12
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("weights", ["probability", "odds"])
@pytest.mark.parametrize("name", ["banded", "mean_field", "tempering", "dqa"])
def test_other_backends(name: str, weights: str) -> None:
    """Exact with banded.  With 2,000 reads P has a standard error of at most 0.011, with some autocorrelation.

    A weight then has one of at most 0.03, and the mean over 240 weights is within 0.01 (alpha < 1e-6).
    """
    x = inputs(length=6)
    backends: dict[str, dict[str, Any]] = {
        "tempering": {"num_reads": 2_000},
        "dqa": {"sampler": DQASampler(annealing_time_ns=2.0, steps=60)},
        "banded": {"bandwidth": 2},
        "mean_field": {},
    }
    options: dict[str, Any] = {"sampler": name, "weights": weights} | backends[name]
    built = layer(scale=0.2, **options)
    torch.manual_seed(3)
    _, found = built(x, None, True)
    assert (found.sum(-1) - 1).abs().max() < 1e-6
    error = (found - expected(built, x)).abs()
    if name == "banded":
        assert error.max() < 1e-12
    elif name == "tempering":
        assert error.max() < 0.15
        assert error.mean() < 0.01
    found.square().sum().backward()
    for parameter in (built.coupling_pairs, built.query.weight):
        assert torch.isfinite(parameter.grad).all()
        assert parameter.grad.any()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"causal": False}, "relative: expected causal=True, since windows end at the query, got causal=False"),
    ({"relative": 1}, "relative: expected True or False, got 1"),
    ({"far": "all"}, "far: expected one of none, independent, got 'all'"),
    ({"relative": False, "far": "independent"},
     "far: expected 'none' without relative=True, got 'independent'"),
    ({"weights": "odd"}, "weights: expected one of probability, odds, got 'odd'"),
    ({"weights": "odds", "mode": "J-self"},
     "weights: expected 'probability' in mode 'J-self', .* got 'odds'"),
    ({"rotary": True, "embed_dim": 6}, "rotary: expected an even embed_dim / num_heads, got 6 / 2"),
    ({"offset_bias": 1}, "offset_bias: expected True or False, got 1"),
    ({"relative": False, "offset_bias": True}, "offset_bias: expected False without relative=True, got True"),
    ({"mode": "J+K", "offset_bias": True},
     "offset_bias: expected a mode with fields, got True in mode 'J.K'"),
    ({"window": 40}, "window: sampler 'exact' accepts at most .* spins, got 40"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BoltzmannAttention(**({"embed_dim": 8, "num_heads": 2, "window": 4, "relative": True} | options))


def test_the_representation_shows_the_options() -> None:
    shown = repr(layer(far="independent", weights="odds", rotary=True))
    assert "relative=True, far='independent', weights='odds', rotary=True" in shown
    assert "relative" not in repr(BoltzmannAttention(8, 2, 4))


@pytest.mark.parametrize("name", ["probability", "far odds", "J-self", "rotary", "bias"])
def test_gradients_are_finite_differences_and_those_of_functional_transforms(name: str) -> None:
    built, x = layer(**OPTIONS[name]), inputs(1, 6)
    names = [n for n, _ in built.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in built.parameters()]

    def function(x: Tensor, *values: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(built, dict(zip(names, values, strict=True)), (x,))
        return found

    assert torch.autograd.gradcheck(function, [x.requires_grad_(), *values], atol=1e-6)
    cotangent = torch.randn(1, 6, 8, dtype=F64)
    direct = torch.autograd.grad(function(x, *values), values, cotangent, materialize_grads=True)
    pull = torch.func.vjp(lambda *v: function(x, *v), *values)[1]
    torch.testing.assert_close(direct, pull(cotangent), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["probability", "odds", "far odds"])
def test_second_derivatives(name: str) -> None:
    built = layer(3, **OPTIONS[name])
    assert torch.autograd.gradgradcheck(built, [inputs(1, 5).requires_grad_()], atol=1e-6)


@pytest.mark.parametrize("name", ["probability", "far odds"])
def test_vmap_is_a_loop(name: str) -> None:
    built, x = layer(**OPTIONS[name]), torch.randn(3, 2, 9, 8, dtype=F64)
    mapped = torch.func.vmap(built)(x)
    assert (mapped - torch.stack([built(part) for part in x])).abs().max() < 1e-12


def test_fields_of_the_last_pass_are_those_of_the_slots() -> None:
    built, x = layer(), inputs()
    with built.recording():
        built(x)
        fields, J = built.last_fields_and_couplings()
    assert fields.shape == (2, 2, 11, WINDOW)
    assert J.shape == (2, 1, WINDOW, WINDOW)


def test_one_j_is_limited_by_the_window_only() -> None:
    """Long sequences with a backend that accepts few spins."""
    assert layer(3, sampler="exact")(inputs(1, 300)).shape == (1, 300, 8)
    with pytest.raises(UnsupportedError, match="accepts at most"):
        layer(64)
