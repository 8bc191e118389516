"""Attention layers: against softmax attention, training steps, compiled and mapped layers, long sequences, decoding."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

import diabat
from benchmarks import peers
from benchmarks.case import Build, Call, Case, Peer, Work
from benchmarks.growth import layer, step
from diabat.attention.chain import ChainLayer, attend
from diabat.models import Transformer, TransformerOptions

SYMBOLS, BATCH, LENGTH, FEATURES, HEADS = 61, 64, 512, 64, 8
KINDS: dict[str, dict[str, Any]] = {
    "probability": {},
    "odds": {"weights": "odds"},
    "far probability": {"far": "independent"},
    "far odds": {"weights": "odds", "far": "independent"},
    "fields and mixing": {"mode": "h"},
}


def cases() -> list[Case]:
    """All of them."""
    parts = (one_layer, training, compiled, mapped, long_sequences, chains, padded, decoding)
    return [case for part in parts for case in part()]


def one_layer() -> list[Case]:
    """Width 32, one head: 64 sequences forward, and one sequence of 8 tokens by each backend."""

    def forward(T: int, backend: str, sequences: int = BATCH) -> Call:
        made, x = layer(backend, T, 32), torch.randn(sequences, T, 32)
        return torch.no_grad()(partial(made, x))

    def softmax(T: int) -> Call:
        return torch.no_grad()(partial(peers.Softmax(32), torch.randn(BATCH, T, 32)))

    compared = {"softmax": Peer(softmax)}
    backends = ("exact", "mean_field", "dqa", "tempering")
    forwards = {name: partial(forward, backend=name) for name in backends[:2]}
    return [
        *(Case(f"layer/forward, {name}", by, (8, 16), "T", peers=compared) for name, by in forwards.items()),
        Case("layer/one sequence, forward", lambda name: forward(8, name, 1), backends, ""),
        Case("layer/one sequence, gradients", lambda name: step(layer(name, 8, 32), 8, 1, 32), backends, ""),
    ]


def model(
    mode: str, window: int, sampler: str = "exact", **options: Any
) -> tuple[Transformer, Tensor, Tensor]:
    """The paper's Tiny Shakespeare model, and a batch of random symbols and targets."""
    torch.manual_seed(0)
    made = Transformer(TransformerOptions(mode=mode, **options), SYMBOLS, SYMBOLS, window, sampler)
    return made, torch.randint(SYMBOLS, (BATCH, window)), torch.randint(SYMBOLS, (BATCH, window))


