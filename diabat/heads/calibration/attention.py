"""The attention function behind ``attn_implementation="gac"``: calibrated where a module says so, else eager.

Sums over the rows so far are an attribute of the key/value cache that holds the columns they belong to: a new cache
starts anew, a copy goes on from where the cache was, and they are freed with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from diabat.attention.head_axis import repeated
from diabat.attention.streaming import block_rows
from diabat.extras import extra
from diabat.heads.calibration.mathematics import CALIBRATED, Calibration, ColumnSums, calibrate
from diabat.heads.games.ablation import eager
from diabat.huggingface.pretrained import GAC, refuse_others
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.folding import is_traced

NAME = GAC
CACHE = "diabat_cache"
"""Argument in which the hook of such a module hands on the cache."""
SUMS = "diabat_column_sums"
"""Attribute of a cache: its sums by layer."""

_SHORT = 128
"""Rows that one block holds whatever their number of columns: they need little memory, and are formed once."""
Formed = tuple[Tensor, ColumnSums, Tensor | None]
"""Outputs [B, H, R, D] of R rows, the sums of columns behind them, and weights [B, H, R, K]."""


@dataclass(frozen=True)
class CalibratedHeads:
    """The calibration of one attention module: its query heads outside the salient group, its index in the cache."""

    calibration: Calibration
    heads: tuple[int, ...]
    layer: int
    always_weights: bool = False
    """Whether the module forms weights although nobody asked, since it does not pass ``output_attentions`` on."""


@dataclass(frozen=True)
class _Kept:
    """The sums of one layer, of which heads, after how many tokens."""

    sums: ColumnSums
    heads: tuple[int, ...]
    tokens: int


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

    Queries are [B, H, Q, D], keys and values, past and present, [B, H_kv, K, D] with H a multiple of H_kv.  The mask,
    floating [B or 1, 1 or H, Q, K], is added to the scores, 0 where a key is visible.  `CALIBRATED` of the module holds
    its calibration, `CACHE` of the other arguments its cache.  ``scaling`` is 1/√D if None.

    Maps are formed for a block of rows at a time, which hands its sums of columns on to the next; for all rows at once
    if weights are asked for, rows see later columns, or averages are those of the prompt.

    Returns:
        Outputs [B, Q, H, D]; and weights [B, H, Q, K], None unless ``output_attentions`` asks for them.

    Raises:
        UnsupportedError: The model wants more of its attention than this, or the cache does not fit.
    """
    state: CalibratedHeads | None = vars(module).get(CALIBRATED)
    if state is None:
        kwargs |= {"scaling": scaling, "dropout": dropout} | ({} if softcap is None else {"softcap": softcap})
        return eager(module)(module, query, key, value, attention_mask, **kwargs)
    refuse_others(NAME, kwargs)
    if attention_mask is None or not attention_mask.is_floating_point():
        got = "None" if attention_mask is None else attention_mask.dtype
        raise UnsupportedError("attention_mask", "a floating mask [B, 1, Q, K] for calibrated attention", got)
    cache, asked = kwargs.get(CACHE), kwargs.get("output_attentions")
    (batch, heads, rows, size), columns = query.shape, key.shape[2]
    past = _sums_before(cache, state, batch, rows, columns)
    factor, rate = size**-0.5 if scaling is None else scaling, dropout if module.training else 0.0

    def form(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, past: ColumnSums | None) -> Formed:
        scores = torch.matmul(query, keys.transpose(2, 3)) * factor
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap  # rounds as eager attention does
        weights = F.softmax(scores + mask, dim=-1, dtype=torch.float32)
        weights, sums = _calibrated(state, weights, mask, past)
        weights = F.dropout(weights.to(query.dtype), p=rate)
        return torch.matmul(weights, values), sums, weights

    keys, values = (repeated(states, heads // states.shape[1]) for states in (key, value))
    tensors = query, keys, values, attention_mask, past
    shown = state.always_weights if asked is None else asked
    block = rows if shown else _rows_of_block(state.calibration, attention_mask, batch * heads * columns)
    out, sums, weights = form(*tensors) if block >= rows else _over_blocks(form, block, *tensors)
    if cache is not None:
        _sums(cache)[state.layer] = _Kept(sums, state.heads, cache.get_seq_length(state.layer))
    return out.transpose(1, 2).contiguous(), weights if shown else None


def _over_blocks(
    form: Callable[..., Formed], block: int,
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, past: ColumnSums | None,
) -> Formed:  # fmt: skip
    """What ``form`` gives, without weights; sums go from block to block, and a block needs the columns so far only."""
    (rows, columns), outputs = mask.shape[-2:], []
    for start in range(0, rows, block):
        stop = min(start + block, rows)
        part, end = (..., slice(start, stop), slice(None)), columns - rows + stop
        tensors = query[part], keys[:, :, :end], values[:, :, :end], mask[part][..., :end]
        out, past = _recomputed(lambda *arguments: form(*arguments)[:2], *tensors, past)
        outputs.append(out)
    # A row that sees nothing is uniform over all columns, but in a block over those so far.
    sees = _attended(mask).any(-1, keepdim=True)
    assert past is not None
    return torch.cat(outputs, 2).where(sees, values.mean(2, keepdim=True)), past, None


def _recomputed(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function and keep its arguments only: the backward pass calls it again, with the same dropout."""
    if is_traced() or not torch.is_grad_enabled():  # transforms of torch.func take no checkpoints
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False)


def _rows_of_block(calibration: Calibration, mask: Tensor, numbers: int) -> int:
    """Rows of a block, which need so many numbers each; all, if a row depends on later ones or on later columns."""
    rows, columns = mask.shape[-2:]
    block = block_rows(numbers, mask.device)
    if rows <= max(block, _SHORT) or calibration.rows == "prompt":
        return rows
    later = _attended(mask).triu(1 + columns - rows)
    return rows if bool(later.any()) else block


def hand_on_cache(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Forward pre-hook: the attention function gets keyword arguments, but not the cache.

    A cache that does not grow by concatenation is refused: a static one, and one of encoder and decoder.
    """
    cache = kwargs.get("past_key_values")
    if cache is not None:
        caches = extra("transformers.cache_utils")
        if isinstance(cache, caches.EncoderDecoderCache):
            raise UnsupportedError("past_key_values", "the cache of a decoder", "an EncoderDecoderCache")
        if any(isinstance(layer, caches.StaticLayer) for layer in cache.layers):
            got = f"a static one ({type(cache).__name__})"
            raise UnsupportedError("past_key_values", "a dynamic cache for calibrated attention", got)
    return args, {**kwargs, CACHE: cache}


def reorder_cache(former: Callable[[Any, Tensor], Any] | None, cache: Any, index: Tensor) -> Any:
    """Take sequences of a batch from the cache and from its sums, as beam search asks ``model._reorder_cache`` to.

    ``former`` does it for the keys and values, None if the cache does; in ``index`` one may stand several times.
    """
    if former is None:
        cache.reorder_cache(index)
    else:
        cache = former(cache, index)
    for layer, kept in _sums(cache).items():
        _sums(cache)[layer] = replace(kept, sums=kept.sums.select(index))
    return cache


def _attended(mask: Tensor) -> Tensor:
    """Which keys a floating mask leaves a weight of softmax, bool: -1e4 takes all of it."""
    return mask > -1e4


def _calibrated(
    state: CalibratedHeads, weights: Tensor, mask: Tensor, past: ColumnSums | None
) -> tuple[Tensor, ColumnSums]:
    """Calibrate the heads outside the salient group, float32 [B, H, R, K]."""
    heads = weights.shape[1]
    visible = _attended(mask).expand(len(weights), -1, -1, -1)
    part, at = weights, torch.tensor(state.heads, device=weights.device)
    some = len(at) < heads
    if some:
        part = weights.index_select(1, at)
        visible = visible.index_select(1, at) if visible.shape[1] > 1 else visible
    part, sums = calibrate(part, visible, state.calibration, past)
    return weights.index_copy(1, at, part) if some else part, sums


def _sums(cache: Any) -> dict[int, _Kept]:
    return vars(cache).setdefault(SUMS, {})


def _sums_before(
    cache: Any, state: CalibratedHeads, batch: int, rows: int, columns: int
) -> ColumnSums | None:
    """Sums of the rows before these Q, over the K - Q columns before them; None if there were no rows before.

    The keys of the present rows are in the cache; with a sliding window it holds more than the K that they are given.
    """
    before = columns - rows if cache is None else cache.get_seq_length(state.layer) - rows
    if before == 0:
        return None
    kept = None if cache is None else _sums(cache).get(state.layer)
    if kept is None or kept.heads != state.heads:
        got = f"{before} tokens from before it" if kept is None else "one calibrated in other heads"
        raise UnsupportedError("past_key_values", "a cache filled with this calibration enabled", got)
    if kept.tokens != before:
        expected = f"the {kept.tokens} tokens that calibration has seen"
        raise UnsupportedError("past_key_values", expected, f"{before}: a cache cannot be cropped")
    if kept.sums.total.shape[0] != batch:
        expected = f"a batch of {kept.sums.total.shape[0]} as at the last pass"
        got = f"{batch}; use model._reorder_cache(cache, index) to repeat or select sequences"
        raise UnsupportedError("past_key_values", expected, got)
    return kept.sums.last(columns - rows)
