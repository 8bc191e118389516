"""Explanation of one output of NeuroGame attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diabat.attention.games import Estimate


@dataclass(frozen=True, eq=False)
class NeuroGameExplanation:
    """Quantities behind one output of the layer; entries of padding are 0.

    Attributes:
        alpha: α_i = P(s_i = +1), [B, H, T].
        expected_active: Σ_i α_i, the expected number of active tokens, [B, H].
        fields: J_i, before the division by γ, [B, H, T].
        interactions: J_ij, before the division by γ, [B, H, T, T].  Fields or interactions that the mode of the layer
            omits are zero.
        shapley: φ_i before normalisation, [B, H, T], with standard errors and effective numbers of samples.
        banzhaf: β_i, likewise.
        pairs: The estimate of the interactions, [B, H, T, T].
        gate: λ_i, [B, H, T].
        temperature: γ of each head, [H].
        residual: max_i |P_i - σ(2 (J_i + Σ_j J_ij m_j)/γ)|, m = 2P - 1, [B, H]: how far α is from the naive mean-field
            equations.  For ``mean_field`` it measures convergence; exact marginals do not satisfy these equations.
        info: ``info`` of the sampler for the whole batch (for ``mean_field``: ``converged``, ``iterations``).
        num_coalitions: K.
        seed: Seed of coalitions and reads; passing it to the layer repeats the result.
    """

    alpha: Tensor
    expected_active: Tensor
    fields: Tensor
    interactions: Tensor
    shapley: Estimate
    banzhaf: Estimate
    pairs: Estimate
    gate: Tensor
    temperature: Tensor
    residual: Tensor
    info: Mapping[str, Any]
    num_coalitions: int
    seed: int


def mean_field_residual(h: Tensor, J: Tensor, alpha: Tensor, visible: Tensor) -> Tensor:
    """max_i |α_i - σ(2 (h_i + Σ_j J_ij m_j))| with m = 2α - 1 over the visible spins, detached, [*batch]."""
    h, J, alpha = h.detach(), J.detach(), alpha.detach()
    m = torch.where(visible, 2 * alpha - 1, 0)
    update = torch.sigmoid(2 * (h + (J @ m[..., None])[..., 0]))
    return torch.where(visible, (update - alpha).abs(), 0).amax(-1)
