"""The losses of GAME-LoRA on what one forward pass left behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from diabat.attention.heads.game_lora.losses import (
    cross_head_barlow_twins,
    disagreement,
    log_det_barrier,
    negative_entropy,
    pair_weights,
)
from diabat.huggingface.game_lora.options import GameOptions


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
