r"""Boltzmann attention: an Ising model over key positions in place of softmax (arXiv:2606.12478, §3).

For query i, P_i(s) ∝ exp( Σ_j h_ij s_j + Σ_{j<k} J_jk s_j s_k + Σ_{j<k<l} K_jkl s_j s_k s_l ) over the visible
positions, with h_ij = q_i·k_j / sqrt(d_k), and attention weights alpha_ij / Σ_k alpha_ik, alpha_ij = P_i(s_j = +1).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from diabat.attention.coupled_heads import CoupledHeads, check_sizes
from diabat.attention.inputs import check_sequences
from diabat.checks import check_flag
from diabat.samplers.base import Sampler


class BoltzmannAttention(CoupledHeads):
    """Multi-head self-attention over windows of up to ``window`` positions.

    Couplings J (and K) are free parameters of each head over absolute positions, initialised to zero, so that
    training starts from sigmoid attention (mode ``h+J``).  Batch first, as ``x [B, T, D]``.  Under autocast, and with
    weights of half precision, fields and marginals are computed in float32.

    Args:
        embed_dim: D, divisible by ``num_heads``.
        num_heads: H.
        window: Largest T.
        sampler: Backend of the marginals, or its name.  Unused in mode ``softmax``.
        mode: Terms of the exponent: softmax, h+J, h, J, h+K, J+K, h+J+K or K.
        gradient: Estimator, see :func:`diabat.spin_probabilities`.
        causal: Position i attends to j <= i.
        dropout: Dropout of the normalised attention weights.
        bias: Bias of the projections.
        num_reads: Reads per query for sampling backends.
        bandwidth: w; J_jk is a parameter for |j - k| <= w and 0 beyond.  None makes every pair a parameter.  The
            ``banded`` backend needs it at long windows, and takes it from here if it has none of its own.

    Attributes:
        coupling_pairs: J_jk for j < k, [H, window(window-1)/2], in modes with J; with a bandwidth the pairs with
            k - j <= w, [H, Σ_{d=1..w} (window-d)], in the same row-major order.
        coupling_triples: K_jkl for j < k < l, [H, window(window-1)(window-2)/6], in modes with K.
        sampler: The backend, whose parameters (the learnable angles of an anneal) are those of the layer.

    Raises:
        ValueError: If a size or the mode is invalid.
        UnsupportedError: If the sampler does not support the mode, the window or the estimator.
    """

    _causal_mask: Tensor

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        window: int,
        *,
        sampler: Sampler | str = "exact",
        mode: str = "h+J",
        gradient: str = "auto",
        causal: bool = True,
        dropout: float = 0.0,
        bias: bool = True,
        num_reads: int | None = None,
        bandwidth: int | None = None,
    ) -> None:
        super().__init__()
        check_sizes(embed_dim, num_heads, window, mode, bandwidth)
        check_flag("causal", causal)
        self.embed_dim, self.causal = embed_dim, causal
        self.query = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.key = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.value = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.output = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self._build_terms(
            num_heads,
            window,
            sampler=sampler,
            mode=mode,
            gradient=gradient,
            num_reads=num_reads,
            bandwidth=bandwidth,
        )
        self.register_buffer(
            "_causal_mask", torch.ones(window, window, dtype=torch.bool).tril(), persistent=False
        )

    def forward(
        self, x: Tensor, key_padding_mask: Tensor | None = None, need_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend.

        Args:
            x: [B, T, D], T <= window.
            key_padding_mask: bool [B, T], True where a key is padding (as in torch.nn.MultiheadAttention).
            need_weights: Also return the normalised weights [B, H, T, T].

        Returns:
            [B, T, D], or that and the weights.  A query without a visible key gets weight 0 everywhere.

        Raises:
            ValueError: If a shape or dtype is wrong or T exceeds the window.
        """
        check_sequences(x, self.query.weight, self.embed_dim, key_padding_mask, self.window)
        batch, length, _ = x.shape
        by_head = (batch, length, self.num_heads, -1)
        q = self.query(x).view(by_head).transpose(1, 2)
        k = self.key(x).view(by_head).transpose(1, 2)
        v = self.value(x).view(by_head).transpose(1, 2)
        visible = self._visible(length, key_padding_mask, x.device)  # [T, T] or [B, 1, T, T]
        weights = self._weights(q, k, visible).to(v.dtype)
        mixed = (self.dropout(weights) @ v).transpose(1, 2).reshape(batch, length, self.embed_dim)
        out: Tensor = self.output(mixed)
        return (out, weights) if need_weights else out

    def _visible(self, length: int, padding: Tensor | None, device: torch.device) -> Tensor:
        mask = self._causal_mask[:length, :length]
        if not self.causal:
            mask = torch.ones(length, length, dtype=torch.bool, device=device)
        return mask if padding is None else mask & ~padding[:, None, None, :]

    def extra_repr(self) -> str:
        """Show what the parameters do not."""
        return f"{super().extra_repr()}, causal={self.causal}"
