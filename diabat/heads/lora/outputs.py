"""Outputs of the attention heads of a decoder in a forward pass, and the gradients of a loss there.

y_t = Σ_h W_O[h] o_t[h]         o [B, T, H, d] before the output projection, y [B, T, hidden] behind it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from diabat.checks import ArgumentError
from diabat.heads.games.decoder import check_layers
from diabat.heads.lora.projections import OutputProjection, find_projections
from diabat.samplers.capabilities import UnsupportedError


@dataclass(frozen=True, eq=False)
class HeadGradients:
    """Gradients of a loss at one layer: ∂loss/∂o [B, T, H, d], and ∂loss/∂y [B, T, hidden]."""

    heads: Tensor
    residual: Tensor


class HeadOutputs:
    """Outputs of the query heads of some layers, and the slices of the projections behind them.

    The hooks stand on the projections, so that they also fire where the model is wrapped by PEFT, Trainer or
    DistributedDataParallel:

        outputs = HeadOutputs(model, layers=[19])
        with outputs.capture() as captured:
            loss = model(**batch).loss
        o = captured.outputs(19)                      # [B, T, H, d], part of the graph of the loss
        g = captured.gradients(loss)[19].heads        # [B, T, H, d]
        W = outputs.slices(19)                        # [H, hidden, d], differentiable in the adapters

    Args:
        model: A causal language model of transformers (Llama, Qwen2, Qwen3, Mistral, GPT-2, ...), or a PEFT model
            around one.
        layers: Positions of blocks, counted from 0; None for all with attention.

    Attributes:
        projections: The output projections by layer.

    Raises:
        ValueError: If a layer is out of range or given twice, or has one head.
        UnsupportedError: If the weights of a projection are quantised or merged, an adapter of it is not plain LoRA,
            or attention is not where transformers has it.
    """

    def __init__(self, model: Any, layers: Sequence[int] | None = None) -> None:
        every = find_projections(model)
        chosen = sorted(every) if layers is None else check_layers("layers", layers, every)
        self.model = model
        self.projections: Mapping[int, OutputProjection] = MappingProxyType({k: every[k] for k in chosen})
        for projection in self.projections.values():
            if projection.heads < 2:
                raise ArgumentError(
                    "model", f"expected two heads or more that interact, got one in layer {projection.layer}."
                )
            projection.slices()

    @property
    def layers(self) -> tuple[int, ...]:
        """Positions of the blocks."""
        return tuple(self.projections)

    def slices(self, layer: int) -> Tensor:
        """Effective slices W_O[h] of a layer, [H, hidden, d]: base and active adapters, differentiable in both.

        Raises:
            ValueError: If the layer is not one of :attr:`layers`.
            UnsupportedError: If an adapter has been merged meanwhile.
        """
        _check_known(layer, self.projections)
        return self.projections[layer].slices()

    @contextmanager
    def capture(self) -> Iterator[Captured]:
        """Keep the head outputs of the first forward with gradients in the block; forwards without are ignored.

        Raises:
            UnsupportedError: If the model checkpoints activations reentrantly, which has no graph at the heads.
        """
        _check_checkpointing(self.model)
        captured = Captured(self.projections)
        hooks = [hook for layer in self.projections for hook in captured.hooks(layer)]
        try:
            yield captured
        finally:
            for hook in hooks:
                hook.remove()


class Captured:
    """Head outputs of one forward pass, part of its graph.

    Attributes:
        onward: Views of the outputs by layer, flat, [B, T, H d]: the path on which the logits depend on them, without
            that of losses on :meth:`outputs`.
    """

    def __init__(self, projections: Mapping[int, OutputProjection]) -> None:
        self._projections = projections
        self._before: dict[int, Tensor] = {}
        self.onward: dict[int, Tensor] = {}
        self._behind: dict[int, Tensor] = {}  # [B, T, hidden]

    def outputs(self, layer: int) -> Tensor:
        """Outputs o of the heads of a layer, [B, T, H, d].

        Raises:
            ValueError: If there was no forward with gradients.
        """
        if layer not in self._before:
            _check_known(layer, self._projections)
            raise ArgumentError(
                "layer",
                f"expected a forward with gradients inside capture(), got none through layer {layer}.",
            )
        return self._split(layer, self._before[layer])

    def is_leaf(self, layer: int) -> bool:
        """Whether nothing below the heads of a layer is trained, so that no loss on their outputs moves anything."""
        return self._before[layer].is_leaf

    def gradients(self, loss: Tensor, *, retain_graph: bool = True) -> dict[int, HeadGradients]:
        """Gradients of a scalar loss of that forward, by layer, detached; those of parameters are not touched.

        Raises:
            ValueError: If there was no forward with gradients, or the loss does not depend on it.
        """
        layers = [layer for layer in self._projections if self.outputs(layer) is not None]
        wanted = [part[layer] for part in (self.onward, self._behind) for layer in layers]
        found = torch.autograd.grad(loss, wanted, retain_graph=retain_graph, allow_unused=True)
        gradients = {}
        for layer, heads, residual in zip(layers, found, found[len(layers) :], strict=False):
            if heads is None or residual is None:
                raise ArgumentError(
                    "loss",
                    f"expected a loss of the captured forward, got one without the heads of layer {layer}.",
                )
            gradients[layer] = HeadGradients(self._split(layer, heads), residual)
        return gradients

    def hooks(self, layer: int) -> list[Any]:
        """Register the hooks at one projection."""

        # Only the first forward with gradients: checkpointing computes it again during the backward pass.
        def before(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if not torch.is_grad_enabled() or layer in self._before:
                return None
            flat = arguments[0]
            if not flat.requires_grad:  # nothing below is trained
                flat.requires_grad_()
            self._before[layer], self.onward[layer] = flat, flat.view_as(flat)
            return (self.onward[layer], *arguments[1:])

        def behind(_: nn.Module, arguments: tuple[Any, ...], written: Tensor) -> None:
            if torch.is_grad_enabled() and layer not in self._behind:
                self._behind[layer] = written

        module = self._projections[layer].module
        return [module.register_forward_pre_hook(before), module.register_forward_hook(behind)]

    def _split(self, layer: int, flat: Tensor) -> Tensor:
        return flat.unflatten(-1, (self._projections[layer].heads, -1))


def _check_known(layer: int, layers: Mapping[int, Any]) -> None:
    if layer not in layers:
        raise ArgumentError("layer", f"expected one of {list(layers)}, got {layer!r}.")


def _check_checkpointing(model: nn.Module) -> None:
    """Refuse reentrant checkpointing: its forward has no graph, and its recomputation a different one."""
    for module in model.modules():
        function: Any = vars(module).get("_gradient_checkpointing_func")
        on = module.training and vars(module).get("gradient_checkpointing") and isinstance(function, partial)
        if on and function.keywords.get("use_reentrant", False):
            raise UnsupportedError(
                "model",
                "expected checkpointing with use_reentrant=False, got reentrant checkpointing; set "
                "gradient_checkpointing_kwargs={'use_reentrant': False}.",
            )
