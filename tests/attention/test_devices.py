"""Layers elsewhere than on the CPU: no number is read on the host, few kernels, no tensor of order L², one graph.

There is no GPU in the suite.  On the device ``meta`` tensors have shapes only: what reads a number raises, and a step
of any size costs nothing.  The numbers of the same path come from tensors on the CPU that say that they are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from counted import Counted
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

from diabat import BoltzmannAttention, boltzmann_attention
from diabat.attention import WindowCouplings
from diabat.samplers import kept

HEADS, WIDTH = 8, 192


class Function(nn.Module):
    """The function, with queries, keys and values taken from tokens; by a causal mask of a dtype if asked."""

    def __init__(
        self, *, groups: int = 1, couplings: bool = True, mask: torch.dtype | None = None, **options: Any
    ) -> None:
        super().__init__()
        self.couplings = WindowCouplings(HEADS, 8, init=0.3) if couplings else None
        self.groups, self.mask, self.options = groups, mask, options

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = x.unflatten(-1, (HEADS, -1)).transpose(1, 2).chunk(3, -1)
        k, v = k[:, :: self.groups], v[:, :: self.groups]
        given: Any = {"is_causal": self.mask is None, "enable_gqa": self.groups > 1, **self.options}
        if self.mask is not None:
            seen = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=x.device).tril()
            added = torch.zeros_like(seen, dtype=self.mask)
            given["attn_mask"] = seen if self.mask == torch.bool else added.masked_fill(~seen, -torch.inf)
        out: Any = boltzmann_attention(q, k, v, self.couplings, **given)
        return torch.cat(out, -1) if given.get("need_weights") else out


class Layer(nn.Module):
    """A layer; with padding on the left; or decoding its last two tokens."""

    def __init__(self, kind: str = "", **options: Any) -> None:
        super().__init__()
        self.layer, self.kind = BoltzmannAttention(WIDTH, HEADS, window=8, coupling_init=0.3, **options), kind

    def forward(self, x: Tensor) -> Tensor:
        padding = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2]) < 3
        if self.kind != "decoded":
            out: Any = self.layer(x, padding if self.kind == "padded" else None)
            return out
        y, state = self.layer.prefill(x[:, :-2], padding[:, :-2])
        for i in (-2, -1):
            y, state = self.layer.step(x[:, i], state)
        return y


FAR: dict[str, Any] = {"far": "independent", "readout": "odds"}
SLOTS: dict[str, Any] = {"relative": True, **FAR}
PROBABILITY: dict[str, Any] = {"far": "independent", "readout": "probability"}
# What attends, and the most kernels of a step, forward and backward.
CASES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "paper": (lambda: Layer(readout="probability"), 100),
    "paper, odds": (lambda: Layer(readout="odds"), 110),
    "triples": (lambda: Layer(mode="h+J+K", readout="odds"), 300),
    "own spin": (lambda: Layer(mode="J-self", readout="probability"), 110),
    "window": (lambda: Function(far="none"), 100),
    "far": (lambda: Function(**FAR), 130),
    "far, grouped": (lambda: Function(**FAR, groups=2), 145),
    "far, layer": (lambda: Layer(**SLOTS), 160),
    "far, padded": (lambda: Layer("padded", **SLOTS), 175),
    "far, mask": (lambda: Function(**FAR, mask=torch.bool), 900),
    "far, added": (lambda: Function(**FAR, mask=torch.float32), 900),
    "far, weights": (lambda: Function(**FAR, need_weights=True), 200),
    "decoding": (lambda: Layer("decoded", **SLOTS), 230),
    # Over blocks of queries, one after another.
    "far, probability": (lambda: Function(**PROBABILITY), 900),
    "far, probability, added": (lambda: Function(**PROBABILITY, mask=torch.float32), 950),
    "far, probability, weights": (lambda: Function(**PROBABILITY, need_weights=True), 900),
    "far, soft cap": (lambda: Function(**FAR, softcap=2.0), 900),
    "far, dropout": (lambda: Function(**FAR, dropout_p=0.1), 1300),
    "no couplings": (lambda: Function(couplings=False), 30),
    "no couplings, probability": (lambda: Function(couplings=False, readout="probability"), 800),
    # One spin after another.
    "banded": (lambda: Layer(**SLOTS, sampler="banded", bandwidth=2), 450),
    "banded, paper": (lambda: Layer(sampler="banded", bandwidth=2), 400),
}
# Up to torch, which has no flash kernel for meta; a mask or weights [L, L].
SQUARE = ("no couplings", *(name for name in CASES if name.endswith(("mask", "added", "weights"))))
ABSOLUTE = tuple(name for name in CASES if "paper" in name or name in ("triples", "own spin"))


def built(name: str, batch: int, length: int, device: str) -> tuple[nn.Module, Tensor]:
    """A module with its parameters, and tokens."""
    torch.manual_seed(0)
    made = CASES[name][0]()
    shape = (batch, 8 if name in ABSOLUTE else length, WIDTH)
    return made.to(device), torch.randn(shape).to(device).requires_grad_()


def step(made: Callable[[Tensor], Tensor], x: Tensor, owner: nn.Module) -> list[Tensor]:
    """An output, and the gradient of some sum of it."""
    out = made(x)
    if not out.requires_grad:
        return [out]
    g = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device).view_as(out)
    slopes = torch.autograd.grad(out, [x, *owner.parameters()], g, allow_unused=True)
    return [out, *(t for t in slopes if t is not None)]


@pytest.fixture(autouse=True)
def _tables_are_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Counting is a mode of torch, in which tables are made again; a step on a device finds those of the first."""
    monkeypatch.setattr(kept, "_is_hidden", torch.compiler.is_compiling)
    monkeypatch.setattr(kept, "_STORE", kept.Store(kept.LIMIT))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def counted(name: str, batch: int, length: int) -> Counted:
    """What the second step does on a device that is not the CPU."""
    made, x = built(name, batch, length, "meta")
    made.train(name != "decoding")
    with torch.set_grad_enabled(name != "decoding"):
        step(made, x, made)
        with Counted() as found:
            step(made, x, made)
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_step_reads_no_number_and_takes_few_kernels(name: str) -> None:
    found = counted(name, 64 if name in ABSOLUTE else 8, 2048)
    assert (found.reads, found.crossings) == ([], 0)
    assert found.kernels <= CASES[name][1], found.kernels


