"""What the losses of GAME-LoRA need of a forward pass with gradients, kept by hooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diabat.attention.heads.interaction.outputs import HeadOutputs
from diabat.attention.heads.interaction.targets import counted_tokens
from diabat.checks import ArgumentError
from diabat.huggingface.enabling import pretrained_model
from diabat.huggingface.game_lora.options import GameOptions
from diabat.samplers.base import UnsupportedError


@dataclass(frozen=True, eq=False)
class CapturedForward:
    """Tensors of one forward pass with gradients.

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


class ForwardCapture:
    """Hooks that keep the tensors of the first forward pass with gradients; others are ignored.

    Args:
        heads: Where the head outputs are.
        options: Losses and their layers.
        batch: What the model gets: ``attention_mask`` [B, T] excludes padding; ``labels`` for the entropy.

    Raises:
        ArgumentError: The mask is not [B, T].
    """

    def __init__(self, heads: HeadOutputs, options: GameOptions, batch: Mapping[str, Any]) -> None:
        self._heads, self._batch = heads, batch
        self._mask = _token_mask(batch)
        self._with_logits = "entropy" in options.losses
        self._moved = options.layers_of("abt") + options.layers_of("disagreement")
        self._onward: dict[int, Tensor] = {}
        self._logits: list[Tensor] = []

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Keep what passes in the block.

        Raises:
            UnsupportedError: The model checkpoints activations reentrantly, or a loss on outputs has nothing to move.
        """
        with self._heads.capture() as self._captured:
            # Behind those of capture(), so that the losses on outputs branch off before the path to the logits.
            hooks = [
                p.module.register_forward_pre_hook(_branch(self._onward, p.layer, p.layer in self._moved))
                for p in self._heads.projections.values()
            ]
            if self._with_logits:
                hooks.append(_logits_hook(self._heads.model, self._logits))
            try:
                yield
            finally:
                for hook in hooks:
                    hook.remove()

    def result(self) -> CapturedForward:
        """The tensors that were kept.

        Raises:
            UnsupportedError: The forward computed no logits, which the entropy needs.
        """
        return CapturedForward(
            {layer: self._captured.outputs(layer) for layer in self._heads.projections},
            self._onward,
            self._mask,
            _only(self._logits) if self._with_logits else None,
            counted_tokens(self._batch) if self._with_logits else None,
        )


def _branch(onward: dict[int, Tensor], layer: int, moved: bool) -> Any:
    """Forward pre-hook that replaces the head outputs by a view of them, and keeps the view."""

    def branch(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        flat = arguments[0]
        if not torch.is_grad_enabled() or layer in onward:
            return None
        if moved and flat.is_leaf:
            raise UnsupportedError(
                "model",
                f"expected trained parameters below the outputs of the heads of layer {layer}, which a loss on them "
                "moves, got none; add adapters to the projections of queries, keys and values.",
            )
        onward[layer] = flat.view_as(flat)
        return (onward[layer], *arguments[1:])

    return branch


def _logits_hook(model: nn.Module, found: list[Tensor]) -> Any:
    def keep(_: nn.Module, arguments: tuple[Any, ...], logits: Tensor) -> None:
        if torch.is_grad_enabled() and not found:
            found.append(logits)

    return pretrained_model(model).get_output_embeddings().register_forward_hook(keep)


def _only(logits: list[Tensor]) -> Tensor:
    if not logits:
        raise UnsupportedError(
            "model",
            "expected a forward that computes logits, which the loss 'entropy' needs, got none; trainers that fuse the "
            "head with the loss, such as SFTTrainer, have no logits.",
        )
    return logits[0]


def _token_mask(batch: Mapping[str, Any]) -> Tensor | None:
    mask = batch.get("attention_mask")
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        got = list(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ArgumentError("attention_mask", f"expected a tensor [B, T], got {got}.")
    return mask.bool()
