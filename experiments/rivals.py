"""Rivals of couplings: softmax over queries, keys and values that a convolution or a gated scan has mixed before.

They are the strongest that a reader would name (docs/chains.md, docs/recall.md).
:func:`built` makes the models of the studies of chains and segments.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diabat.attention import BoltzmannAttention, ChainAttention
from diabat.attention.head_axis import merged_heads, split_heads
from diabat.models.transformer import Transformer, TransformerOptions
from experiments.common import Row

CHUNK = 32

TAPS: dict[str, tuple[float, float] | None] = {
    "torch": None,
    "identity": (0.0, 1.0),
    "shift": (1.0, 0.0),
    "both": (1.0, 1.0),
}
"""Where the last two taps of a convolution begin, with N(0, .1²) on all; None draws what torch draws."""


class Rival(nn.Module, ABC):
    """Changes what some of the projections ``q``, ``k`` and ``v`` of a layer give, before rotary positions.

    Scanned(block.attention, "kv", start=0.9)  # a submodule ``rival`` of the layer from now on
    """

    def __init__(self, layer: BoltzmannAttention | ChainAttention, names: str) -> None:
        super().__init__()
        self.embed_dim, self.num_heads = layer.embed_dim, layer.num_heads
        for name, projection in (("q", layer.query), ("k", layer.key), ("v", layer.value)):
            if name in names:
                projection.register_forward_hook(partial(self._hook, name))
        layer.add_module("rival", self)

    def _hook(self, name: str, _: nn.Module, x: tuple[Tensor], found: Tensor) -> Tensor:
        return self.changed(name, x[0], found)

    @abstractmethod
    def changed(self, name: str, x: Tensor, found: Tensor) -> Tensor:
        """What takes the place of what a projection finds in tokens x, both [B, L, D]."""


class Convolved(Rival):
    """Causal depthwise convolutions over keys (``k``), or over queries, keys and values (``qkv``)."""

    def __init__(
        self, layer: BoltzmannAttention | ChainAttention, convolved: str, taps: int = 3, start: str = "torch"
    ) -> None:
        super().__init__(layer, convolved)
        self.taps, self.convolutions, begin = taps, nn.ModuleDict(), TAPS[start]
        for name in convolved:
            filters = nn.Conv1d(self.embed_dim, self.embed_dim, taps, groups=self.embed_dim, bias=False)
            self.convolutions[name] = filters
            if begin is not None:
                nn.init.normal_(filters.weight, std=0.1)
                filters.weight.data[..., -2:] += torch.tensor(begin)

    def changed(self, name: str, x: Tensor, found: Tensor) -> Tensor:
        """Features side by side: twice as fast as ``Conv1d`` on a processor, and without copies before attention."""
        rows = F.pad(found, (0, 0, self.taps - 1, 0)).mT[:, :, None]
        weight = self.convolutions.get_parameter(f"{name}.weight")[:, :, None]
        return F.conv2d(rows, weight, groups=self.embed_dim)[:, :, 0].mT


class Centred(Convolved):
    """Convolutions over as many tokens behind as before; only the last position may ask."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for filters in self.convolutions.parameters():
            filters.data = filters.roll(-(self.taps // 2), -1)  # the identity is in the middle

    def changed(self, name: str, x: Tensor, found: Tensor) -> Tensor:
        """As in the base class, half of the taps later."""
        half = self.taps // 2
        return super().changed(name, x, F.pad(found, (0, 0, 0, half)))[:, half:]


class Scanned(Rival):
    r"""Keys (``k``), or keys and values (``kv``), that each pass a scan with one gate per head.

    k_j <- g_j k_{j-1} + (1 - g_j) k_j,   g_j = σ(w·x_j + b),   as of a minGRU with a scalar gate.

    With two directions the scan from the right has its own gate, and a key is the mean of both.  That scan sees later
    tokens, so that only the last positions may ask.  It is for whole sequences, not for decoding.

    Args:
        layer: The layer, of H heads.
        over: ``k`` or ``kv``.
        directions: 1 from the left, 2 from both sides.
        start: g at first, in (0, 1): b = logit(start) and w = 0.

    Attributes:
        gate_weight: w, [len(over) · directions · H, embed_dim].  Give it and b a rate of 1e-2 and no weight decay; they
            are plain parameters, which no ``reset_parameters`` of linear layers touches.
        gate_bias: b, [len(over) · directions · H].
    """

    def __init__(
        self, layer: BoltzmannAttention | ChainAttention, over: str = "k", directions: int = 1, start: float = 0.5
    ) -> None:  # fmt: skip
        super().__init__(layer, over)
        self.over, self.directions = over, directions
        rows = len(over) * directions * self.num_heads
        self.gate_weight = nn.Parameter(torch.zeros(rows, self.embed_dim))
        self.gate_bias = nn.Parameter(torch.full((rows,), math.log(start / (1 - start))))

    def changed(self, name: str, x: Tensor, found: Tensor) -> Tensor:
        """Scan the heads of the features."""
        shape, at = (len(self.over), self.directions, self.num_heads), self.over.index(name)
        weight, bias = self.gate_weight.unflatten(0, shape)[at], self.gate_bias.view(shape)[at]
        gates = F.linear(x, weight.flatten(0, 1), bias.flatten()).mT.unflatten(
            1, shape[1:]
        )  # [B, directions, H, L]
        features = split_heads(found, self.num_heads)  # [B, H, L, d]
        mixed = scan(features, gates[:, 0])
        if self.directions == 2:
            mixed = (mixed + scan(features.flip(2), gates[:, 1].flip(2)).flip(2)) / 2
        return merged_heads(mixed)


def scan(tokens: Tensor, logits: Tensor) -> Tensor:
    """y_j = g_j y_{j-1} + (1 - g_j) x_j with g = σ(logits) and y_{-1} = 0: [*, L, d] of x [*, L, d] and logits [*, L].

    Chunks of 32 tokens are matrices of exp(Σ log g) (1 - g), whose exponents are sums of both signs in double
    precision and never positive; a chunk then adds what the one before it ends with.
    """
    length = tokens.shape[-2]
    padding = -length % CHUNK
    x = F.pad(tokens, (0, 0, 0, padding)).unflatten(-2, (-1, CHUNK))  # [*, N, C, d]
    z = F.pad(logits, (0, padding)).unflatten(-1, (-1, CHUNK))  # [*, N, C]
    total = F.logsigmoid(z.double()).cumsum(-1)
    future = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=x.device).triu(1)
    exponent = (total[..., None] - total[..., None, :]).masked_fill(future, -torch.inf).to(x.dtype)
    inside = (exponent.exp() * (-z).sigmoid()[..., None, :]) @ x
    kept = total.exp().to(x.dtype)[..., None]
    parts: list[Tensor] = []
    for chunk, factor in zip(inside.unbind(-3), kept.unbind(-3), strict=True):
        parts.append(chunk + factor * parts[-1][..., -1:, :] if parts else chunk)
    return torch.cat(parts, -2)[..., :length, :]


RIVALS: dict[str, type[Rival]] = {"convolved": Convolved, "centred": Centred, "scanned": Scanned}


def add_rival(model: Transformer, rival: str, arguments: Sequence[Any]) -> None:
    """Put a rival, or none, into the attention of every block, which is drawn again before it."""
    options, window = model.options, model.options.attention_window_of(model.window)
    for block in model.all_blocks():
        layer = block.attention = options.attention(window, block.attention.sampler)
        if rival in RIVALS:
            RIVALS[rival](layer, *arguments)


def rival_of(options: Row) -> tuple[str, Sequence[Any]]:
    """Name and arguments of a rival, which leave the options; plain softmax if there is none."""
    return next(((name, options.pop(name)) for name in RIVALS if name in options), ("softmax", ()))


def reset(model: nn.Module) -> None:
    """Draw weights as torch does."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.reset_parameters()


def built(options: Row, symbols: int, classes: int, context: int, seed: int) -> Transformer:
    """A model of width 64 without positions, unless the options say otherwise, with torch's own initial weights.

    Options are those of a Transformer, and ``convolved``, ``centred`` or ``scanned`` with the arguments of the rival.
    """
    options = {"positions": "none", **options}
    rival, arguments = rival_of(options)
    torch.manual_seed(seed)
    made = TransformerOptions(embed_dim=64, ffn_dim=128, dropout=0.0, **options)
    model = Transformer(made, symbols, classes, context, "banded" if made.couplings else "exact")
    if arguments or (made.mode == "softmax" and not made.offset_bias):
        add_rival(model, rival, arguments)
    if made.offset_bias:  # of the first layer
        model.all_blocks()[0].attention.couplings.get_parameter("offset_bias").data[:, -2] = 4.0
    reset(model)
    return model
