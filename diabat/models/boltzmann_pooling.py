r"""Boltzmann attention pooling: fields from a learned query, free couplings between positions.

For each head, P(s) ∝ exp( Σ_i h_i s_i + Σ_{i<j} J_ij s_i s_j ) over the positions that count, h_i = q · k_i / sqrt(d),
and weights alpha_i / Σ_j alpha_j with alpha_i = P(s_i = +1).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from diabat.attention.coupled_heads import normalised_weights
from diabat.attention.layer import IsingLayer
from diabat.checks import ArgumentError, check_count
from diabat.ising import pack_couplings
from diabat.models.pooling import QueryHeads, visible_positions
from diabat.samplers.banded import BandedSampler
from diabat.samplers.base import Sampler, UnsupportedError


class BoltzmannPooling(IsingLayer):
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
        schedule_angles: Learnable angles of the sampler's anneal, if it has some.

    Raises:
        ValueError: If a size is invalid.
        UnsupportedError: If the sampler does not support the window or the estimator.
    """

    mode = "h+J"

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
        self.window = window
        self.use_sampler(sampler, gradient=gradient, num_reads=num_reads)
        self.coupling_pairs = nn.Parameter(torch.zeros(num_heads, window * (window - 1) // 2))
        self._recorded: tuple[Tensor, Tensor | None] | None = None

    def _fitted(self, sampler: Sampler) -> Sampler:
        if isinstance(sampler, BandedSampler):  # every pair is a parameter: refused here where it is too wide
            sampler = sampler.for_window(self.window, self.window - 1)
        limit = sampler.capabilities.max_spins
        if limit is not None and self.window > limit:
            raise UnsupportedError(
                "window", f"sampler '{sampler.name}' accepts at most {limit} spins, got {self.window}."
            )
        return sampler

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Map [B, T, D] to [B, D]; the mask is bool [B, T], True at positions that do not count."""
        return self.heads.combine(self.weights(x, key_padding_mask), x)

    def weights(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Weights of the positions, [B, H, T], which sum to 1."""
        visible = visible_positions(x, key_padding_mask)[:, None]  # [B, 1, T]
        return normalised_weights(self.probabilities(x, key_padding_mask), visible)

    def probabilities(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """alpha_i = P(s_i = +1), [B, H, T]."""
        visible = visible_positions(x, key_padding_mask)[:, None]
        if x.shape[1] > self.window:
            raise ArgumentError("x", f"expected at most window = {self.window} positions, got {x.shape[1]}.")
        fields, J = self.heads.scores(x), self.couplings(x.shape[1])
        self._recorded = (fields.detach(), J.detach())
        return self._probabilities(fields, J, visible)

    def couplings(self, length: int | None = None) -> Tensor:
        """Symmetric J over the first ``length`` positions, [H, T, T]."""
        T = self.window if length is None else length
        return pack_couplings(self.coupling_pairs, self.window)[:, :T, :T]

    def last_fields_and_couplings(self) -> tuple[Tensor, Tensor | None]:
        """Fields [B, H, T] and J [H, T, T] of the last forward pass, detached.

        Raises:
            RuntimeError: Before the first forward pass.
        """
        if self._recorded is None:
            raise RuntimeError(
                "no Boltzmann forward pass has been made yet; call the layer on an input first."
            )
        return self._recorded

    def extra_repr(self) -> str:
        """Show what the parameters do not."""
        return (
            f"num_heads={self.heads.num_heads}, window={self.window}, mode={self.mode!r}, "
            f"sampler={self.sampler!r}, gradient={self.gradient!r}"
        )
