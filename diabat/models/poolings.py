"""Poolings of token states without an Ising model: the rivals and the control of the others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from diabat.attention.layer import visible_positions
from diabat.attention.pooling import QueryHeads, mix


class MeanPooling(nn.Module):
    """Mean of the token states; it has no parameters."""

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Map [B, T, D] to [B, D]; the mask is bool [B, T], True at padding."""
        return mix(self.weights(x, key_padding_mask)[:, 0], x)

    def weights(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Weights of the positions, [B, 1, T], which sum to 1."""
        visible = visible_positions(x, key_padding_mask).to(x.dtype)
        return (visible / visible.sum(-1, keepdim=True))[:, None]


class ProjectedMeanPooling(MeanPooling):
    r"""Mean pooling between the two projections of NeuroGame attention: z = W_O (1/n) Σ_i W_v x_i, without bias.

    A control: the effect of the projections without a game.

    Args:
        embed_dim: D.
        value_std: Standard deviation of the entries of W_v at the start.
    """

    def __init__(self, embed_dim: int, value_std: float) -> None:
        super().__init__()
        self.value = nn.Linear(embed_dim, embed_dim, bias=False)
        self.output_projection = nn.Linear(embed_dim, embed_dim, bias=False)
        nn.init.normal_(self.value.weight, std=value_std)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Map [B, T, D] to [B, D]; the mask is bool [B, T], True at padding."""
        pooled: Tensor = self.output_projection(self.value(super().forward(x, key_padding_mask)))
        return pooled


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
        """Map [B, T, D] to [B, D]; the mask is bool [B, T], True at padding."""
        return self.heads.combine(self.weights(x, key_padding_mask), x)

    def weights(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Weights of the positions, [B, H, T], which sum to 1."""
        scores = self.heads.scores(x)
        mask = ~visible_positions(x, key_padding_mask)[:, None]
        return scores.masked_fill(mask, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(mask, 0)
