"""What GAME-LoRA takes from layers: outputs of heads in a forward pass, and the couplings G of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from diabat.checks import ArgumentError
from diabat.heads.lora.couplings import gradient_products, interaction, normalised, weight_coupling
from diabat.heads.lora.gradients import mean_over_ranks
from diabat.heads.lora.losses import (
    counted_tokens,
    cross_head_barlow_twins,
    disagreement,
    log_det_barrier,
    negative_entropy,
    pair_weights,
)
from diabat.heads.lora.options import GameOptions, Loss, Rho
from diabat.heads.lora.outputs import HeadOutputs
from diabat.huggingface.pretrained import pretrained_model
from diabat.samplers.capabilities import UnsupportedError


class CapturedForward:
    """Tensors of the first forward pass with gradients inside :meth:`watch`; others are ignored.

    Attributes:
        outputs: Head outputs [B, T, H, d] by layer, for losses on outputs.
        onward: The same values flat, [B, T, H d]: the path on which the cross-entropy depends on them.
        mask: bool [B, T], False at padding; None if there is none.
        logits: [B, T, V], if the entropy is a loss.
        targets: bool [B, T], positions with a target, if the entropy is a loss.

    Raises:
        ArgumentError: The mask is not [B, T].
    """

    def __init__(self, heads: HeadOutputs, options: GameOptions, batch: Mapping[str, Any]) -> None:
        self._heads, self._options = heads, options
        mask = batch.get("attention_mask")
        if mask is not None and (not isinstance(mask, Tensor) or mask.ndim != 2):
            got = list(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
            raise ArgumentError("attention_mask", f"expected a tensor [B, T], got {got}.")
        self.mask = None if mask is None else mask.bool()
        self.outputs: dict[int, Tensor] = {}
        self.onward: dict[int, Tensor] = {}
        self.logits: Tensor | None = None
        self.targets = counted_tokens(batch) if "entropy" in options.losses else None

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Keep what passes in the block; UnsupportedError if the model does not let pass what a loss needs."""
        heads, hooks = self._heads, ExitStack()
        with heads.capture() as captured, hooks:
            if self.targets is not None:
                head = pretrained_model(heads.model).get_output_embeddings()
                hooks.callback(head.register_forward_hook(self._keep_logits).remove)
            yield
        self.outputs, self.onward = {at: captured.outputs(at) for at in heads.layers}, captured.onward
        for layer in (*self._options.layers_of("abt"), *self._options.layers_of("disagreement")):
            if captured.is_leaf(layer):
                raise UnsupportedError(
                    "model",
                    f"expected trained parameters below the outputs of the heads of layer {layer}, which a loss on "
                    "them moves, got none; add adapters to the projections of queries, keys and values.",
                )
        if self.targets is not None and self.logits is None:
            raise UnsupportedError(
                "model",
                "expected a forward that computes logits, which the loss 'entropy' needs, got none; trainers that fuse "
                "the head with the loss, such as SFTTrainer, have no logits.",
            )

    def losses(self, couplings: Mapping[int, Tensor], micro_batches: int, last: bool) -> dict[str, Tensor]:
        """The losses with G by layer, each the mean over its layers; the barrier in the last micro-batch of a step."""
        options = self._options

        def twins(layer: int) -> Tensor:
            shape = (options.weighting, options.floor, options.slope, options.threshold)
            return cross_head_barlow_twins(
                self.outputs[layer], pair_weights(couplings[layer], *shape), self.mask, options.target
            )

        of_layer: dict[Loss, Callable[[int], Tensor]] = {
            "abt": twins,
            "disagreement": lambda at: disagreement(self.outputs[at], self.mask),
            "ldb": lambda at: log_det_barrier(couplings[at], options.epsilon),
        }
        found: dict[str, Tensor] = {}
        for loss in (one for one in options.losses if one != "ldb"):
            if loss == "entropy" and self.logits is not None:
                value = negative_entropy(self.logits, self.targets)
            else:
                value = torch.stack([of_layer[loss](layer) for layer in options.layers_of(loss)]).mean()
            found[loss] = value / micro_batches
        if last and "ldb" in options.losses:
            found["ldb"] = torch.stack([of_layer["ldb"](layer) for layer in options.layers_of("ldb")]).mean()
        return found

    def _keep_logits(self, _: nn.Module, arguments: tuple[Any, ...], logits: Tensor) -> None:
        if torch.is_grad_enabled() and self.logits is None:
            self.logits = logits


class StepCouplings:
    """Sums of ⟨g_i, g_j⟩ by layer, g_h = ∂CE/∂(output of head h): those of this step, and those of the last.

    Attributes:
        last: Sums of the last step, float64 [H, H] by layer; empty before the first.
    """

    def __init__(self, heads: HeadOutputs, rho: Rho) -> None:
        self._heads, self._rho = heads, rho
        self.reset({})

    def reset(self, last: Mapping[int, Tensor]) -> None:
        """Begin a step after one with these sums."""
        self.last = dict(last)
        self._sums: dict[int, Tensor] = {}

    @property
    def fresh(self) -> bool:
        """Whether ρ is that of this step, because of the option or because there is no step before."""
        return self._rho == "fresh" or not self.last

    def watch(self, forward: CapturedForward) -> None:
        """Add the products of a micro-batch during its backward pass."""
        for layer, tensor in forward.onward.items():
            tensor.register_hook(lambda gradient, layer=layer: self._add(layer, gradient, forward.mask))

    def add(self, forward: CapturedForward, gradients: Sequence[Tensor | None]) -> None:
        """Add the products of a micro-batch, given ∂CE/∂onward in the order of its layers."""
        for layer, gradient in zip(forward.onward, gradients, strict=True):
            if gradient is None:
                raise ArgumentError(
                    "cross_entropy",
                    f"expected a loss of the captured forward, got one without layer {layer}.",
                )
            self._add(layer, gradient, forward.mask)

    def matrices(self) -> dict[int, Tensor]:
        """G = ω ∘ ρ by layer, [H, H], differentiable in the projections."""
        sums = self._mean_sums() if self.fresh else self.last
        return {
            layer: interaction(weight_coupling(self._heads.slices(layer)), normalised(sums[layer]))
            for layer in self._heads.projections
        }

    def finish(self) -> None:
        """End the step: its sums become those of the last step."""
        self.reset(self.last | self._mean_sums())

    def _add(self, layer: int, gradient: Tensor, mask: Tensor | None) -> None:
        rows = gradient.detach().unflatten(-1, (self._heads.projections[layer].heads, -1))  # [B, T, H, d]
        products = gradient_products(rows if mask is None else rows[mask])
        self._sums[layer] = self._sums[layer] + products if layer in self._sums else products

    def _mean_sums(self) -> dict[int, Tensor]:
        """Sums of the step so far, the mean over processes."""
        found = {layer: mean_over_ranks(products) for layer, products in sorted(self._sums.items())}
        for layer, products in found.items():
            if not torch.isfinite(products).all():
                raise ArgumentError(
                    "loss", f"expected finite gradients at the heads of layer {layer}, got NaN or infinity."
                )
        return found
