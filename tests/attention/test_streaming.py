"""Keys before a window over blocks of queries, held against whole matrices of scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from largest_tensor import LargestTensor
from torch import Tensor, nn

from diabat import BoltzmannAttention
from diabat.attention import streaming
from diabat.attention.streaming import FarKeys, far_sums

F64 = torch.float64
KINDS: dict[str, dict[str, Any]] = {
    "odds": {"weights": "odds"},
    "probability": {},
    "softmax": {"mode": "softmax"},
    "J-self": {"mode": "J-self"},
    "without fields": {"mode": "J+K", "weights": "odds"},
    "bias": {"offset_bias": True},
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three queries, so that short sequences have several."""
    monkeypatch.setattr(streaming, "_LEAST", 3)
    monkeypatch.setattr(streaming, "_NUMBERS", 0)


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
    return p @ v / x[..., None], x


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


def layer(window: int = 3, dtype: torch.dtype = F64, **options: Any) -> BoltzmannAttention:
    torch.manual_seed(1)
    made = BoltzmannAttention(8, 2, window, relative=True, far="independent", **options).to(dtype)
    for p in (made.coupling_pairs, made.coupling_triples, made.offset_bias):
        if p is not None:
            nn.init.normal_(p, std=0.5)
    return made


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("padded", [False, True])
def test_a_layer_without_weights_is_the_layer_with_them(name: str, padded: bool) -> None:
    """Outputs and gradients, with padding on either side and inside."""
    made, x = layer(**KINDS[name]), torch.randn(3, 11, 8, dtype=F64, requires_grad=True)
    mask = torch.zeros(3, 11, dtype=torch.bool)
    mask[0, :5] = mask[1, 8:] = mask[2, [0, 3, 4, 9]] = True
    found = []
    for shown in (True, False):
        out = made(x, mask if padded else None, shown)
        out = out[0] if shown else out
        leaves = [x, *made.parameters()]
        found.append((out, *torch.autograd.grad(out.sin().sum(), leaves, materialize_grads=True)))
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


def test_weights_that_underflow_stay_uniform() -> None:
    """Every sigmoid(2s) is 0 in float32, near and far."""
    made, x = layer(dtype=torch.float32), (torch.rand(1, 9, 8) + 0.5).requires_grad_()
    with torch.no_grad():
        made.query.weight.fill_(20.0)
        made.key.weight.fill_(-20.0)
    out, weights = made(x, None, True)
    torch.testing.assert_close(weights[0, 0, 8], torch.full((9,), 1 / 9))
    again = made(x)
    torch.testing.assert_close(again, out)
    again.sum().backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("odds", [True, False])
def test_dropout_is_that_of_single_weights(odds: bool) -> None:
    """Of 6 x 20,000 weights 0.3 are dropped and others grow, independently: 6 standard errors.  x stays as it is."""
    torch.manual_seed(2)
    q, k, v = torch.randn(1, 20_000, 1, 4), torch.randn(1, 1, 6, 4), torch.eye(6).expand(1, 1, 6, 6)
    far = FarKeys(6)
    want, x = far_sums(q, k, v, far, odds=odds)
    q.requires_grad_()
    y, same = far_sums(q, k, v, far, odds=odds, dropout=0.3)
    assert torch.equal(same, x)
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
def test_a_training_step_forms_no_matrix(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.undo()
    made = layer(dtype=torch.float32, dropout=0.1, **KINDS[name])
    x = torch.randn(2, 900, 8, requires_grad=True)
    with LargestTensor() as largest:
        made(x, torch.zeros(2, 900, dtype=torch.bool)).sum().backward()
    assert largest.numel <= 2 * 2 * 128 * 900


@pytest.mark.parametrize("name", ["odds", "probability"])
def test_half_precision_and_autocast(name: str) -> None:
    made, x = layer(dtype=torch.float32, **KINDS[name]), torch.randn(2, 11, 8)
    want = made(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (made(x) - want).abs().max() < 0.02
    found = made.bfloat16()(x.bfloat16())
    assert found.dtype == torch.bfloat16
    assert (found - want).abs().max() < 0.05


@pytest.mark.parametrize("name", ["odds", "probability"])
def test_it_compiles_to_one_graph(name: str) -> None:
    torch._dynamo.reset()  # what other tests compiled counts towards its limit
    made, x = layer(dtype=torch.float32, dropout=0.0, **KINDS[name]), torch.randn(2, 11, 8)
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    found = []
    for call in (compiled, made):
        made.zero_grad()
        call(x).sin().sum().backward()
        found.append([call(x), *(p.grad for p in made.parameters())])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
