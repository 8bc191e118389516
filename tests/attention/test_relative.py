"""Relative couplings, far keys and odds: every row an enumeration of its own problem; far keys in blocks, slots."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from largest_tensor import LargestTensor
from layers import F64, attention, enumerated, functional, padded, tokens
from rounding import assert_same_sums
from torch import Tensor

from diabat import BoltzmannAttention, UnsupportedError
from diabat.attention import streaming
from diabat.attention.coupled import SELF_MODES
from diabat.attention.streaming import FarKeys, far_sums
from diabat.attention.visible import Visible
from diabat.attention.windows import slot_keys, slots_to_keys, window_mix, window_scores
from diabat.samplers.dqa import DQASampler

WINDOW = 4


def layer(window: int = WINDOW, **options: Any) -> BoltzmannAttention:
    return attention(window, **{"relative": True, **options})


def far_layer(window: int = 3, **options: Any) -> BoltzmannAttention:
    return attention(window, relative=True, far="independent", **options)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three queries, so that short sequences have several."""
    monkeypatch.setattr(streaming, "_LEAST", 3)
    monkeypatch.setattr(streaming, "_NUMBERS", 0)


OPTIONS: dict[str, dict[str, Any]] = {
    "probability": {},
    "far": {"far": "independent"},
    "odds": {"readout": "odds"},
    "far odds": {"far": "independent", "readout": "odds"},
    "rotary": {"rotary": True, "far": "independent", "readout": "odds"},
    "K": {"mode": "h+J+K", "readout": "odds"},
    "far K": {"mode": "h+K", "far": "independent"},
    "without fields": {"mode": "J+K", "readout": "odds", "far": "independent"},
    "J": {"mode": "J"},
    "far J": {"mode": "J", "far": "independent", "readout": "odds"},
    "h": {"mode": "h", "far": "independent"},
    "h odds": {"mode": "h", "readout": "odds"},
    "softmax": {"mode": "softmax"},
    "far softmax": {"mode": "softmax", "far": "independent"},
    "J-self": {"mode": "J-self"},
    "far J-self": {"mode": "J-self", "far": "independent"},
    "bias": {"offset_bias": True},
    "far bias": {"offset_bias": True, "far": "independent", "readout": "odds"},
    "softmax bias": {"mode": "softmax", "offset_bias": True},
    "far softmax bias": {"mode": "softmax", "offset_bias": True, "far": "independent"},
}


# The same over all positions of a window, causal or not.
ABSOLUTE: dict[str, dict[str, Any]] = {
    f"{mode}{', odds' * (readout == 'odds')}{', all keys' * (not causal)}": {
        **{"relative": False, "window": 6, "mode": mode, "readout": readout, "causal": causal}
    }
    for mode in SELF_MODES
    for readout in ("probability", "odds")
    for causal in (True, False)
    if (mode, readout) != ("J-self", "odds")
}
BANDED = {"relative": False, "window": 6, "mode": "J-self", "sampler": "banded"}
EVERY: dict[str, dict[str, Any]] = {
    **OPTIONS,
    **ABSOLUTE,
    **{f"banded, {causal}": {**BANDED, "causal": causal} for causal in (True, False)},
}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("length", [1, 3, 11])
def test_every_row_is_its_own_problem(name: str, length: int) -> None:
    built, x = layer(**EVERY[name]), tokens(2, length)
    x = x if built.relative else x[:, :6]
    out, weights = built(x, None, True)
    want = enumerated(built, x)
    assert (weights - want).abs().max() < 1e-12
    v = built.value(x).unflatten(-1, (2, 4)).transpose(1, 2)
    assert (out - built.output((want @ v).transpose(1, 2).flatten(2))).abs().max() < 1e-12
    terms = built.mode.split("+")
    assert (built.couplings.matrix() is None, built.couplings.three_body() is None) == (
        not {"J", "J-self"} & set(terms),
        "K" not in terms,
    )


@pytest.mark.parametrize("name", EVERY)
def test_padding_on_either_side_and_inside(name: str) -> None:
    built = layer(**EVERY[name])
    mask = (
        padded() if built.relative else torch.tensor([[0, 0, 1, 0, 1, 0], [1] * 6, [1, 0, 0, 0, 1, 1]]).bool()
    )
    x = torch.where(mask[..., None], 30.0, tokens(3, mask.shape[1]))
    out, weights = built(x, mask, True)
    assert (weights - enumerated(built, x, mask)).abs().max() < 1e-12
    assert torch.isfinite(out).all()
    if built.relative:
        alone, _ = built(x[:1, 5:], None, True)
        assert (out[0, 5:] - alone[0]).abs().max() < 1e-12


