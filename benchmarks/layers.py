"""Attention layers: against softmax attention, training steps, compiled and mapped layers, long sequences, decoding."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

import diabat
from benchmarks import peers
from benchmarks.case import Call, Case, Peer, Work
from benchmarks.problems import trained
from diabat.lab.models import Transformer, TransformerOptions

SYMBOLS, BATCH, LENGTH, FEATURES, HEADS = 61, 64, 512, 64, 8
KINDS: dict[str, dict[str, Any]] = {
    "probability": {"readout": "probability", "far": "none"},
    "odds": {"readout": "odds", "far": "none"},
    "far probability": {"readout": "probability", "far": "independent"},
    "far odds": {"readout": "odds", "far": "independent"},
    "fields and mixing": {"mode": "h", "readout": "probability", "far": "none"},
}


def cases() -> list[Case]:
    """All of them."""
    parts = (one_layer, windows, training, compiled, mapped, long_sequences, padded, decoding)
    return [case for part in parts for case in part()]


def one_layer() -> list[Case]:
    """One sequence of 8 tokens by each backend; and 512 tokens of 4 heads: mode softmax, one strong coupling."""

    def softmax(size: str, sdpa: bool = False) -> Call:
        T, kind = int(size.partition(",")[0]), size.partition(", ")[2]
        kinds: dict[str, dict[str, Any]] = {
            "far keys": {"window": 8, "relative": True},
            "window of 64": {"window": 64, "relative": True, "far": "none"},
        }
        options = kinds.get(kind, {"window": T})
        ours = diabat.BoltzmannAttention(FEATURES, 4, mode="softmax", **options)
        return step(peers.Softmax(FEATURES, 4) if sdpa else ours, T, LENGTH // T)

    def strong(kind: str, strongest: float = 20.0) -> Call:
        torch.manual_seed(0)
        attention = relative(8, 4, **KINDS[kind])
        next(p for name, p in attention.named_parameters() if "pairs" in name).data[0, 0] = strongest
        return step(attention, BATCH, LENGTH // BATCH)

    backends = ("exact", "mean_field", "dqa", "tempering")
    sizes = ("8", "64", "512", "512, far keys", "512, window of 64")
    sdpa = Peer(partial(softmax, sdpa=True), dict.fromkeys(sizes[:4], 1.05))
    weak = Peer(partial(strong, strongest=0.3), 1.05)
    return [
        Case("layer/one sequence, gradients", lambda name: step(layer(name, 8, 32), 8, 1, 32), backends, ""),
        Case("layer/mode softmax", softmax, sizes, "T", peers={"SDPA in the same layer": sdpa}),
        Case("layer/one J of 20 in one head", strong, ("odds", "far odds"), "", peers={"J of 0.3": weak}),
    ]


def windows() -> list[Case]:
    """A layer forward and backward: 64 sequences, one head, width 64, projections included."""
    sizes = range(4, 17, 2)
    short = {4: 1 / 0.8, 6: 1 / 0.9, 8: 1.0} | dict.fromkeys(sizes[3:], 0.5)
    softmax = Peer(lambda T: step(peers.Softmax(FEATURES), T), {4: 1.5, 6: 1.5, 8: 1.5, 16: 3.0})
    compared = {
        "short torch layer": Peer(lambda T: step(peers.ShortLayer(FEATURES, T), T), short),
        "scaled_dot_product_attention": softmax,
    }
    return [
        Case("layer/window, exact", lambda T: step(layer("exact", T), T), sizes, "T", "step", compared),
        Case("layer/window, mean_field", lambda T: step(layer("mean_field", T), T), sizes, "T", "step"),
    ]


def layer(
    backend: str, window: int, width: int = FEATURES, heads: int = 1, **options: Any
) -> diabat.BoltzmannAttention:
    """A layer with couplings that are not zero, of the paper's law unless options say otherwise."""
    law = KINDS["probability"] | options
    attention = diabat.BoltzmannAttention(width, heads, window, sampler=backend, **law)
    if attention.couplings.pairs is not None:
        nn.init.normal_(attention.couplings.pairs, std=0.3)
    return attention


