"""Poolings: token states [B, T, D] to one vector [B, D] per text, without looking at padding."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from diabat.checks import ArgumentError, check_count


class MeanPooling(nn.Module):
    """Mean of the token states; it has no parameters."""

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Map [B, T, D] to [B, D]; the mask is bool [B, T], True at positions that do not count."""
        return mix(self.weights(x, key_padding_mask)[:, 0], x)

    def weights(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Weights of the positions, [B, 1, T], which sum to 1."""
        seen = visible_positions(x, key_padding_mask).to(x.dtype)
        return (seen / seen.sum(-1, keepdim=True))[:, None]


class ProjectedMeanPooling(nn.Module):
    r"""Mean pooling between the two projections of NeuroGame attention: z = W_O (1/n) Σ_i W_v x_i, without bias.

    A control: what the projections do without a game.

    Args:
        embed_dim: D.
        value_std: Standard deviation of the entries of W_v at the start.
    """

    def __init__(self, embed_dim: int, value_std: float) -> None:
        super().__init__()
        self.mean = MeanPooling()
        self.value = nn.Linear(embed_dim, embed_dim, bias=False)
        self.output_projection = nn.Linear(embed_dim, embed_dim, bias=False)
        nn.init.normal_(self.value.weight, std=value_std)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Map [B, T, D] to [B, D]; the mask is bool [B, T], True at positions that do not count."""
        pooled: Tensor = self.output_projection(self.value(self.mean(x, key_padding_mask)))
        return pooled

    def weights(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Weights of the positions, [B, 1, T], which sum to 1."""
        return self.mean.weights(x, key_padding_mask)


class SoftmaxPooling(nn.Module):
    r"""Attention pooling with a learned query per head.

    z = W_O concat_h Σ_i softmax_i(q_h · k_hi / sqrt(d)) v_hi, with k = W_K x, v = W_V x and d = D/H.

    Args:
        embed_dim: D, divisible by ``num_heads``.
        num_heads: H.
    """

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.heads = QueryHeads(embed_dim, num_heads)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Map [B, T, D] to [B, D]; the mask is bool [B, T], True at positions that do not count."""
        return self.heads.combine(self.weights(x, key_padding_mask), x)

    def weights(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Weights of the positions, [B, H, T], which sum to 1."""
        scores = self.heads.scores(x)
        hidden = ~visible_positions(x, key_padding_mask)[:, None]
        return scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(hidden, 0)


class QueryHeads(nn.Module):
    """Keys, values, output projection and one learned query per head."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        for name, value in (("embed_dim", embed_dim), ("num_heads", num_heads)):
            check_count(name, value)
        if embed_dim % num_heads:
            raise ArgumentError(
                "num_heads", f"expected a divisor of embed_dim = {embed_dim}, got {num_heads}."
            )
        self.num_heads = num_heads
        self.query = nn.Parameter(torch.randn(num_heads, embed_dim // num_heads))
        self.key = nn.Linear(embed_dim, embed_dim)
        self.value = nn.Linear(embed_dim, embed_dim)
        self.output = nn.Linear(embed_dim, embed_dim)

    def scores(self, x: Tensor) -> Tensor:
        """q_h · k_hi / sqrt(d), [B, H, T]."""
        keys = self._split(self.key(x))  # [B, H, T, d]
        return torch.einsum("hd,bhtd->bht", self.query, keys) / math.sqrt(keys.shape[-1])

    def combine(self, weights: Tensor, x: Tensor) -> Tensor:
        """Mix the values by weights [B, H, T] and project, [B, D]."""
        out: Tensor = self.output(mix(weights, self._split(self.value(x))).flatten(1))
        return out

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


def mix(weights: Tensor, values: Tensor) -> Tensor:
    """Σ_t weights_t values_t: [..., T] and [..., T, d] to [..., d]."""
    return (weights[..., None, :] @ values)[..., 0, :]


def visible_positions(x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """Positions that count, bool [B, T].

    Raises:
        ValueError: If the shapes are wrong, or a row has no position that counts.
    """
    if x.ndim != 3 or 0 in x.shape:
        raise ArgumentError("x", f"expected shape [B, T, D] without empty dimension, got {list(x.shape)}.")
    if key_padding_mask is None:
        return x.new_ones(x.shape[:2], dtype=torch.bool)
    if key_padding_mask.dtype != torch.bool or key_padding_mask.shape != x.shape[:2]:
        raise ArgumentError(
            "key_padding_mask",
            f"expected bool {list(x.shape[:2])}, "
            f"got {key_padding_mask.dtype} {list(key_padding_mask.shape)}.",
        )
    empty = key_padding_mask.all(1)
    if bool(empty.any()):
        raise ArgumentError(
            "key_padding_mask",
            f"expected a position that counts in every row, got none in row {int(empty.nonzero()[0])}.",
        )
    return ~key_padding_mask
