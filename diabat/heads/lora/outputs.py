"""The heads of a decoder: their outputs in a forward pass, the gradients there, and the slices of what is behind them.

y_t = Σ_h W_O[h] o_t[h]         o [B, T, H, d] before the output projection, y [B, T, hidden] behind it
W_O = W_base + Σ_adapters scaling · B A            [hidden, H d], differentiable in every factor
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from diabat.attention.evaluating import evaluating
from diabat.checks import ArgumentError
from diabat.extras import extra
from diabat.heads.games.decoder import check_layers
from diabat.huggingface.pretrained import attention_modules, pretrained_model, query_heads
from diabat.samplers.capabilities import UnsupportedError


class HeadGradients(NamedTuple):
    """Gradients of a loss at one layer: ∂loss/∂o [B, T, H, d], and ∂loss/∂y [B, T, hidden]."""

    heads: Tensor
    residual: Tensor


class OutputProjection(NamedTuple):
    """The linear map behind the query heads of a layer: nn.Linear, Conv1D of transformers, or LoRA around one."""

    layer: int
    module: Any
    heads: int


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
        every = _projections(model)
        chosen = sorted(every) if layers is None else check_layers("layers", layers, every)
        self.model = model
        self.projections: Mapping[int, OutputProjection] = MappingProxyType({k: every[k] for k in chosen})
        for layer, projection in self.projections.items():
            if projection.heads < 2:
                raise ArgumentError("model", "two heads or more that interact", f"one in layer {layer}")
            self.slices(layer)

    def slices(self, layer: int) -> Tensor:
        """Effective slices W_O[h] of a layer, [H, hidden, d]: the layer writes Σ_h W_O[h] o_h.

        They are differentiable in the base weight and in the active adapters, and have no LoRA dropout.

        Raises:
            ValueError: If the layer is not one of ``projections``.
            UnsupportedError: If an adapter has been merged meanwhile.
        """
        _check_known(layer, self.projections)
        _, module, heads = self.projections[layer]
        adapted = hasattr(module, "lora_A")
        adapters = _adapters(module, layer) if adapted else []
        base = module.get_base_layer() if adapted else module
        weight: Any = vars(base)["_parameters"].get("weight")
        linear = (nn.Linear, extra("transformers.pytorch_utils").Conv1D)
        if type(base) not in linear or type(weight) is not nn.Parameter or not weight.is_floating_point():
            place = f"at the output projection of layer {layer}"
            expected = f"floating-point weights in a Linear or Conv1D {place}"
            got = f"{type(base).__name__}; load the model without quantization"
            raise UnsupportedError("model", expected, got)
        for name in adapters:
            weight = weight + module.get_delta_weight(name)
        flat = weight if type(base) is nn.Linear else weight.T  # Conv1D is transposed
        return flat.unflatten(1, (heads, -1)).transpose(0, 1)

    @contextmanager
    def capture(self, *, logits: bool = False) -> Iterator[Captured]:
        """Keep the head outputs of the first forward with gradients in the block; forwards without are ignored.

        With ``logits`` also what the head of the model computes then.

        Raises:
            UnsupportedError: If the model checkpoints activations reentrantly, which has no graph at the heads.
        """
        _check_checkpointing(self.model)
        captured = Captured(self.projections)
        with ExitStack() as hooks:
            for projection in self.projections.values():
                for hook in captured.hooks(projection):
                    hooks.callback(hook.remove)
            if logits:
                head = pretrained_model(self.model).get_output_embeddings()
                hooks.callback(head.register_forward_hook(captured.keep_logits).remove)
            yield captured


class Captured:
    """Head outputs of one forward pass, part of its graph.

    Attributes:
        onward: Views of the outputs by layer, flat, [B, T, H d]: the path on which the logits depend on them, without
            that of losses on :meth:`outputs`.
        logits: [B, T, V], None if they were not asked for, or not computed.
    """

    def __init__(self, projections: Mapping[int, OutputProjection]) -> None:
        self._projections = projections
        self._before: dict[int, Tensor] = {}
        self.onward: dict[int, Tensor] = {}
        self._behind: dict[int, Tensor] = {}  # [B, T, hidden]
        self.logits: Tensor | None = None

    def outputs(self, layer: int) -> Tensor:
        """Outputs o of the heads of a layer, [B, T, H, d]; ArgumentError if there was no forward with gradients."""
        _check_known(layer, self._projections)
        if layer not in self._before:
            expected = "a forward with gradients inside capture()"
            raise ArgumentError("layer", expected, f"none through layer {layer}")
        return self.by_head(layer, self._before[layer])

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
        parts = torch.autograd.grad(loss, wanted, retain_graph=retain_graph, allow_unused=True)
        gradients = {}
        for layer, heads, residual in zip(layers, parts, parts[len(layers) :], strict=False):
            if heads is None or residual is None:
                raise ArgumentError(
                    "loss", "a loss of the captured forward", f"one without the heads of layer {layer}"
                )
            gradients[layer] = HeadGradients(self.by_head(layer, heads), residual)
        return gradients

    def by_head(self, layer: int, flat: Tensor) -> Tensor:
        """[B, T, H, d] of [B, T, H d]."""
        return flat.unflatten(-1, (self._projections[layer].heads, -1))

    def hooks(self, projection: OutputProjection) -> list[Any]:
        """Register the hooks at one projection."""
        layer, module = projection.layer, projection.module

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

        return [module.register_forward_pre_hook(before), module.register_forward_hook(behind)]

    def keep_logits(self, _: nn.Module, arguments: tuple[Any, ...], logits: Tensor) -> None:
        """Forward hook of the head of the model."""
        if torch.is_grad_enabled() and self.logits is None:
            self.logits = logits


def _projections(model: Any) -> dict[int, OutputProjection]:
    """The output projection of every layer, found by running the model on two tokens, not by names.

    It is the last part of an attention module that runs, dropout aside.  Its weights are not yet checked.
    """
    attention, last = attention_modules(pretrained_model(model)), dict[int, tuple[nn.Module, int]]()

    def note(layer: int) -> Any:
        return lambda child, inputs: last.update({layer: (child, inputs[0].shape[-1] if inputs else 0)})

    with ExitStack() as hooks:
        for layer, module in attention.items():
            for child in module.children():
                if not isinstance(child, nn.Dropout):
                    hooks.callback(child.register_forward_pre_hook(note(layer)).remove)
        with evaluating(model), torch.no_grad():
            tokens = torch.zeros(1, 2, dtype=torch.int64, device=model.device)
            model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
    projections = {}
    for layer, module in attention.items():
        (child, width), heads = last.get(layer, (None, 0)), query_heads(module)
        if child is None or not width or width % heads:
            sentence = f"expected an output projection behind the attention of layer {layer}, found none."
            raise UnsupportedError("model", sentence)
        projections[layer] = OutputProjection(layer, child, heads)
    return projections


def _adapters(module: Any, layer: int) -> list[str]:
    """Names of the active LoRA adapters of a projection; none if they are disabled."""
    if module.merged:
        got = f"one merged into the output projection of layer {layer}; call model.unmerge_adapter()"
        raise UnsupportedError("model", "adapters beside the weights", got)
    active = [] if module.disable_adapters else [n for n in module.active_adapters if n in module.lora_A]
    for name in active:
        if name in module.lora_variant:
            fix = "train the adapter without use_dora and other variants"
            got = f"{type(module.lora_variant[name]).__name__}; {fix}"
            raise UnsupportedError("model", f"plain LoRA at the output projection of layer {layer}", got)
    return active


def _check_known(layer: int, layers: Mapping[int, Any]) -> None:
    if layer not in layers:
        raise ArgumentError("layer", f"one of {list(layers)}", f"{layer!r}")


def _check_checkpointing(model: nn.Module) -> None:
    """Refuse reentrant checkpointing: its forward has no graph, and its recomputation a different one."""
    for module in model.modules():
        function: Any = vars(module).get("_gradient_checkpointing_func")
        on = module.training and vars(module).get("gradient_checkpointing") and isinstance(function, partial)
        if on and function.keywords.get("use_reentrant", False):
            got = "reentrant checkpointing; set gradient_checkpointing_kwargs={'use_reentrant': False}"
            raise UnsupportedError("model", "checkpointing with use_reentrant=False", got)