@pytest.mark.parametrize("readout", ["probability", "odds"])
@pytest.mark.parametrize("name", ["banded", "mean_field", "tempering", "dqa"])
def test_other_backends(name: str, readout: str) -> None:
    """Exact with banded.  With 2,000 reads P has a standard error of at most 0.011, with some autocorrelation.

    A weight then has one of at most 0.03, and the mean over 240 weights is within 0.01 (alpha < 1e-6).
    """
    x = tokens(2, 6)
    backends: dict[str, dict[str, Any]] = {
        "tempering": {"num_reads": 2_000},
        "dqa": {"sampler": DQASampler(annealing_time_ns=2.0, steps=60)},
        "banded": {"bandwidth": 2},
        "mean_field": {},
    }
    options: dict[str, Any] = {"sampler": name, "readout": readout} | backends[name]
    built = layer(std=0.2, **options)
    torch.manual_seed(3)
    _, found = built(x, None, True)
    assert (found.sum(-1) - 1).abs().max() < 1e-6
    error = (found - enumerated(built, x)).abs()
    if name == "banded":
        assert error.max() < 1e-12
    elif name == "tempering":
        assert error.max() < 0.15
        assert error.mean() < 0.01
    found.square().sum().backward()
    for parameter in (built.couplings.pairs, built.query.weight):
        assert torch.isfinite(parameter.grad).all()
        assert parameter.grad.any()


def test_the_representation_shows_the_options() -> None:
    shown = repr(layer(far="independent", readout="odds", rotary=True))
    assert "embed_dim=8, num_heads=2, mode='h+J', readout='odds', gradient='auto', far='independent'" in shown
    assert "causal=True, rotary=True" in shown
    assert "WindowCouplings(2, 4, bandwidth=3, relative=True)" in shown


@pytest.mark.parametrize("name", ["probability", "far odds", "J-self", "rotary", "bias"])
def test_gradients_are_finite_differences_and_those_of_functional_transforms(name: str) -> None:
    x = tokens(1, 6).requires_grad_()
    function, values = functional(layer(**OPTIONS[name]))
    assert torch.autograd.gradcheck(function, [x, *values], atol=1e-6)
    cotangent = torch.randn(1, 6, 8, dtype=F64)
    direct = torch.autograd.grad(function(x, *values), values, cotangent, materialize_grads=True)
    pull = torch.func.vjp(lambda *v: function(x, *v), *values)[1]
    torch.testing.assert_close(direct, pull(cotangent), rtol=0, atol=1e-12)


def test_fields_of_the_last_pass_are_those_of_the_slots() -> None:
    built, x = layer(), tokens()
    with built.recording():
        built(x)
        problem = built.last_problem()
    assert problem.fields.shape == (2, 2, 11, WINDOW)
    assert problem.couplings.shape == (2, 1, WINDOW, WINDOW)


def test_one_j_is_limited_by_the_window_only() -> None:
    """Long sequences with a backend that accepts few spins."""
    assert layer(3, sampler="exact")(tokens(1, 300)).shape == (1, 300, 8)
    with pytest.raises(UnsupportedError, match="accepts at most"):
        layer(64)


FAR: dict[str, dict[str, Any]] = {
    "odds": {"readout": "odds"},
    "probability": {},
    "softmax": {"mode": "softmax"},
    "J-self": {"mode": "J-self"},
    "without fields": {"mode": "J+K", "readout": "odds"},
    "bias": {"offset_bias": True},
}


