"""Rivals of couplings: softmax over queries, keys and values that a convolution or a gated scan has mixed before.

They are the strongest that a reader would name (docs/chains.md, docs/recall.md), and use torch's own attention.
:func:`built` makes the models of the studies of chains and segments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diabat.attention import BoltzmannAttention
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


class Softmax(BoltzmannAttention):
    """Causal ``scaled_dot_product_attention`` with the projections of our layer; with other modes our layer itself.

    A rival changes what the projections ``query``, ``key`` and ``value`` give, before rotary positions.
    """

    def __init__(self, embed_dim: int, num_heads: int, window: int | None, **options: Any) -> None:
        super().__init__(embed_dim, num_heads, window, **{"mode": "softmax", "rotary": True, **options})

    def _change(self, names: str, rival: Callable[[str, Tensor, Tensor], Tensor]) -> None:
        """Let ``rival(name, x, found)`` replace what the projections named q, k or v find in tokens x."""
        for name, layer in (("q", self.query), ("k", self.key), ("v", self.value)):
            if name in names:
                layer.register_forward_hook(lambda _, x, found, name=name: rival(name, x[0], found))

    def _of_heads(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        band: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if self.mode != "softmax" or key_mask is not None or need_weights:
            return super()._of_heads(q, k, v, key_mask, band, need_weights)
        out: Tensor = self.output(merged_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
        return out, None


class Convolved(Softmax):
    """Attention with causal depthwise convolutions over keys (``k``), or over queries, keys and values (``qkv``)."""

    def __init__(
        self, embed_dim: int, num_heads: int, window: int | None, convolved: str, taps: int = 3,
        start: str = "torch", **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(embed_dim, num_heads, window, **options)
        self.taps, self.convolutions, begin = taps, nn.ModuleDict(), TAPS[start]
        for name in convolved:
            filters = nn.Conv1d(embed_dim, embed_dim, taps, groups=embed_dim, bias=False)
            self.convolutions[name] = filters
            if begin is not None:
                nn.init.normal_(filters.weight, std=0.1)
                filters.weight.data[..., -2:] += torch.tensor(begin)
        self._change(convolved, self._convolved)

    def _convolved(self, name: str, _: Tensor, tokens: Tensor) -> Tensor:
        """Features side by side: twice as fast as ``Conv1d`` on a processor, and without copies before attention."""
        rows = F.pad(tokens, (0, 0, self.taps - 1, 0)).mT[:, :, None]
        weight = self.convolutions.get_parameter(f"{name}.weight")[:, :, None]
        return F.conv2d(rows, weight, groups=self.embed_dim)[:, :, 0].mT


class Centred(Convolved):
    """Convolutions over as many tokens behind as before; only the last position may ask."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for filters in self.convolutions.parameters():
            filters.data = filters.roll(-(self.taps // 2), -1)  # the identity is in the middle

    def _convolved(self, name: str, x: Tensor, tokens: Tensor) -> Tensor:
        half = self.taps // 2
        return super()._convolved(name, x, F.pad(tokens, (0, 0, 0, half)))[:, half:]


class Scanned(Softmax):
    r"""Attention over keys (``k``), or keys and values (``kv``), that each pass a scan with one gate per head.

    k_j <- g_j k_{j-1} + (1 - g_j) k_j,   g_j = σ(w·x_j + b),   as of a minGRU with a scalar gate.

    With two directions the scan from the right has its own gate, and a key is the mean of both.  That scan sees later
    tokens, so that only the last positions may ask.  It is for whole sequences, not for decoding.

        block.attention = Scanned(64, 1, context, "kv", start=0.9)

    Args:
        embed_dim: Features of a token.
        num_heads: H.
        window: The longest sequence; None with chains, whose options follow.
        over: ``k`` or ``kv``.
        directions: 1 from the left, 2 from both sides.
        start: g at first, in (0, 1): b = logit(start) and w = 0.
        options: Those of :class:`diabat.BoltzmannAttention`; softmax with rotary positions unless they say otherwise.

    Attributes:
        gate_weight: w, [len(over) · directions · H, embed_dim].  Give it and b a rate of 1e-2 and no weight decay; they
            are plain parameters, which no ``reset_parameters`` of linear layers touches.
        gate_bias: b, [len(over) · directions · H].
    """

    def __init__(
        self, embed_dim: int, num_heads: int, window: int | None, over: str = "k", directions: int = 1,
        start: float = 0.5, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(embed_dim, num_heads, window, **options)
        self.over, self.directions = over, directions
        rows = len(over) * directions * num_heads
        self.gate_weight = nn.Parameter(torch.zeros(rows, embed_dim))
        self.gate_bias = nn.Parameter(torch.full((rows,), math.log(start / (1 - start))))
        self._change(over, self._scanned)

    def _scanned(self, name: str, x: Tensor, tokens: Tensor) -> Tensor:
        shape, at = (len(self.over), self.directions, self.num_heads), self.over.index(name)
        weight, bias = self.gate_weight.unflatten(0, shape)[at], self.gate_bias.view(shape)[at]
        gates = F.linear(x, weight.flatten(0, 1), bias.flatten()).mT.unflatten(
            1, shape[1:]
        )  # [B, directions, H, L]
        features = split_heads(tokens, self.num_heads)  # [B, H, L, d]
        found = scan(features, gates[:, 0])
        if self.directions == 2:
            found = (found + scan(features.flip(2), gates[:, 1].flip(2)).flip(2)) / 2
        return merged_heads(found)


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


RIVALS: dict[str, type[Softmax]] = {"convolved": Convolved, "centred": Centred, "scanned": Scanned}


def replace_attention(
    model: Transformer, rival: str, arguments: Sequence[Any], context: int, **options: Any
) -> None:
    """Put a rival in every block, or plain softmax; ``options`` are those of :class:`diabat.BoltzmannAttention`."""
    for block in model.all_blocks():
        plain = block.attention
        window = None if plain.window is None else context
        sizes = plain.embed_dim, plain.num_heads, window
        block.attention = RIVALS.get(rival, Softmax)(*sizes, *arguments, rotary=plain.rotary, **options)


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
        chain = {name: options[name] for name in ("relative", "couplings", "coupling_init") if made.couplings}
        replace_attention(model, rival, arguments, context, **chain, **({"mode": "h+J"} if chain else {}))
    if made.offset_bias:  # of the first layer
        model.all_blocks()[0].attention.get_parameter("offset_bias").data[:, -2] = 4.0
    reset(model)
    return model