def step(attention: nn.Module, window: int, sequences: int = BATCH, width: int = FEATURES) -> Call:
    """Forward and backward of random sequences."""
    x = torch.randn(sequences, window, width, generator=torch.Generator().manual_seed(0), requires_grad=True)
    return lambda: attention(x).sum().backward()


def model(mode: str, window: int, sampler: str, **options: Any) -> tuple[nn.Module, Callable[[Any], Tensor]]:
    """The paper's Tiny Shakespeare model, and the loss of it, perhaps compiled, on random symbols and targets."""
    torch.manual_seed(0)
    chosen = TransformerOptions(mode=mode, **KINDS["probability"] | options)
    transformer = Transformer(chosen, SYMBOLS, SYMBOLS, window, sampler)
    symbols, targets = torch.randint(SYMBOLS, (2, BATCH, window))
    return transformer, lambda it: nn.functional.cross_entropy(it(symbols).flatten(0, 1), targets.flatten())


def training() -> list[Case]:
    """A step of the paper's model with AdamW against the same with softmax."""

    def build(window: int, mode: str, sampler: str = "exact") -> Call:
        transformer, loss = model(mode, window, sampler)
        return trained(transformer, partial(loss, transformer), clip=1.0)

    targets = {"exact": {8: 1.2, 16: 1.6}, "mean_field": None}
    return [
        Case(
            f"training step/{name}", partial(build, mode="h+J", sampler=name), (4, 8, 12, 16), "T", "step",
            {"softmax": Peer(partial(build, mode="softmax"), target)},
        )
        for name, target in targets.items()
    ]  # fmt: skip


def compiled() -> list[Case]:
    """Forward and backward of the same model by ``torch.compile``, without its caches, against eager mode."""

    def build(window: int, sampler: str, compiling: bool = True) -> Call:
        os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
        transformer, loss = model("h+J", window, sampler, dropout=0.0)
        called: Any = torch.compile(transformer, fullgraph=True) if compiling else transformer

        def run() -> None:
            torch.manual_seed(1)  # of the reads
            loss(called).backward()

        return run

    return [
        Case(
            f"torch.compile/{name}", partial(build, sampler=name), (8, 16) if name == "exact" else (8,), "T", "step",
            {"eager": Peer(partial(build, sampler=name, compiling=False), 1.0)}, fresh=True,
        )
        for name in ("exact", "banded", "mean_field", "tempering", "dqa")
    ]  # fmt: skip


def mapped() -> list[Case]:
    """Gradients of eight layers by vmap over their stacked parameters, against a loop."""

    def build(sampler: str, loop: bool = False) -> Call:
        torch.manual_seed(0)
        layers = [layer(sampler, 8) for _ in range(8)]
        parameters, buffers = stack_module_state(layers)
        x = torch.randn(BATCH, 8, FEATURES)

        def loss(p: Any, b: Any) -> Tensor:
            y: Tensor = functional_call(layers[0], (p, b), (x,))
            return y.square().mean()

        if loop:
            return lambda: [grad(loss)(dict(m.named_parameters()), dict(m.named_buffers())) for m in layers]
        return lambda: vmap(grad(loss))(parameters, buffers)

    compared = {"loop": Peer(partial(build, loop=True), 1.0)}
    return [Case("vmap/eight layers", build, ("exact", "banded", "mean_field"), "", peers=compared)]


def relative(window: int, heads: int, **options: Any) -> diabat.BoltzmannAttention:
    """A layer of relative windows."""
    return layer("exact", window, FEATURES, heads, relative=True, **options)