def whole(
    q: Tensor, k: Tensor, v: Tensor, far: Tensor, odds: bool, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """y and x from whole matrices; ``far`` is bool [*, Q, K]."""
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    s = q @ k.mT
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    if odds:
        s = s.masked_fill(~far, torch.finfo(s.dtype).min)
        return s.softmax(-1) @ v, s.logsumexp(-1)
    p = torch.sigmoid(2 * s).masked_fill(~far, 0)
    x = p.sum(-1)
    return p @ v / x[..., None], x.log()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("odds", [True, False])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("kind", ["moving", "of each query", "of each head"])
def test_sums_and_derivatives_of_any_order(odds: bool, softcap: float | None, kind: str) -> None:
    g = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(2, heads, 10, size, generator=g, dtype=F64, requires_grad=True)
        for heads, size in ((4, 3), (2, 3), (2, 5))
    )
    row, key = torch.arange(10), torch.arange(10)
    heads = {"of each query": 1, "of each head": 4}.get(kind)
    first: Tensor | int = 2 if heads is None else torch.randint(1, 11, (2, heads, 10), generator=g)
    start = (2 + row if isinstance(first, int) else first)[..., None]
    visible = torch.rand(2, 1, 10, 10, generator=g) < 0.7
    visible[..., 0] = True  # every query has a far key
    results = [
        far_sums(q, k, v, FarKeys(first, visible), odds=odds, softcap=softcap),
        whole(q, k, v, (key < start) & visible, odds, softcap),
    ]
    found = []
    for y, x in results:
        slopes = torch.autograd.grad(y.sin().sum() + x.cos().sum(), (q, k, v), create_graph=True)
        curved = torch.autograd.grad(sum(t.sin().sum() for t in slopes), (q, k, v))
        found.append((y, x, *slopes, *curved))
    torch.testing.assert_close(*found, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", FAR)
@pytest.mark.parametrize("hidden", [False, True])
def test_a_layer_without_weights_is_the_layer_with_them(name: str, hidden: bool) -> None:
    """Outputs and gradients, with padding on either side and inside."""
    made, x = far_layer(**FAR[name]), torch.randn(3, 11, 8, dtype=F64, requires_grad=True)
    found = []
    for shown in (True, False):
        out = made(x, padded() if hidden else None, shown)
        out = out[0] if shown else out
        leaves = [x, *made.parameters()]
        found.append((out, *torch.autograd.grad(out.sin().sum(), leaves, materialize_grads=True)))
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("small_blocks")
def test_weights_of_probabilities_that_underflow() -> None:
    """Every sigmoid(2s) is 0 in float32, near and far; weights are those of float64."""
    made, x = far_layer(dtype=torch.float32), (torch.rand(1, 9, 8) + 0.5).requires_grad_()
    with torch.no_grad():
        made.query.weight.fill_(2.0)
        made.key.weight.fill_(-2.0)
    out, weights = made(x, None, True)
    assert weights[0, 0, 8].std() > 0.1
    expected = deepcopy(made).double()(x.double(), None, True)[1].float()
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-4)
    again = made(x)
    torch.testing.assert_close(again, out)
    again.sum().backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("odds", [True, False])
def test_dropout_is_that_of_single_weights(odds: bool) -> None:
    """Of 6 x 20,000 weights 0.3 are dropped and others grow, independently: 6 standard errors.  x stays as it is."""
    torch.manual_seed(2)
    q, k, v = torch.randn(1, 20_000, 1, 4), torch.randn(1, 1, 6, 4), torch.eye(6).expand(1, 1, 6, 6)
    far = FarKeys(6)
    want, x = far_sums(q, k, v, far, odds=odds)
    q.requires_grad_()
    y, same = far_sums(q, k, v, far, odds=odds, dropout=0.3)
    torch.testing.assert_close(same, x)
    dropped = (y == 0).double().flatten(0, 2)
    torch.testing.assert_close(y, torch.where(y == 0, 0, want / 0.7))
    assert (dropped.mean(0) - 0.3).abs().max() < 6 * (0.21 / 20_000) ** 0.5
    assert (dropped.T.corrcoef() - torch.eye(6)).abs().max() < 6 / 20_000**0.5
    # The backward pass drops the same ones: y = w noise, so its derivative is noise times that of w.
    cotangent = torch.randn_like(y)
    [found] = torch.autograd.grad(y, q, cotangent)
    w, _ = far_sums(q, k, v, far, odds=odds)
    [expected] = torch.autograd.grad(w, q, cotangent * (y != 0) / 0.7)
    torch.testing.assert_close(found, expected)
    assert not far_sums(q, k, v, far, odds=odds, dropout=1.0)[0].any()


