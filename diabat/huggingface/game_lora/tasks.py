"""The losses of GAME-LoRA on a captured forward pass, and the factors of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from diabat.attention.heads.game_lora.losses import (
    cross_head_barlow_twins,
    disagreement,
    log_det_barrier,
    negative_entropy,
    pair_weights,
)
from diabat.attention.heads.game_lora.schedule import three_phases
from diabat.huggingface.game_lora.capture import CapturedForward
from diabat.huggingface.game_lora.options import GameOptions


def barrier(options: GameOptions, couplings: Mapping[int, Tensor]) -> Tensor:
    """Mean of the log-det barrier over its layers."""
    layers = options.layers_of("ldb")
    return torch.stack([log_det_barrier(couplings[layer], options.epsilon) for layer in layers]).mean()


def batch_losses(
    options: GameOptions, forward: CapturedForward, couplings: Mapping[int, Tensor]
) -> dict[str, Tensor]:
    """The losses that depend on the batch, each the mean over its layers."""

    def twins(layer: int) -> Tensor:
        weights = pair_weights(
            couplings[layer].detach(), options.weighting, options.floor, options.slope, options.threshold
        )
        return cross_head_barlow_twins(forward.outputs[layer], weights, forward.mask, options.target)

    on_heads: dict[str, Callable[[int], Tensor]] = {
        "abt": twins,
        "disagreement": lambda layer: disagreement(forward.outputs[layer], forward.mask),
    }
    found = {}
    for loss in options.losses:
        if loss == "entropy":
            assert forward.logits is not None
            found["entropy"] = negative_entropy(forward.logits, forward.targets)
        elif loss in on_heads:
            terms = [on_heads[loss](layer) for layer in options.layers_of(loss)]
            found[loss] = torch.stack(terms).mean()
    return found


def gradient_factors(options: GameOptions, progress: float) -> dict[str, float]:
    """λ_k s(t) by loss, without the running mean of Barlow Twins.

    Args:
        options: λ and schedule.
        progress: Share of the training that is done, 0 .. 1.
    """
    schedule = three_phases(progress, options.warmup, options.cooldown)
    return {
        "ldb": options.ldb_weight * schedule,
        "abt": options.abt_weight * schedule,
        "disagreement": options.disagreement_weight,
        "entropy": options.entropy_weight,
    }