@pytest.mark.parametrize("name", [name for name in CASES if name not in (*ABSOLUTE, *SQUARE)])
def test_no_tensor_is_of_order_l_squared(name: str) -> None:
    length = 1 << 13  # blocks on a device have 2^24 numbers
    assert counted(name, 1, length).largest <= length**2 / 4


@pytest.mark.parametrize("name", [name for name in CASES if name != "far, dropout"])
def test_numbers_are_those_of_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, x = built(name, 2, 40, "cpu")
    made, x = made.double(), x.detach().double().requires_grad_()
    want = step(made, x, made)
    monkeypatch.setattr(Tensor, "is_cpu", property(lambda t: False))
    with Counted() as found:
        got = step(made, x, made)
    assert found.reads == []
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paper", "far", "far, padded", "banded"])
def test_a_graph_is_of_plain_operators(name: str) -> None:
    made, x = built(name, 1, 1 << 14, "meta")
    graphs: list[torch.fx.Graph] = []

    def compiler(module: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(module.graph)
        return make_boxed_func(module.forward)

    compiled = torch.compile(made, fullgraph=True, backend=aot_autograd(fw_compiler=compiler))
    step(compiled, x, made)
    assert len(graphs) == 2  # forward and backward
    for node in [node for graph in graphs for node in graph.nodes]:
        assert "diabat" not in str(node.target)
        value = node.meta.get("val")
        if isinstance(value, Tensor) and name not in ABSOLUTE:  # what is expanded takes no memory
            assert sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)) < 2**28 / 4
