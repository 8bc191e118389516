"""The attention function behind ``attn_implementation="boltzmann"``."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diabat.huggingface.attention import UNKNOWN, repeated
from diabat.huggingface.boltzmann.heads import BoltzmannHeads
from diabat.huggingface.boltzmann.windows import find_windows
from diabat.samplers.base import UnsupportedError

NAME = "boltzmann"
"""Of the attention implementation, and of the submodule with the couplings."""


def boltzmann_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    r"""Attend with the couplings of a module; scores and marginals are computed in float32 or more.

    Args:
        module: The attention module; its submodule ``boltzmann`` has the couplings.
        query: [B, H, Q, D].
        key: Past and present, [B, H_kv, K, D] with H a multiple of H_kv.
        value: Likewise.
        attention_mask: [B or 1, 1 or H, Q, K], bool, True where a key is visible; or floating, added to the scores.
        scaling: Factor of the scores, 1/√D if None.
        dropout: Probability of leaving out a weight, in training.
        kwargs: What else a model passes on.

    Returns:
        Outputs [B, Q, H, D] and weights [B, H, Q, K].

    Raises:
        UnsupportedError: The module has no couplings, there is no mask, or the model needs another attention.
    """
    heads = module._modules.get(NAME)
    if heads is None:
        raise UnsupportedError(
            "attn_implementation",
            f"expected a model with couplings for {NAME!r}, got {type(module).__name__} without; call "
            "diabat.huggingface.convert(model).",
        )
    for name in (*UNKNOWN, "softcap"):
        if kwargs.get(name) is not None:
            raise UnsupportedError(
                name, f"expected None with attn_implementation {NAME!r}, which does not compute it."
            )
    if attention_mask is None:
        raise UnsupportedError(
            "attention_mask",
            f"expected a mask [B, 1, Q, K], from which attn_implementation {NAME!r} finds the window of every query, "
            "got None.",
        )
    groups = query.shape[1] // key.shape[1]
    wide = torch.promote_types(query.dtype, torch.float32)
    options = _options(heads)
    windows = find_windows(attention_mask, options.window, wide, far=options.far == "independent")
    with torch.autocast(query.device.type, enabled=False):
        scaled = query.to(wide) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        scores = scaled @ repeated(key.to(wide), groups).mT + windows.bias
        weights = heads(scores, windows)
    weights = F.dropout(weights.to(value.dtype), p=dropout, training=module.training)
    mixed = weights @ repeated(value, groups)
    return mixed.transpose(1, 2).contiguous(), weights


def _options(heads: nn.Module) -> Any:
    """The options of the couplings, which peft may have wrapped (``modules_to_save``)."""
    own = next(part for part in heads.modules() if isinstance(part, BoltzmannHeads))
    return own.options
