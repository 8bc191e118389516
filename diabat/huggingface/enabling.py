"""Switch the calibration of a model on and off."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from diabat.attention.heads.calibration import Calibration
from diabat.checks import ArgumentError
from diabat.extras import extra
from diabat.huggingface.attention import CACHE, NAME, STATE, Calibrated, register_gac
from diabat.huggingface.column_sums import check_cache, reorder_cache
from diabat.samplers.base import UnsupportedError

_ENABLED = "diabat_gac"


@dataclass(frozen=True)
class _Enabled:
    """What a model needs to be as it was."""

    calibration: Calibration
    former: dict[str, Any]
    handles: tuple[RemovableHandle, ...]


def enable_gac(model: nn.Module, calibration: Calibration) -> None:
    """Calibrate heads of a model in every forward pass from now on; an earlier calibration is replaced.

    Args:
        model: A decoder of transformers, or one wrapped by peft.
        calibration: Layers, salient heads, α, β.

    Raises:
        ArgumentError: The model has no such layer or head.
        UnsupportedError: The model's attention cannot be replaced.
        ImportError: If the extra ``hf`` is not installed.
    """
    if not isinstance(calibration, Calibration):
        raise ArgumentError("calibration", f"expected a Calibration, got {type(calibration).__name__}.")
    base = pretrained_model(model)
    chosen = _chosen(attention_modules(base), calibration)
    disable_gac(model)
    register_gac()
    former = _implementations(base)
    base.set_attn_implementation(NAME)
    if any(module.config._attn_implementation != NAME for module, _ in chosen.values()):
        base.set_attn_implementation(former)
        raise UnsupportedError(
            "model", f"expected attention behind AttentionInterface, got {type(base).__name__} without."
        )
    handles = [_only_last_logits(base)] if calibration.rows == "prompt" else []
    for layer, (module, heads) in chosen.items():
        setattr(module, STATE, Calibrated(calibration, heads, layer))
        handles.append(module.register_forward_pre_hook(_hand_on_cache, with_kwargs=True))
    # Beam search calls this one instead of the cache's own if there is one.
    base._reorder_cache = partial(reorder_cache, getattr(base, "_reorder_cache", None))
    setattr(base, _ENABLED, _Enabled(calibration, former, tuple(h for h in handles if h is not None)))


def disable_gac(model: nn.Module) -> None:
    """Make the model what it was before `enable_gac`, its attention implementation included.

    A model that is not calibrated stays as it is.
    """
    base = pretrained_model(model)
    enabled: _Enabled | None = vars(base).get(_ENABLED)
    if enabled is None:
        return
    for handle in enabled.handles:
        handle.remove()
    for module in base.modules():
        vars(module).pop(STATE, None)
    del base._reorder_cache  # the attribute of the object; that of its class is there again
    delattr(base, _ENABLED)
    base.set_attn_implementation(enabled.former)


def enabled_calibration(model: nn.Module) -> Calibration | None:
    """The calibration that is switched on, None if there is none."""
    enabled: _Enabled | None = vars(pretrained_model(model)).get(_ENABLED)
    return None if enabled is None else enabled.calibration


def pretrained_model(model: nn.Module) -> Any:
    """The model of transformers in what may be wrapped by peft.

    Raises:
        ArgumentError: There is none, or it is an encoder with a decoder.
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


def attention_modules(base: nn.Module) -> dict[int, Any]:
    """The causal attention modules of a model by layer.

    Raises:
        ArgumentError: There is none, or there are several of one layer.
    """
    found: dict[int, Any] = {}
    for module in base.modules():
        # Both are what every attention module behind AttentionInterface has.
        layer = getattr(module, "layer_idx", None)
        if isinstance(layer, int) and getattr(module, "is_causal", None) is True:
            if layer in found:
                raise UnsupportedError(
                    "model", f"expected one attention module per layer, got two in layer {layer}."
                )
            found[layer] = module
    if not found:
        raise ArgumentError("model", f"expected a decoder with attention, got {type(base).__name__} without.")
    return dict(sorted(found.items()))


def _chosen(modules: dict[int, Any], calibration: Calibration) -> dict[int, tuple[Any, tuple[int, ...]]]:
    """Modules and the heads that are calibrated, by layer; layers in which every head is salient are left out."""
    chosen = {}
    for layer, salient in calibration.salient.items():
        if layer not in modules:
            raise ArgumentError(
                "salient", f"expected layers among {', '.join(map(str, modules))} of this model, got {layer}."
            )
        module = modules[layer]
        count = module.config.num_attention_heads
        if max(salient, default=0) >= count:
            raise ArgumentError(
                "salient", f"expected heads below {count} in layer {layer} of this model, got {max(salient)}."
            )
        if not any(
            p.kind is p.VAR_KEYWORD for p in inspect.signature(type(module).forward).parameters.values()
        ):
            raise UnsupportedError(
                "model", f"expected attention that hands on keyword arguments, got {type(module).__name__}."
            )
        heads = tuple(head for head in range(count) if head not in salient)
        if heads:
            chosen[layer] = (module, heads)
    return chosen


def _implementations(base: Any) -> dict[str, Any]:
    """Attention implementations of a model and of its parts, as ``set_attn_implementation`` takes them."""

    def of(config: Any) -> dict[str, Any]:
        parts = {key: getattr(config, key) for key in config.sub_configs}
        return {"": config._attn_implementation} | {
            k: of(part) for k, part in parts.items() if part is not None
        }

    return of(base.config)


def _hand_on_cache(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Forward pre-hook: the attention function gets keyword arguments, but not the cache."""
    cache = kwargs.get("past_key_values")
    check_cache(cache)
    return args, {**kwargs, CACHE: cache}


def _only_last_logits(base: Any) -> RemovableHandle | None:
    """Refuse logits of several positions: with ``rows="prompt"`` earlier ones depend on later tokens."""
    head = base.get_output_embeddings()
    return None if head is None else head.register_forward_pre_hook(_refuse_several)


def _refuse_several(module: nn.Module, args: tuple[Tensor, ...]) -> None:
    if args[0].shape[-2] > 1:
        raise UnsupportedError(
            "rows",
            f"expected 'running' for logits of {args[0].shape[-2]} positions, got 'prompt', where later tokens change "
            "earlier ones; logits_to_keep=1 asks for the last.",
        )