def long_sequences() -> list[Case]:
    """Attention proper, without projections: 512 tokens, one head, forward and backward, against causal softmax."""

    def timed(attend: Any, batch: int, parameters: Iterable[Tensor] = ()) -> Work:
        torch.manual_seed(0)
        qkv = [torch.randn(batch, 1, LENGTH, FEATURES, requires_grad=True) for _ in range(3)]
        leaves, cotangent = [*qkv, *parameters], torch.randn(batch, 1, LENGTH, FEATURES)
        return Work(lambda: torch.autograd.grad(attend(*qkv), leaves, cotangent), batch * LENGTH)

    def coupled(window: int, batch: int, options: dict[str, Any]) -> Work:
        module = relative(window, 1, **options)
        law: dict[str, Any] = {"is_causal": True, "readout": module.readout, "far": module.far}
        attend = partial(diabat.boltzmann_attention, couplings=module.couplings, **law)
        return timed(attend, batch, module.couplings.parameters())

    def softmax(_: int, batch: int) -> Work:
        return timed(partial(nn.functional.scaled_dot_product_attention, is_causal=True), batch)

    def far(length: int) -> Call:
        attention, x = relative(8, 1, **KINDS["far odds"]), torch.randn(1, length, FEATURES)
        return lambda: attention(x).sum().backward()

    targets = {name: {8: 1.0, 12: 1.0, 16: 4.0} for name in ("probability", "odds")}
    memory = Case("long sequences/memory, far odds", far, (1024, 2048, 4096, 8192), "L", fresh=True)
    compared = [
        Case(
            f"long sequences/{name}, batch {batch}", partial(coupled, batch=batch, options=options), (8, 12, 16), "T",
            "token", {"softmax": Peer(partial(softmax, batch=batch), targets.get(name))},
        )
        for batch in (1, 16)
        for name, options in KINDS.items()
    ]  # fmt: skip
    return [*compared, memory]


def tokens_behind(decoder: Any, new: Tensor, prompt: Tensor) -> Call:
    """The same token again and again behind a prompt, and from the prompt anew after 64 of them."""
    with torch.no_grad():
        state = start = decoder.prefill(prompt)[1]
    turns = cycle(range(64))

    @torch.no_grad()
    def step() -> None:
        nonlocal state
        state = decoder.step(new, state if next(turns) else start)[1]

    return step


def cached_token() -> Case:
    """A token of one layer of 4 heads behind 512 others, against eight lines of torch: a cache and its attention."""

    def ours(width: int) -> Call:
        attention = diabat.BoltzmannAttention(width, 4, 8, relative=True)
        return tokens_behind(attention, torch.randn(1, width), torch.randn(1, LENGTH, width))

    def cached(width: int) -> Call:
        project, output, x = nn.Linear(width, 3 * width), nn.Linear(width, width), torch.randn(1, 1, width)
        keys, values = torch.randn(2, 1, 4, LENGTH + 64, width // 4)
        places = cycle(range(LENGTH, LENGTH + 64))

        @torch.no_grad()
        def step() -> Tensor:
            n = next(places) + 1
            q, k, v = project(x).view(3, 1, 4, 1, -1)
            keys[:, :, n - 1 : n], values[:, :, n - 1 : n] = k, v
            y = nn.functional.scaled_dot_product_attention(q, keys[:, :, :n], values[:, :, :n])
            return output(y.view(1, 1, -1))

        return step

    peer = Peer(cached, {96: 2.0, 512: 1 / 0.7})
    return Case("decoding/one layer, window of 8", ours, (96, 512), "width", peers={"cache of SDPA": peer})


def padded() -> list[Case]:
    """16 sequences with up to half of their positions padded on the left, another mask at every step; per position."""

    def build(window: int, padding: bool) -> Work:
        attention, x = relative(window, 1), torch.randn(16, LENGTH, FEATURES)

        def run() -> None:
            hidden = torch.arange(LENGTH) < torch.randint(LENGTH // 2, (16, 1))
            attention(x, hidden if padding else None).sum().backward()

        return Work(run, 16 * LENGTH)

    ours, peer = partial(build, padding=True), {"without padding": Peer(partial(build, padding=False), 1.1)}
    return [Case("long sequences/left padding", ours, (8, 12, 16), "T", "token", peer)]


def decoding() -> list[Case]:
    """One token after another through a layer of 8 heads with its projections, after prompts of two lengths."""

    def build(window: int, name: str, length: int) -> Call:
        x = torch.randn(1, length, FEATURES)
        return tokens_behind(relative(window, HEADS, **KINDS[name]), x[:, 0], x)

    behind = [
        Case(
            f"decoding/{name}, after {length}", partial(build, name=name, length=length), (8, 12, 16), "T", "token",
            target=1.5e-3,
        )
        for name in ("probability", "odds", "far odds")
        for length in (64, 4096)
    ]  # fmt: skip
    return [cached_token(), *behind]
