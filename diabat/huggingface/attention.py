"""The attention function behind ``attn_implementation="gac"``: calibrated where a module says so, else eager."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diabat.attention.heads.attention import eager
from diabat.attention.heads.calibration import Calibration, calibrate
from diabat.extras import extra
from diabat.huggingface.column_sums import known_sums, remember_sums
from diabat.samplers.base import UnsupportedError

NAME = "gac"
STATE = "diabat_calibrated"
"""Attribute of an attention module that is calibrated."""
CACHE = "diabat_cache"
"""Argument in which the hook of such a module hands on the cache."""
# Arguments of other attentions; ignoring one would change the model silently.
UNKNOWN = ("s_aux", "sinks", "position_bias", "indices", "block_indices")
# Masks hold 0 or the least number of their dtype; some people write -1e4.
_HIDDEN = -1e4


@dataclass(frozen=True)
class Calibrated:
    """The calibration of one attention module.

    Attributes:
        calibration: α, β, rows, redistribution.
        heads: The query heads outside the salient group.
        layer: Its index in the cache.
    """

    calibration: Calibration
    heads: tuple[int, ...]
    layer: int


def register_gac() -> None:
    """Make ``attn_implementation="gac"`` known to transformers; twice does no harm.

    Raises:
        ImportError: If the extra ``hf`` is not installed.
    """
    interface = extra("transformers").AttentionInterface
    masks = extra("transformers.masking_utils")
    interface.register(NAME, gac_attention)
    # Without a mask function of this name there is no mask, and attention is not causal.
    masks.AttentionMaskInterface.register(NAME, masks.eager_mask)


def gac_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    r"""Attention softmax(c(scaling Q Kᵀ) + mask) V with calibrated maps; ``eager`` if the module is not calibrated.

    c(x) = softcap tanh(x / softcap), as Gemma 2 has it; c(x) = x without a soft cap.

    Args:
        module: The attention module; `STATE` holds its calibration.
        query: [B, H, Q, D].
        key: Past and present, [B, H_kv, K, D] with H a multiple of H_kv.
        value: Likewise.
        attention_mask: Added to the scores, 0 where a key is visible, floating [B or 1, 1 or H, Q, K].
        scaling: Factor of the scores, 1/√D if None.
        dropout: Probability of leaving out a weight, in training.
        softcap: Bound of the scores before the mask is added; None for none.
        kwargs: The cache under `CACHE`, and what else a model passes on.

    Returns:
        Outputs [B, Q, H, D] and weights [B, H, Q, K].

    Raises:
        UnsupportedError: The model wants more of its attention than this, or the cache does not fit.
    """
    state: Calibrated | None = vars(module).get(STATE)
    if state is None:
        capped = {} if softcap is None else {"softcap": softcap}
        return eager(module)(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **capped, **kwargs
        )
    for name in UNKNOWN:
        if kwargs.get(name) is not None:
            raise UnsupportedError(
                name, f"expected None with attn_implementation {NAME!r}, which does not compute it."
            )
    groups = query.shape[1] // key.shape[1]
    keys, values = repeated(key, groups), repeated(value, groups)
    scores = torch.matmul(query, keys.transpose(2, 3)) * (
        query.shape[-1] ** -0.5 if scaling is None else scaling
    )
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap  # rounds as eager attention does
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = F.softmax(scores, dim=-1, dtype=torch.float32)
    weights = _calibrated(state, weights, attention_mask, kwargs)
    weights = F.dropout(weights.to(query.dtype), p=dropout, training=module.training)
    return torch.matmul(weights, values).transpose(1, 2).contiguous(), weights


def repeated(states: Tensor, groups: int) -> Tensor:
    """Keys or values for every query head, [B, H_kv, K, D] to [B, H, K, D]."""
    return states if groups == 1 else states.repeat_interleave(groups, 1)


def _calibrated(state: Calibrated, weights: Tensor, mask: Tensor | None, kwargs: dict[str, Any]) -> Tensor:
    """Calibrate the heads outside the salient group, float32 [B, H, Q, K]."""
    if mask is None or not mask.is_floating_point():
        got = "None" if mask is None else mask.dtype
        raise UnsupportedError(
            "attention_mask", f"expected a floating mask [B, 1, Q, K] for calibrated attention, got {got}."
        )
    batch, heads, rows, columns = weights.shape
    cache = kwargs.get(CACHE)
    past = known_sums(cache, state.layer, state.heads, batch, rows, columns)
    visible = (mask > _HIDDEN).expand(batch, -1, -1, -1)
    whole = len(state.heads) == heads
    at = torch.tensor(state.heads, device=weights.device)
    if visible.shape[1] > 1 and not whole:
        visible = visible.index_select(1, at)
    part = weights if whole else weights.index_select(1, at)
    part, sums = calibrate(part, visible, state.calibration, past)
    remember_sums(cache, state.layer, state.heads, sums)
    return part if whole else weights.index_copy(1, at, part)
