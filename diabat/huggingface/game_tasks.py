"""The losses of GAME-LoRA of one forward pass, and the coupling of heads that they are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from diabat.attention.heads.regularisers import (
    cross_head_barlow_twins,
    disagreement,
    log_det_barrier,
    negative_entropy,
    pair_weights,
)
from diabat.huggingface.game_options import GameOptions


@dataclass(frozen=True, eq=False)
class Seen:
    """What one forward pass with gradients left behind.

    Attributes:
        outputs: Head outputs [B, T, H, d] by layer, for losses on outputs.
        onward: The same values flat, [B, T, H d]: the path on which the cross-entropy depends on them, without the
            losses on ``outputs``.
        mask: bool [B, T], False at padding; None if there is none.
        logits: [B, T, V] if the entropy is a loss.
        targets: bool [B, T], positions with a target, if the entropy is a loss.
    """

    outputs: Mapping[int, Tensor]
    onward: Mapping[int, Tensor]
    mask: Tensor | None
    logits: Tensor | None
    targets: Tensor | None


def gradient_products(gradient: Tensor, heads: int, mask: Tensor | None) -> Tensor:
    """N_ij = Σ_t ⟨g_i(t), g_j(t)⟩ over the tokens that count, float64 [H, H].

    Args:
        gradient: ∂CE/∂o, [B, T, H d].
        heads: H.
        mask: bool [B, T]; None for all tokens.
    """
    rows = gradient.detach().flatten(0, 1)  # [B T, H d]
    if mask is not None:
        rows = rows * mask.flatten()[:, None]
    # The largest entry is taken out first: gradients of a mean over many tokens have tiny squares.
    rows = rows.float()
    scale = rows.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
    by_head = (rows / scale).unflatten(-1, (heads, -1)).transpose(0, 1).flatten(1)  # [H, B T d]
    return (by_head @ by_head.T).double() * scale.double() ** 2


def cosines(products: Tensor) -> Tensor:
    """ρ_ij = N_ij / √(N_ii N_jj), [H, H]; the row of a zero vector is that of the identity."""
    norms = products.diagonal().clamp(min=0).sqrt()
    present = norms > 0
    scale = torch.where(present, norms, torch.ones_like(norms))
    found = products / scale[:, None] / scale
    identity = torch.eye(len(norms), dtype=found.dtype, device=found.device)
    both = present[:, None] & present
    return torch.where(both & ~identity.bool(), found, identity)


def weight_cosines(slices: Tensor) -> Tensor:
    """ω_ij = ⟨W_i, W_j⟩_F / (‖W_i‖ ‖W_j‖) (eq. 4) of slices [H, hidden, d], differentiable, [H, H]."""
    flat = slices.flatten(1).to(torch.promote_types(slices.dtype, torch.float32))
    return cosines((flat @ flat.T).double())


def barrier(options: GameOptions, couplings: Mapping[int, Tensor]) -> Tensor:
    """Mean of the log-det barrier over its layers."""
    layers = options.layers_of("ldb")
    return torch.stack([log_det_barrier(couplings[layer], options.epsilon) for layer in layers]).mean()


def batch_losses(options: GameOptions, seen: Seen, couplings: Mapping[int, Tensor]) -> dict[str, Tensor]:
    """The losses that depend on the batch, each the mean over its layers."""

    def twins(layer: int) -> Tensor:
        weights = pair_weights(
            couplings[layer].detach(), options.weighting, options.floor, options.slope, options.threshold
        )
        return cross_head_barlow_twins(seen.outputs[layer], weights, seen.mask, options.target)

    on_heads: dict[str, Callable[[int], Tensor]] = {
        "abt": twins,
        "disagreement": lambda layer: disagreement(seen.outputs[layer], seen.mask),
    }
    found = {}
    for loss in options.losses:
        if loss == "entropy":
            assert seen.logits is not None
            found["entropy"] = negative_entropy(seen.logits, seen.targets)
        elif loss in on_heads:
            terms = [on_heads[loss](layer) for layer in options.layers_of(loss)]
            found[loss] = torch.stack(terms).mean()
    return found
