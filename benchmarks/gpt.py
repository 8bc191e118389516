"""A GPT as a user would write it, by what attends in it: training steps, passes without gradients, greedy tokens."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import diabat
from benchmarks.case import Call, Case, Peer
from benchmarks.layers import SYMBOLS, tokens_behind
from benchmarks.problems import trained
from diabat.attention import WindowCouplings

BATCH, LENGTH, LAYERS, HEADS, WINDOW = 16, 128, 2, 4, 8
TARGETS = {
    "window": 2.0, "window without far keys": 1.3, "window by the function": 2.0, "mode softmax": 1.1,
    "function alone": 1.1,
}  # fmt: skip
"""By kind; of training steps."""


def cases() -> list[Case]:
    """Of every kind a training step, a pass and a token, against the same model with SDPA."""

    def case(what: str, call: Any, kind: str, target: float | None) -> Case:
        peer = Peer(lambda width: call(model("SDPA", width)), target)
        return Case(
            f"gpt/{what}, {kind}", lambda width: call(model(kind, width)), (64, 128), "width", what, {"SDPA": peer}
        )  # fmt: skip

    ways = (("step", training_step), ("pass", forward_pass), ("token", greedy_token))
    return [case(*way, kind, TARGETS[kind] if way[0] == "step" else None) for kind in TARGETS for way in ways]


def model(kind: str, width: int) -> GPT:
    """A GPT whose couplings are not zero."""
    torch.manual_seed(0)
    gpt = GPT(kind, width)
    for parameter in diabat.attention.coupling_parameters(gpt):
        nn.init.normal_(parameter, std=0.2)
    return gpt


def training_step(gpt: GPT) -> Call:
    """Loss, gradients and AdamW of 16 sequences of 128 tokens."""
    x = torch.randint(SYMBOLS, (BATCH, LENGTH + 1))
    return trained(gpt, lambda: F.cross_entropy(gpt(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()))


def forward_pass(gpt: GPT) -> Call:
    """The same sequences without gradients."""
    return torch.no_grad()(partial(gpt.eval(), torch.randint(SYMBOLS, (BATCH, LENGTH))))


def greedy_token(gpt: GPT) -> Call:
    """One sequence, from 64 tokens to 128, with its cache."""
    prompt = torch.randint(SYMBOLS, (1, LENGTH - 64))
    return tokens_behind(gpt.eval(), prompt[:, -1], prompt)


def attention(kind: str, width: int) -> nn.Module:
    """The attention of a kind."""
    window: dict[str, Any] = {"window": WINDOW, "relative": True}
    match kind:
        case "window":
            return diabat.BoltzmannAttention(width, HEADS, **window)
        case "window without far keys":
            return diabat.BoltzmannAttention(width, HEADS, far="none", **window)
        case "mode softmax":
            whole: dict[str, Any] = {"window": LENGTH, "relative": True}
            return diabat.BoltzmannAttention(width, HEADS, mode="softmax", **whole)
        case "function alone":
            return OwnAttention(width, diabat.boltzmann_attention)
        case "window by the function":
            own = OwnAttention(width, diabat.boltzmann_attention)
            own.options["couplings"] = own.couplings = WindowCouplings(HEADS, WINDOW, relative=True)
            return own
    return OwnAttention(width, F.scaled_dot_product_attention)


class OwnAttention(nn.Module):
    """Causal self-attention as in nanoGPT, around SDPA or a function in its place."""

    def __init__(self, width: int, function: Any, **options: Any) -> None:
        super().__init__()
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.function, self.options = function, options

    def prefill(self, x: Tensor) -> tuple[Tensor, Any]:
        """Tokens [B, L, D], and their keys and values."""
        return self.attend(x, None)

    def step(self, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """One more token, [B, D]."""
        y, cache = self.attend(x[:, None], cache)
        return y[:, 0], cache

    def attend(self, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Tokens behind those of a cache."""
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.inputs(x).chunk(3, -1))
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        y = self.function(q, k, v, is_causal=cache is None, **self.options)
        return self.output(y.transpose(1, 2).flatten(2)), (k, v)

    def forward(self, x: Tensor) -> Tensor:
        """Attend, [B, L, D]."""
        return self.attend(x, None)[0]


class GPT(nn.Module):
    """Embeddings, two blocks with a norm before attention and MLP, and a head."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS, width), nn.Embedding(LENGTH, width)
        self.blocks: Any = nn.ModuleList(Block(width, attention(kind, width)) for _ in range(LAYERS))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, SYMBOLS))

    def forward(self, symbols: Tensor) -> Tensor:
        """Logits [B, L, symbols]."""
        x = self.symbols(symbols) + self.places.weight[: symbols.shape[1]]
        for block in self.blocks:
            x = block.added(x, block.attention(block.norm(x)))
        return self.head(x)

    def prefill(self, prompt: Tensor) -> tuple[Tensor, Any]:
        """The symbols behind those of prompts [B, L], and the state from which `step` continues."""
        x = self.symbols(prompt) + self.places.weight[: prompt.shape[1]]
        return self._decoded(x, "prefill", prompt.shape[1], [()] * LAYERS)

    def step(self, symbol: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The symbol behind one more, [B]."""
        position, states = state
        x = self.symbols(symbol) + self.places.weight[position]
        return self._decoded(x, "step", position + 1, states)

    def _decoded(self, x: Tensor, way: str, position: int, states: Any) -> tuple[Tensor, Any]:
        after = []
        for block, state in zip(self.blocks, states, strict=True):
            y, *new = getattr(block.attention, way)(block.norm(x), *state)
            x = block.added(x, y)
            after.append(new)
        return self.head(x).argmax(-1), (position, after)


class Block(nn.Module):
    """Attention and an MLP, each behind its norm."""

    def __init__(self, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.attention, self.norm = attention, nn.LayerNorm(width)
        into, out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), into, nn.GELU(), out)

    def added(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add attention, and then the MLP, to the stream x."""
        x = x + attended
        return x + self.mlp(x)
