"""What tells a model from another, for files that belong to one: checksums of all that its outputs depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

ROUNDED = ("bfloat16", "float16")
"""Dtypes in which a model of another dtype may be loaded again, with rounded weights."""
# What a configuration holds besides the function of the model: names, versions, and what a loader or a caller chooses.
_INCIDENTAL = {
    "_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "output_attentions",
    "output_hidden_states", "return_dict", "quantization_config",
}  # fmt: skip


def model_digest(model: Any, fields: tuple[str, ...] = ("weights",), *, without: str = "") -> dict[str, str]:
    """Checksums of a decoder of transformers, possibly wrapped by peft, with all its weights: a second for 2 GB.

    They are ``configuration``, without names and versions; ``dtype``, the narrowest of the parameters; ``adapters``,
    the active ones of peft with their scales, empty if there are none; and the fields, parameters and buffers without
    adapters and without the submodule ``without``.  Fields are ``weights`` as they are, and those in :data:`ROUNDED`
    for weights rounded to this dtype: for files that copies of the model in another dtype may use.  A field is empty
    if weights are not in memory, or are quantised and asked for rounded.
    """
    own, adapted, scales = _tensors(model)
    own = {name: tensor for name, tensor in own.items() if not without or without not in name.split(".")}
    config = json.dumps(_essential(model.config.to_dict()), sort_keys=True, default=str)
    plain = all(parameter.is_floating_point() for parameter in model.parameters())
    digest = {
        "configuration": hashlib.sha256(config.encode()).hexdigest(),
        "dtype": _dtype(model),
        "adapters": _checksum(adapted, None, scales) if scales else "",
    }
    for field in fields:
        known = not any(tensor.is_meta for tensor in own.values()) and (plain or field == "weights")
        dtype = None if field == "weights" else getattr(torch, field)
        digest[field] = _checksum(own, dtype) if known else ""
    return digest


def differences(model: Any, saved: Mapping[str, Any], *, without: str = "") -> list[str]:
    """In what a model is not that of a file, which has its digest with all fields; empty if in nothing.

    Weights of the same dtype are compared exactly, of another one after rounding to the narrower of both; quantised
    ones, and those that are not in memory, are not compared.
    """
    dtype, theirs = _dtype(model), saved.get("dtype")
    field = "weights" if dtype == theirs else dtype if dtype in ROUNDED else str(theirs)
    ours = model_digest(model, (field,) if field in saved else (), without=without)
    names = [name for name in ("configuration", "adapters") if ours[name] != saved.get(name)]
    known = ours.get(field) and saved.get(field)
    return [*names, "weights"] if known and ours[field] != saved[field] else names


def _dtype(model: nn.Module) -> str:
    """The narrowest floating dtype: some models keep a part in float32."""
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return str(min(dtypes, key=lambda dtype: (dtype.itemsize, str(dtype))))[6:]


def _essential(config: Any) -> Any:
    """A configuration, and those inside it, without what has no influence."""
    if not isinstance(config, dict):
        return config
    return {key: _essential(value) for key, value in config.items() if key not in _INCIDENTAL}


def _tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor], str]:
    """Parameters and buffers of a model by name, those of its active adapters, and the scales of these."""
    active: dict[str, list[str]] = {}  # where a layer of peft keeps adapters, and which are active
    scales = []
    for name, module in model.named_modules():
        if hasattr(module, "adapter_layer_names") and hasattr(module, "disable_adapters"):
            adapters = [] if module.disable_adapters else list(module.active_adapters)
            active |= {f"{name}.{part}": adapters for part in module.adapter_layer_names}
            scale = getattr(module, "scaling", {})
            scales += [(_plain(name), adapter, str(scale.get(adapter))) for adapter in adapters]
    own, adapted = {}, {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        parts = name.split(".")
        above = {".".join(parts[:end]): part for end, part in enumerate(parts)}
        holder = next((path for path in above if path in active), None)
        if holder is None:
            own[_plain(name)] = tensor
        elif above[holder] in active[holder]:
            adapted[_plain(name)] = tensor
    return own, adapted, json.dumps(scales) if scales else ""


def _plain(name: str) -> str:
    """Name of a parameter or module as it is without peft."""
    return name.replace(".base_layer", "").replace(".original_module", "").removeprefix("base_model.model.")


def _checksum(tensors: Mapping[str, Tensor], dtype: torch.dtype | None, more: str = "") -> str:
    content = hashlib.sha256(more.encode())
    for name, tensor in sorted(tensors.items()):
        rounded = tensor.detach().to(dtype if tensor.is_floating_point() else None)
        content.update(f"{name} {rounded.dtype} {list(rounded.shape)}".encode())
        content.update(rounded.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return content.hexdigest()
