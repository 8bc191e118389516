"""Rivals of couplings: softmax over queries, keys and values that a convolution or a gated scan has mixed before.

They are the strongest that a reader would name (docs/chains.md, docs/recall.md), and use torch's own attention.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diabat.attention import BoltzmannAttention
from diabat.attention.head_axis import merged_heads, split_heads
from diabat.attention.rotary import rotated

CHUNK = 32

TAPS: dict[str, tuple[float, float] | None] = {
    "torch": None,
    "identity": (0.0, 1.0),
    "shift": (1.0, 0.0),
    "both": (1.0, 1.0),
}
"""Where the last two taps of a convolution begin, with N(0, .1²) on all; None draws what torch draws."""


class Softmax(BoltzmannAttention):
    """Causal ``scaled_dot_product_attention`` with the projections of our layer; with other modes our layer itself."""

    def __init__(self, embed_dim: int, num_heads: int, window: int | None, **options: Any) -> None:
        super().__init__(embed_dim, num_heads, window, **{"mode": "softmax", "rotary": True, **options})

    def _mixed(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [B, L, D], before rotary positions."""
        return self.query(x), self.key(x), self.value(x)

    def _projected(self, x: Tensor, first: Tensor | int = 0) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self._mixed(x)
        if self.rotary:
            q, k = (merged_heads(rotated(split_heads(tokens, self.num_heads), first)) for tokens in (q, k))
        return q, k, v

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
        self,
        embed_dim: int,
        num_heads: int,
        window: int | None,
        convolved: str,
        taps: int = 3,
        start: str = "torch",
        **options: Any,
    ) -> None:
        super().__init__(embed_dim, num_heads, window, **options)
        self.taps, self.convolutions = taps, nn.ModuleDict()
        for name in convolved:
            filters = self.convolutions[name] = nn.Conv1d(
                embed_dim, embed_dim, taps, groups=embed_dim, bias=False
            )
            begin = TAPS[start]
            if begin is not None:
                nn.init.normal_(filters.weight, std=0.1)
                filters.weight.data[..., -2:] += torch.tensor(begin)

    def _mixed(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (
            self._convolved(name, tokens) if name in self.convolutions else tokens
            for name, tokens in zip("qkv", super()._mixed(x), strict=True)
        )
        return q, k, v

    def _convolved(self, name: str, tokens: Tensor) -> Tensor:
        """Features side by side: twice as fast as ``Conv1d`` on a processor, and without copies before attention."""
        rows = F.pad(tokens, (0, 0, self.taps - 1, 0)).mT[:, :, None]
        weight = self.convolutions.get_parameter(f"{name}.weight")[:, :, None]
        return F.conv2d(rows, weight, groups=self.embed_dim)[:, :, 0].mT


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
        self,
        embed_dim: int,
        num_heads: int,
        window: int | None,
        over: str = "k",
        directions: int = 1,
        start: float = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(embed_dim, num_heads, window, **options)
        self.over, self.directions = over, directions
        rows = len(over) * directions * num_heads
        self.gate_weight = nn.Parameter(torch.zeros(rows, embed_dim))
        self.gate_bias = nn.Parameter(torch.full((rows,), math.log(start / (1 - start))))

    def _mixed(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tokens = dict(zip("qkv", super()._mixed(x), strict=True))
        logits = F.linear(x, self.gate_weight, self.gate_bias).mT  # [B, over · directions · H, L]
        logits = logits.unflatten(1, (len(self.over), self.directions, self.num_heads))
        for at, name in enumerate(self.over):
            features = split_heads(tokens[name], self.num_heads)  # [B, H, L, d]
            found = scan(features, logits[:, at, 0])
            if self.directions == 2:
                found = (found + scan(features.flip(2), logits[:, at, 1].flip(2)).flip(2)) / 2
            tokens[name] = merged_heads(found)
        return tokens["q"], tokens["k"], tokens["v"]


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
