"""Models of transformers: the model inside its wrappers, its attention modules, and attention functions by name.

Every attention function of transformers gets masks, and arguments of other ones, which it must refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from diabat.checks import ArgumentError
from diabat.extras import extra
from diabat.samplers.capabilities import UnsupportedError

ABLATION = "diabat_ablation"
"""Name under which :mod:`diabat.heads` stands before the attention of a model, and calls that."""
GAC = "gac"
"""Name of the attention of :func:`diabat.heads.enable_gac`."""
# Arguments of other attentions; ignoring one would change the model silently.
_OTHERS = ("s_aux", "sinks", "position_bias", "indices", "block_indices")


def pretrained_model(model: nn.Module) -> Any:
    """The decoder of transformers in what may be wrapped by peft; refuses others, and one with an encoder too."""
    kind = extra("transformers").PreTrainedModel
    modules = model.modules() if isinstance(model, nn.Module) else ()
    base: Any = next((module for module in modules if isinstance(module, kind)), None)
    if base is None:
        raise ArgumentError("model", "a model of transformers", type(model).__name__)
    if base.config.is_encoder_decoder:
        raise UnsupportedError("model", "a decoder", f"{type(base).__name__}, which has an encoder too")
    return base


def attention_modules(model: nn.Module) -> dict[int, Any]:
    """The causal attention modules of a model by layer; UnsupportedError if there is none, or several of a layer."""
    modules: dict[int, Any] = {}
    for module in model.modules():
        # Every attention module behind the AttentionInterface has both.
        layer = getattr(module, "layer_idx", None)
        if isinstance(layer, int) and getattr(module, "is_causal", None) is True:
            if layer in modules:
                raise UnsupportedError("model", "one attention module per layer", f"two in layer {layer}")
            modules[layer] = module
    if not modules:
        raise _no_interface(model)
    return dict(sorted(modules.items()))


def query_heads(module: Any) -> int:
    """Number H of query heads of an attention module."""
    return int(module.config.num_attention_heads)


def register_attention(name: str, function: Callable[..., Any], *, boolean: bool = False) -> None:
    """Make ``attn_implementation=name`` known to transformers; calling it twice does no harm.

    The function gets a mask at every call: ``boolean``, True where a key is visible, or added to the scores.
    """
    masks = extra("transformers.masking_utils")
    extra("transformers").AttentionInterface.register(name, function)

    def boolean_mask(*args: Any, **options: Any) -> Any:
        return masks.sdpa_mask(*args, **options | {"allow_is_causal_skip": False})

    # Without a mask function of this name the mask is None, and attention is silently not causal.
    masks.AttentionMaskInterface.register(name, boolean_mask if boolean else masks.eager_mask)


def switch_attention(model: nn.Module, name: str) -> dict[str, Any]:
    """Set the attention of all layers, and return the former, as ``set_attn_implementation`` takes it.

    UnsupportedError if a layer keeps its own; the model is then as it was.
    """
    base = pretrained_model(model)
    modules, former = attention_modules(base), _implementations(base.config)
    base.set_attn_implementation(name)
    if any(module.config._attn_implementation != name for module in modules.values()):
        base.set_attn_implementation(former)
        raise _no_interface(base)
    return former


def refuse_others(implementation: str, arguments: Mapping[str, Any]) -> None:
    """Raise UnsupportedError for an argument that an attention function does not compute."""
    for name in _OTHERS:
        if arguments.get(name) is not None:
            expected = f"None with attn_implementation {implementation!r}, which does not compute it"
            raise UnsupportedError(name, f"expected {expected}.")


def _implementations(config: Any) -> dict[str, Any]:
    """Attention of a configuration ("") and of those inside it."""
    parts = {key: getattr(config, key) for key in config.sub_configs}
    inner = {key: _implementations(part) for key, part in parts.items() if part is not None}
    return {"": config._attn_implementation or "eager", **inner}


def _no_interface(model: nn.Module) -> UnsupportedError:
    expected = "expected attention behind the AttentionInterface of transformers"
    return UnsupportedError("model", f"{expected}, found none in {type(model).__name__}.")
