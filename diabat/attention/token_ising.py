"""The token Ising model of NeuroGame attention in this package's convention."""

from __future__ import annotations

import torch
from torch import Tensor

from diabat.attention.games.estimate import Temperature


def token_ising(fields: Tensor, interactions: Tensor, temperature: Temperature) -> tuple[Tensor, Tensor]:
    r"""Fields h and couplings J of P(s) ∝ exp(Σ h s + Σ_{j<k} J s s) for the paper's Hamiltonian.

    Eq. 10 and 12: P(S) ∝ exp(-H(S)/γ), H(S) = -Σ J_i s_i - Σ_{i<j} J_ij s_i s_j, s_i = ±1.  Hence h_i = J_i/γ and
    J = J_ij/γ, with no factor and no sign: eq. 20, P(s) = e^{hs/γ}/(e^{h/γ} + e^{-h/γ}), confirms that spins are ±1 and
    not 0/1, so that one token alone has α = σ(2 J_1/γ).

    Args:
        fields: J_i, [*batch, n].
        interactions: J_ij, symmetric with zero diagonal, [*batch, n, n].
        temperature: γ > 0, a number or a tensor that broadcasts to the batch.
    """
    if isinstance(temperature, Tensor):
        return fields / temperature[..., None], interactions / temperature[..., None, None]
    return fields / temperature, interactions / temperature


def mean_field_residual(h: Tensor, J: Tensor, alpha: Tensor, visible: Tensor) -> Tensor:
    """max_i |α_i - σ(2 (h_i + Σ_j J_ij m_j))| with m = 2α - 1 over the visible spins, detached, [*batch]."""
    h, J, alpha = h.detach(), J.detach(), alpha.detach()
    m = torch.where(visible, 2 * alpha - 1, 0)
    update = torch.sigmoid(2 * (h + (J @ m[..., None])[..., 0]))
    return torch.where(visible, (update - alpha).abs(), 0).amax(-1)
