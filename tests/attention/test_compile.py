"""torch.compile of models with our layers: the same answers, one graph, compiled once."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from layers import LAYERS, attention
from rounding import assert_same_sums
from torch import Tensor, nn

import diabat
from diabat import BoltzmannAttention, NeuroGameAttention
from diabat.attention import WindowCouplings
from diabat.attention.compiled import _run

# What torch's compiler says of torch, and hides from users.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def positions(**options: Any) -> Any:
    return attention(5, dtype=torch.float32, **options)


def step(model: Callable[..., Any], owner: nn.Module, x: Tensor) -> list[Tensor]:
    """Output and all gradients, the reads from one seed."""
    torch.manual_seed(3)
    owner.zero_grad()
    y = model(x)
    y.square().sum().backward()
    return [y.detach(), *(p.grad.clone() for p in owner.parameters() if p.grad is not None)]


def count_graphs(backend: str = "aot_eager") -> tuple[list[int], Callable[..., Any]]:
    graphs: list[int] = []

    def compiler(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(1)
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    return graphs, compiler


CASES: dict[str, dict[str, Any]] = {
    "exact": {"sampler": "exact"},
    "three_body": {"sampler": "exact", "mode": "h+J+K"},
    "banded": {"sampler": "banded", "bandwidth": 2},
    "mean_field": {"sampler": "mean_field"},
    "tempering": {"sampler": "tempering"},
    "covariance": {"sampler": "exact", "gradient": "covariance", "num_reads": 20},
    "dqa": {"sampler": "dqa", "gradient": "adjoint"},
    "learned_schedule": {
        "sampler": diabat.sampler("dqa", schedule="boltzmann-4", learn_schedule=True),
        "gradient": "adjoint",
    },
    "far": {"relative": True, "far": "independent"},
    "far odds": {"relative": True, "far": "independent", "readout": "odds"},
    "drawn J-self": {"relative": True, "mode": "J-self", "sampler": "tempering", "num_reads": 20},
}
# Graphs of their own, whose derivative is traced too; those of other backends differ by a name inside one operator.
TRACED = ("exact", "three_body", "learned_schedule", "far", "far odds")
FROZEN = {"three_body": "couplings.pairs", "far": "weight"}


@pytest.mark.parametrize("name", CASES)
def test_one_graph_compiled_once_with_the_answers_of_eager_mode(name: str) -> None:
    """Also of a copy, whose bridge is its own; and with the couplings frozen, or all but the couplings."""
    first = positions(**CASES[name])
    net = copy.deepcopy(first)
    for p in first.parameters():
        p.data.zero_()
    for key, p in net.named_parameters():
        p.requires_grad_(name not in FROZEN or FROZEN[name] not in key)
    graphs, backend = count_graphs("aot_eager" if name in TRACED else "eager")
    compiled = torch.compile(net, fullgraph=True, backend=backend)
    for _ in range(2):
        x = torch.randn(3, 11 if net.relative else 5, 8)
        got, want = step(compiled, net, x), step(net, net, x)
        assert len(got) == len(want) > 1
        assert_same_sums(got, want)
    assert len(graphs) == 1
    if name in ("exact", "learned_schedule", "far odds"):
        net.eval()
        with torch.no_grad():
            assert_same_sums(compiled(x), net(x))
        assert len(graphs) == 2


WINDOWS: dict[str, dict[str, Any]] = {
    "probability": {},
    "far odds": {"far": "independent", "readout": "odds", "rotary": True},
    "drawn J-self": {"mode": "J-self", "sampler": "tempering", "num_reads": 20},
    "drawn odds": {"sampler": "tempering", "readout": "odds", "num_reads": 20},
}


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in WINDOWS if name != "drawn odds"]


@pytest.mark.parametrize("name", ["drawn odds", *SLOW])
def test_relative_couplings_in_one_graph_for_all_lengths(name: str) -> None:
    """With padding, and once without: one graph of each for the first length, one more for all others."""
    net = attention(3, relative=True, dtype=torch.float32, **WINDOWS[name])
    graphs, backend = count_graphs("eager")
    compiled = torch.compile(net, fullgraph=True, backend=backend)
    for length in (7, 9, 12):
        x, mask = torch.randn(2, length, 8), torch.arange(length) < torch.tensor([[0], [4]])
        for padding in (mask, None) if name == "probability" else (mask,):
            got, want = (step(partial(f, key_padding_mask=padding), net, x) for f in (compiled, net))
            assert_same_sums(got, want)
    assert len(graphs) <= (4 if name == "probability" else 2)


@pytest.mark.slow
def test_batches_of_other_sizes() -> None:
    """A second graph with a free batch size, a third with a free length."""
    net = positions(sampler="exact")
    graphs, backend = count_graphs()
    compiled = torch.compile(net, fullgraph=True, backend=backend)
    for batch, length in ((4, 5), (7, 5), (2, 5), (3, 4), (5, 3), (2, 2)):
        x = torch.randn(batch, length, 8)
        assert_same_sums(step(compiled, net, x), step(net, net, x))
    assert len(graphs) <= 3


@pytest.mark.parametrize("masked", [False, True])
def test_layers_of_torch_with_our_attention(masked: bool) -> None:
    """Torch makes float masks of those that are bool."""
    layer = nn.TransformerEncoderLayer(16, 4, batch_first=True, dropout=0.0)
    layer.self_attn = diabat.BoltzmannMultiheadAttention(16, 4, batch_first=True, window=6)
    nn.init.normal_(layer.self_attn.couplings.pairs, std=0.3)
    x = torch.randn(3, 6, 16)
    masks = {
        "src_mask": torch.ones(6, 6, dtype=torch.bool).triu(1),
        "src_key_padding_mask": torch.arange(6) >= torch.tensor([[6], [4], [2]]),
    }
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    pair = [step(partial(f, **(masks if masked else {})), layer, x) for f in (compiled, layer)]
    assert_same_sums(*pair)


@pytest.mark.slow
def test_the_default_compiler() -> None:
    net = positions(sampler="exact")
    x = torch.randn(3, 5, 8)
    assert_same_sums(step(torch.compile(net, fullgraph=True), net, x), step(net, net, x))


def test_a_forward_pass_keeps_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the backward pass needs hangs on a tensor of the graph and goes with it."""
    results: list[weakref.ref[Tensor]] = []

    def run(*terms: Any) -> Any:
        kept = _run(*terms)
        results.append(weakref.ref(kept.result))
        return kept

    monkeypatch.setattr("diabat.attention.compiled._run", run)
    compiled = torch.compile(positions(sampler="exact"), fullgraph=True, backend="aot_eager")
    outputs = [compiled(torch.randn(3, 5, 8)) for _ in range(3)]
    assert [one() is None for one in results] == [False] * 3
    outputs.clear()
    assert [one() is None for one in results] == [True] * 3