def training() -> list[Case]:
    """A step of the paper's model with AdamW against the same with softmax."""

    def build(window: int, mode: str, sampler: str = "exact") -> Call:
        made, symbols, targets = model(mode, window, sampler)
        optimizer = torch.optim.AdamW(made.parameters(), lr=1e-3)

        def run() -> None:
            loss = nn.functional.cross_entropy(made(symbols).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(made.parameters(), 1.0)
            optimizer.step()

        return run

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
        made, symbols, targets = model("h+J", window, sampler, dropout=0.0)
        called: Any = torch.compile(made, fullgraph=True) if compiling else made

        def run() -> None:
            torch.manual_seed(1)  # of the reads
            nn.functional.cross_entropy(called(symbols).flatten(0, 1), targets.flatten()).backward()

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
        layers = [diabat.BoltzmannAttention(FEATURES, 1, 8, sampler=sampler) for _ in range(8)]
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

    def inputs(batch: int) -> list[Tensor]:
        torch.manual_seed(0)
        return [torch.randn(batch, LENGTH, FEATURES, requires_grad=True) for _ in range(3)]

    def coupled(window: int, batch: int, options: dict[str, Any]) -> Work:
        made = relative(window, 1, **options)
        made.output = nn.Identity()  # type: ignore[assignment]  # leaves attention proper
        q, k, v = inputs(batch)
        leaves = [q, k, v, *(p for p in (made.coupling_pairs,) if p is not None)]
        cotangent = torch.randn(batch, LENGTH, FEATURES)
        call = partial(made._attend, q, k, v, None)
        return Work(lambda: torch.autograd.grad(call()[0], leaves, cotangent), batch * LENGTH)

    def softmax(_: int, batch: int) -> Work:
        qkv, cotangent = inputs(batch), torch.randn(batch, 1, LENGTH, FEATURES)
        q, k, v = (t[:, None] for t in qkv)

        def run() -> Any:
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return torch.autograd.grad(y, qkv, cotangent, retain_graph=True)

        return Work(run, batch * LENGTH)

    def far(length: int) -> Call:
        made, x = relative(8, 1, weights="odds", far="independent"), torch.randn(1, length, FEATURES)
        return lambda: made(x).sum().backward()

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


def chains() -> list[Case]:
    """Keys coupled with their neighbours over the whole context, 2,048 tokens of 4 heads, against softmax; decoding."""

    def build(length: int, width: int, backward: bool, softmax: bool = False) -> Call:
        torch.manual_seed(0)
        made: nn.Module = peers.Softmax(width, 4)
        if not softmax:
            made = diabat.BoltzmannAttention(width, 4, None, relative=True, weights="odds")
        x = torch.randn(max(1, 2048 // length), length, width, requires_grad=backward)
        if backward:
            return lambda: made(x).sum().backward()
        return torch.no_grad()(partial(made, x))

    def token(length: int, softmax: bool = False) -> Call:
        plain: dict[str, Any] = {"mode": "softmax", "attention_window": 4096}
        options = TransformerOptions(
            num_heads=4, num_layers=4, embed_dim=96, relative=True, weights="odds", positions="rope",
            **(plain if softmax else {"couplings": "tokens"}),
        )  # fmt: skip
        made = Transformer(options, SYMBOLS, SYMBOLS, 4096, "exact" if softmax else "banded").eval()
        new = torch.zeros(1, dtype=torch.int64)
        return tokens_behind(made, lambda _: new, torch.randint(SYMBOLS, (1, length)))

    sizes = (128, 512, 2048)
    compared = [
        Case(
            f"chains/{name}, width {width}", partial(build, width=width, backward=backward), sizes, "L",
            peers={"softmax": Peer(partial(build, width=width, backward=backward, softmax=True), target)},
        )
        for width in (96, 256)
        for name, backward, target in (("forward", False, 2.0), ("gradients", True, 2.5))
    ]  # fmt: skip
    decoded = Peer(partial(token, softmax=True), 1 / 0.7)
    token_case = Case("chains/decoded token", token, sizes, "L", peers={"softmax": decoded})
    return [*compared, token_case, cached_token(), *chain_kernel()]


def tokens_behind(made: Any, new: Callable[[int], Tensor], prompt: Tensor) -> Call:
    """One token after another behind a prompt, from the prompt again after 64 of them."""
    with torch.no_grad():
        start = made.prefill(prompt)[1]
    states = [start]

    @torch.no_grad()
    def step() -> None:
        if int(states[0].position) == prompt.shape[1] + 64:
            states[0] = start
        states.append(made.step(new(int(states[0].position)), states.pop())[1])

    return step


def cached_token() -> Case:
    """A token of one layer of 4 heads behind 512 others, against eight lines of torch: a cache and its attention."""

    def ours(size: str) -> Call:
        kind, width = size.split(", ")
        more: dict[str, Any] = {} if kind == "chain" else {"far": "independent"}
        window = None if kind == "chain" else 8
        made = diabat.BoltzmannAttention(int(width), 4, window, relative=True, weights="odds", **more)
        x = torch.randn(1, LENGTH + 64, int(width))
        return tokens_behind(made, lambda at: x[:, at], x[:, :LENGTH])

    def cached(size: str) -> Call:
        width = int(size.split(", ")[1])
        project, output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        keys, values, at = *torch.randn(2, 1, 4, LENGTH + 64, width // 4), [LENGTH]
        x = torch.randn(1, 1, width)

        @torch.no_grad()
        def step() -> None:
            here = at[0] = LENGTH if at[0] == LENGTH + 64 else at[0]
            q, k, v = project(x).view(1, 1, 3, 4, -1).permute(2, 0, 3, 1, 4)
            keys[:, :, here : here + 1], values[:, :, here : here + 1], at[0] = k, v, here + 1
            seen = slice(here + 1)
            y = nn.functional.scaled_dot_product_attention(q, keys[:, :, seen], values[:, :, seen])
            output(y.transpose(1, 2).flatten(2))

        return step

    sizes = tuple(f"{kind}, {width}" for kind in ("chain", "window of 8") for width in (96, 512))
    return Case("decoding/one layer", ours, sizes, "layer, width", peers={"cache of SDPA": Peer(cached)})


def chain_kernel() -> list[Case]:
    """Attention over chains alone, without projections, by features of a head: time of a visible pair of tokens."""

    def build(features: int, backward: bool, softmax: bool = False) -> Work:
        torch.manual_seed(0)
        q, k, v, cotangent = torch.randn(4, 1, 4, LENGTH, features)
        J = torch.randn(1, 4, LENGTH - 1)
        given = [t.requires_grad_(backward) for t in ((q, k, v) if softmax else (q, k, v, J))]

        def run() -> Any:
            if softmax:
                y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                y = attend(ChainLayer(True, "odds"), q, k, v, J, None)
            return torch.autograd.grad(y, given, cotangent) if backward else y

        return Work(run, 2 * LENGTH * (LENGTH + 1))

    return [
        Case(
            f"chains/kernel, {name}", partial(build, backward=backward), (8, 24, 64), "features", "pair",
            {"softmax": Peer(partial(build, backward=backward, softmax=True))},
        )
        for name, backward in (("forward", False), ("gradients", True))
    ]  # fmt: skip


def padded() -> list[Case]:
    """16 sequences with up to half of their positions padded on the left, another mask at every step; per position."""

    def build(window: int, padding: bool) -> Work:
        made, x = relative(window, 1), torch.randn(16, LENGTH, FEATURES)

        def masks() -> Iterator[Tensor | None]:
            while True:
                hidden = torch.arange(LENGTH) < torch.randint(LENGTH // 2, (16, 1))
                yield hidden if padding else None

        drawn = masks()
        return Work(lambda: made(x, next(drawn)).sum().backward(), 16 * LENGTH)

    ours, without = partial(build, padding=True), Peer(partial(build, padding=False), 1.1)
    peer = {"without padding": without}
    return [Case("long sequences/left padding", ours, (8, 12, 16), "T", "token", peer)]


def decoding() -> list[Case]:
    """One token after another through a layer of 8 heads with its projections, after prompts of two lengths."""

    def build(window: int, length: int, options: dict[str, Any]) -> Callable[[], None]:
        made, x = relative(window, HEADS, **options), torch.randn(1, length, FEATURES)
        plain: dict[str, Any] = {"relative": True, "mode": "softmax", "far": made.far}
        softmax = diabat.BoltzmannAttention(FEATURES, HEADS, window, **plain)
        with torch.no_grad():
            state = softmax.prefill(x)[1]

        @torch.no_grad()
        def run() -> None:
            nonlocal state
            state = made.step(x[:, 0], state)[1]

        return run

    found = []
    for name in ("probability", "odds", "far odds"):
        for length in (64, 4096):
            way: Build = partial(build, length=length, options=KINDS[name])
            title = f"decoding/{name}, after {length}"
            found.append(Case(title, way, (8, 12, 16), "T", "token", target=1.5e-3))
    return found
