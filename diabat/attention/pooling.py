r"""Boltzmann attention pooling: fields from a learned query, free couplings between positions.

For each head, P(s) ∝ exp( Σ_i h_i s_i + Σ_{i<j} J_ij s_i s_j ) over the visible positions, h_i = q · k_i / sqrt(d),
and weights alpha_i / Σ_j alpha_j with alpha_i = P(s_i = +1).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from diabat.attention.coupled import Backend, CoupledHeads, problem_of
from diabat.attention.coupling_layout import CouplingLayout
from diabat.attention.head_axis import split_heads
from diabat.attention.layer import visible_positions
from diabat.attention.weights import normalised_weights
from diabat.checks import ArgumentError, check_count
from diabat.ising import without_autocast
from diabat.samplers.base import Sampler


class BoltzmannPooling(CoupledHeads):
    """Attention pooling with Boltzmann marginals instead of a softmax.

    Couplings are free parameters of each head over absolute positions, as in
    :class:`diabat.BoltzmannAttention`; they start at zero.

    Args:
        embed_dim: D, divisible by ``num_heads``.
        num_heads: H.
        window: Largest T.
        sampler: Backend of the marginals, or its name.
        gradient: Estimator, see :func:`diabat.spin_probabilities`.
        num_reads: Reads per text for sampling backends.

    Attributes:
        coupling_pairs: J_ij for i < j, [H, window(window-1)/2].
        sampler: The backend, a submodule: its parameters (the learnable angles of an anneal) train with the layer.

    Raises:
        ValueError: If a size is invalid.
        UnsupportedError: If the sampler does not support the window or the estimator.
    """

    coupling_pairs: nn.Parameter

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        window: int,
        *,
        sampler: Sampler | str = "mean_field",
        gradient: str = "auto",
        num_reads: int | None = None,
    ) -> None:
        super().__init__()
        check_count("window", window)
        self.heads = QueryHeads(embed_dim, num_heads)
        self._build_terms(num_heads, CouplingLayout(window), Backend(sampler, gradient, num_reads))

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Map [B, T, D] to [B, D]; the mask is bool [B, T], True at padding."""
        return self.heads.combine(self.weights(x, key_padding_mask), x)

    def weights(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Weights of the positions, [B, H, T], which sum to 1."""
        visible = visible_positions(x, key_padding_mask)[:, None]  # [B, 1, T]
        return normalised_weights(self.probabilities(x, key_padding_mask), visible)

    def probabilities(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """alpha_i = P(s_i = +1), [B, H, T]."""
        visible = visible_positions(x, key_padding_mask)[:, None]
        if x.shape[1] > self.layout.window:
            raise ArgumentError(
                "x", f"expected at most window = {self.layout.window} positions, got {x.shape[1]}."
            )
        fields = self.heads.scores(x)
        # Samplers compute in float32 or float64.
        fields = fields.to(torch.promote_types(fields.dtype, torch.float32))
        with without_autocast(x):
            J = self.couplings(x.shape[1]).to(fields)
            self._record(problem_of, fields, J)
            return self._bridge(fields, J, visible, seed=self._fixed_seed)

    def couplings(self, length: int | None = None) -> Tensor:
        """Symmetric J over the first ``length`` positions, [H, T, T]."""
        J = super().couplings(length)
        assert J is not None
        return J[:, 0]


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
        keys = split_heads(self.key(x), self.num_heads)  # [B, H, T, d]
        return torch.einsum("hd,bhtd->bht", self.query, keys) / math.sqrt(keys.shape[-1])

    def combine(self, weights: Tensor, x: Tensor) -> Tensor:
        """Mix the values by weights [B, H, T] and project, [B, D]."""
        values = split_heads(self.value(x), self.num_heads)
        out: Tensor = self.output(mix(weights.to(values.dtype), values).flatten(1))
        return out


def mix(weights: Tensor, values: Tensor) -> Tensor:
    """Σ_t weights_t values_t: [..., T] and [..., T, d] to [..., d]."""
    return (weights[..., None, :] @ values)[..., 0, :]
