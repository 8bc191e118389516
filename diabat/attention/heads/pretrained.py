"""Models of transformers: the model inside its wrappers, its attention modules, and attention functions by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from diabat.checks import ArgumentError
from diabat.extras import extra
from diabat.samplers.base import UnsupportedError


def pretrained_model(model: nn.Module) -> Any:
    """The decoder of transformers in what may be wrapped by peft.

    Raises:
        ArgumentError: There is none.
        UnsupportedError: It has an encoder too.
    """
    kind = extra("transformers").PreTrainedModel
    modules = model.modules() if isinstance(model, nn.Module) else ()
    base: Any = next((module for module in modules if isinstance(module, kind)), None)
    if base is None:
        raise ArgumentError("model", f"expected a model of transformers, got {type(model).__name__}.")
    if base.config.is_encoder_decoder:
        raise UnsupportedError(
            "model", f"expected a decoder, got {type(base).__name__}, which has an encoder too."
        )
    return base


def attention_modules(model: nn.Module) -> dict[int, Any]:
    """The causal attention modules of a model by layer; nothing is run.

    Raises:
        UnsupportedError: There is none, or several of one layer.
    """
    found: dict[int, Any] = {}
    for module in model.modules():
        # Every attention module behind the AttentionInterface has both.
        layer = getattr(module, "layer_idx", None)
        if isinstance(layer, int) and getattr(module, "is_causal", None) is True:
            if layer in found:
                raise UnsupportedError(
                    "model", f"expected one attention module per layer, got two in layer {layer}."
                )
            found[layer] = module
    if not found:
        raise UnsupportedError(
            "model",
            "expected attention behind the AttentionInterface of transformers, found none in "
            f"{type(model).__name__}.",
        )
    return dict(sorted(found.items()))


def register_attention(name: str, function: Callable[..., Any]) -> None:
    """Make ``attn_implementation=name`` known to transformers; calling it twice does no harm.

    Raises:
        ImportError: If the extra ``hf`` is not installed.
    """
    masks = extra("transformers.masking_utils")
    extra("transformers").AttentionInterface.register(name, function)
    # Without a mask function of this name the mask is None, and attention is silently not causal.
    masks.AttentionMaskInterface.register(name, masks.eager_mask)