@pytest.mark.parametrize("name", ["odds", "probability"])
def test_a_training_step_forms_no_matrix(name: str) -> None:
    made = far_layer(dtype=torch.float32, dropout=0.1, **FAR[name])
    x = torch.randn(2, 900, 8, requires_grad=True)
    with LargestTensor() as largest:
        made(x, torch.zeros(2, 900, dtype=torch.bool)).sum().backward()
    assert largest.numel <= 2 * 2 * 128 * 900


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", ["odds", "probability"])
def test_it_compiles_to_one_graph(name: str) -> None:
    torch._dynamo.reset()  # what other tests compiled counts towards its limit
    made, x = far_layer(dtype=torch.float32, dropout=0.0, **FAR[name]), torch.randn(2, 11, 8)
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    found = []
    for call in (compiled, made):
        made.zero_grad()
        call(x).sin().sum().backward()
        found.append([call(x), *(p.grad for p in made.parameters())])
    assert_same_sums(*found)


SIZES = [(1, 1), (5, 5), (7, 3), (64, 16), (70, 16), (100, 40), (33, 2), (31, 1)]


def slots_of(matrix: Tensor, window: int) -> Tensor:
    """Slots [*, Q, T] of the last Q of S keys of a matrix [*, Q, S]; 0 before the first key."""
    queries, keys = matrix.shape[-2:]
    columns = slot_keys(queries, keys, window, matrix.device)
    found = matrix.gather(-1, columns.clamp_min(0).expand(*matrix.shape[:-1], window))
    return found.masked_fill(columns < 0, 0)


def gathered(length: int, window: int) -> Tensor:
    """Position of every slot, int64 [L, T]; negative before the first key."""
    return torch.arange(length)[:, None] - window + 1 + torch.arange(window)


def qkv(length: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(2, 3, length, 4, generator=generator, dtype=F64) for _ in range(3))
    return q, k, v


@pytest.mark.parametrize(("length", "window"), SIZES)
def test_scores_of_slots_are_those_of_gathered_keys(length: int, window: int) -> None:
    q, k, _ = qkv(length)
    positions = gathered(length, window)
    keys = k[:, :, positions.clamp(min=0)] * (positions >= 0)[..., None]  # [2, 3, L, T, d]
    want = (q[..., None, :] * keys).sum(-1)
    assert (window_scores(q, k, window) - want).abs().max() < 1e-13
    assert (slots_of((q @ k.mT).tril(), window) - want).abs().max() < 1e-13


@pytest.mark.parametrize(("length", "window"), SIZES)
def test_mixing_slots_is_the_product_with_a_band(length: int, window: int) -> None:
    _, _, v = qkv(length)
    weights = torch.rand(2, 3, length, window, dtype=F64) * (gathered(length, window) >= 0)
    band = slots_to_keys(weights, length)
    assert torch.equal(slots_of(band, window), weights)
    inside = torch.ones(length, length, dtype=torch.bool).tril().triu(1 - window)
    assert torch.equal(band != 0, inside.expand(band.shape))
    assert (window_mix(weights, v, window) - band @ v).abs().max() < 1e-13


@pytest.mark.parametrize(("queries", "keys", "window"), [(1, 9, 4), (3, 9, 4), (1, 3, 3), (9, 9, 2)])
def test_the_last_queries_of_more_keys(queries: int, keys: int, window: int) -> None:
    full = torch.randn(keys, keys, dtype=F64).tril()
    last = slots_of(full[-queries:], window)
    assert torch.equal(last, slots_of(full, window)[-queries:])
    assert torch.equal(slots_to_keys(last, keys), slots_to_keys(slots_of(full, window), keys)[-queries:])


def test_filled_slots() -> None:
    def filled(seen: Tensor | None) -> Any:
        return Visible(4, 4, True, seen).windows(3, torch.device("cpu"), far=False).filled.int().tolist()

    assert filled(None) == [[0, 0, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1]]
    padded = torch.tensor([[False, True, True, False]])
    assert filled(padded) == [[[[0, 0, 0], [0, 0, 1], [0, 1, 1], [1, 1, 0]]]]


def test_derivatives_of_the_products() -> None:
    q, k, v = (t[:1, :1, :7].clone().requires_grad_() for t in qkv(9))
    weights = torch.rand(1, 1, 7, 3, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: window_scores(a, b, 3), (q, k))
    assert torch.autograd.gradcheck(lambda a, b: window_mix(a, b, 3), (weights, v))
    assert torch.autograd.gradgradcheck(lambda a, b: window_scores(a, b, 3), (q, k))
