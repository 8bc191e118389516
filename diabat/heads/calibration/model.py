"""Switch the calibration of a model on and off."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from diabat.checks import ArgumentError
from diabat.heads.calibration.attention import (
    NAME,
    CalibratedHeads,
    gac_attention,
    hand_on_cache,
    reorder_cache,
)
from diabat.heads.calibration.mathematics import CALIBRATED, Calibration
from diabat.huggingface.pretrained import (
    attention_modules,
    pretrained_model,
    query_heads,
    register_attention,
    switch_attention,
)
from diabat.samplers.capabilities import UnsupportedError

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
        raise ArgumentError("calibration", "a Calibration", type(calibration).__name__)
    base = pretrained_model(model)
    chosen = _chosen(attention_modules(base), calibration)
    disable_gac(model)
    register_attention(NAME, gac_attention)
    former = switch_attention(base, NAME)
    handles = []
    head = base.get_output_embeddings()
    if calibration.rows == "prompt" and head is not None:
        handles.append(head.register_forward_pre_hook(_refuse_several))
    for layer, (module, heads) in chosen.items():
        hidden = "output_attentions" in inspect.signature(type(module).forward).parameters
        setattr(module, CALIBRATED, CalibratedHeads(calibration, heads, layer, hidden))
        handles.append(module.register_forward_pre_hook(hand_on_cache, with_kwargs=True))
    # Beam search calls this one instead of the cache's own if there is one.
    base._reorder_cache = partial(reorder_cache, getattr(base, "_reorder_cache", None))
    setattr(base, _ENABLED, _Enabled(calibration, former, tuple(handles)))


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
        vars(module).pop(CALIBRATED, None)
    del base._reorder_cache  # the attribute of the object; that of its class is there again
    delattr(base, _ENABLED)
    base.set_attn_implementation(enabled.former)


def enabled_calibration(model: nn.Module) -> Calibration | None:
    """The calibration that is switched on, None if there is none."""
    enabled: _Enabled | None = vars(pretrained_model(model)).get(_ENABLED)
    return None if enabled is None else enabled.calibration


def _chosen(modules: dict[int, Any], calibration: Calibration) -> dict[int, tuple[Any, tuple[int, ...]]]:
    """Modules and the heads that are calibrated, by layer; layers in which every head is salient are left out."""
    chosen = {}
    for layer, salient in calibration.salient.items():
        if layer not in modules:
            expected = f"layers among {', '.join(map(str, modules))} of this model"
            raise ArgumentError("salient", expected, layer)
        module = modules[layer]
        count = query_heads(module)
        if max(salient, default=0) >= count:
            expected = f"heads below {count} in layer {layer} of this model"
            raise ArgumentError("salient", expected, max(salient))
        parameters = inspect.signature(type(module).forward).parameters.values()
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            expected = "attention that hands on keyword arguments"
            raise UnsupportedError("model", expected, type(module).__name__)
        heads = tuple(head for head in range(count) if head not in salient)
        if heads:
            chosen[layer] = (module, heads)
    return chosen


def _refuse_several(module: nn.Module, args: tuple[Tensor, ...]) -> None:
    """Forward pre-hook of the head: with ``rows="prompt"`` earlier logits depend on later tokens."""
    if args[0].shape[-2] > 1:
        got = "'prompt', where later tokens change earlier ones; logits_to_keep=1 asks for the last"
        raise UnsupportedError("rows", f"'running' for logits of {args[0].shape[-2]} positions", got)