@pytest.mark.parametrize("function", ["spin_probabilities", "neurogame"])
def test_around_what_no_graph_holds(function: str) -> None:
    """A bare call and NeuroGame attention break the graph and run as without a compiler; no graph is made twice."""
    layer: nn.Module = nn.Linear(4, 4)
    if function == "neurogame":
        layer = NeuroGameAttention(4, 2)

    def f(x: Tensor) -> Tensor:
        y: Tensor = layer(x.sin())
        if function == "spin_probabilities":
            y = diabat.spin_probabilities(y, None, "dqa", seed=1)
        return y.square()

    graphs, backend = count_graphs()
    compiled = torch.compile(f, backend=backend)
    for _ in range(4):
        x = torch.randn(2, 5, 4)
        assert_same_sums(step(compiled, layer, x), step(f, layer, x))
    assert len(graphs) <= 2


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", ["exact", "mean_field", "tempering", "dqa", "softmax", "games"])
def test_a_trace_would_freeze_the_answers(name: str) -> None:
    options = {"mode": name} if name == "softmax" else {"sampler": name}
    layer = NeuroGameAttention(8, 2) if name == "games" else BoltzmannAttention(8, 2, 5, **options)
    sentence = r"torch\.jit\.trace: cannot record layers and samplers"
    with pytest.raises(diabat.UnsupportedError, match=sentence):
        torch.jit.trace(layer, torch.randn(3, 5, 8), check_trace=False)


def test_a_compiled_layer_has_no_second_derivative() -> None:
    x = torch.randn(1, 5, 8, requires_grad=True)
    out = torch.compile(positions(), backend="eager", fullgraph=True)(x)
    sentence = "first derivatives of a compiled layer, got a second one; call"
    for power in (1, 2):
        (slope,) = torch.autograd.grad(out.pow(power).sum(), x, create_graph=True)
        with pytest.raises(diabat.UnsupportedError, match=sentence):
            torch.autograd.grad(slope.sum(), x, retain_graph=True)


@pytest.mark.parametrize("name", ["odds of slots", "band"])
def test_a_compiled_layer_records_as_well(name: str) -> None:
    layer, x = LAYERS[name](), torch.randn(2, 6, 8)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    with layer.recording():
        layer(x)
        want = layer.last_problem()
        compiled(x)
        found = layer.last_problem()
        torch.testing.assert_close((found.fields, found.couplings), (want.fields, want.couplings))
        assert layer.last_path() == "operators"
    compiled(x)


def test_another_backend_in_place() -> None:
    """What is compiled follows, with one compilation more."""
    net, x = positions(sampler="exact"), torch.randn(3, 5, 8)
    compiled = torch.compile(net, fullgraph=True, backend="eager")
    before = compiled(x)
    net.use_sampler("mean_field")
    after = compiled(x)
    assert_same_sums(after, net(x))
    assert not torch.allclose(after, before, atol=1e-5)


@pytest.mark.parametrize("far", ["none", "independent"])
def test_probabilities_that_underflow_keep_their_weights_in_a_graph(far: str) -> None:
    """Scores near -60, where P is 0 in float32: the weights are those of float64 without a compiler."""
    couplings = WindowCouplings(1, 3, init=0.3)
    below = torch.tensor([-0.5, 0.0, -1.0, -0.25, -1.5])

    def weights(of: Any, k: Tensor) -> Tensor:
        one, v = torch.ones(1, 1, 1, 1, dtype=k.dtype), torch.eye(5, dtype=k.dtype)[None, None]
        made = copy.deepcopy(couplings).to(k.dtype)
        found: Tensor = of(
            one, (k - 60)[None, None, :, None], v, made, readout="probability", scale=1.0, far=far
        )
        return found.detach()

    compiled = torch.compile(diabat.boltzmann_attention, backend="eager", fullgraph=True)
    expected = weights(diabat.boltzmann_attention, below.double())
    assert float(expected.max()) < 0.9
    torch.testing.assert_close(weights(compiled, below).double(), expected, rtol=0, atol=3e-5)
