"""From the states of tokens to one vector: the mean, or attention of a learned query."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from diabat.attention.multihead import BoltzmannMultiheadAttention


class MeanPooling(nn.Module):
    """Mean of the states [B, T, D] of the tokens that are not padding, bool [B, T], as [B, D]."""

    def forward(self, x: Tensor, key_padding_mask: Tensor) -> Tensor:
        """Pool."""
        return (self.weights(x, key_padding_mask)[:, 0, None] @ x)[:, 0]

    def weights(self, x: Tensor, key_padding_mask: Tensor) -> Tensor:
        """1/n at every token, [B, 1, T]."""
        seen = (~key_padding_mask).to(x.dtype)
        return (seen / seen.sum(-1, keepdim=True))[:, None]


class QueryPooling(nn.Module):
    r"""Attention with one learned query over the tokens: softmax, or Boltzmann with J between positions.

    P(s) ∝ exp( Σ_i h_i s_i + Σ_{i<j} J_ij s_i s_j ), h_i = q · k_i / sqrt(d), and weights alpha_i / Σ_j alpha_j with
    alpha_i = P(s_i = +1), for each head.

    Args:
        embed_dim: D, divisible by ``num_heads``.
        num_heads: H.
        window: Largest number of tokens T.
        options: Others of :class:`diabat.BoltzmannMultiheadAttention`, such as ``mode`` and ``sampler``.
    """

    def __init__(self, embed_dim: int, num_heads: int, window: int, **options: Any) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 1, embed_dim))
        self.attention = BoltzmannMultiheadAttention(
            embed_dim, num_heads, batch_first=True, window=window, **options
        )

    def forward(self, x: Tensor, key_padding_mask: Tensor) -> Tensor:
        """Pool states [B, T, D] without padding, bool [B, T], to [B, D]."""
        return self._attended(x, key_padding_mask, need_weights=False)[0][:, 0]

    def weights(self, x: Tensor, key_padding_mask: Tensor) -> Tensor:
        """Normalised weights of each head, [B, H, T]."""
        weights = self._attended(x, key_padding_mask, need_weights=True)[1]
        assert weights is not None
        return weights[:, :, 0]

    def _attended(self, x: Tensor, padding: Tensor, *, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        query, how = self.query.expand(len(x), -1, -1).to(x), {"need_weights": need_weights}
        found: tuple[Tensor, Tensor | None] = self.attention(
            query, x, x, padding, average_attn_weights=False, **how
        )
        return found
