"""Sums over the rows so far, kept with the key/value cache that holds the columns they belong to.

They are an attribute of the cache: a new cache starts anew, a copy goes on from where the cache was, and they are freed
with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from diabat.attention.heads.calibration import ColumnSums
from diabat.extras import extra
from diabat.samplers.base import UnsupportedError

_SUMS = "diabat_column_sums"


@dataclass(frozen=True)
class _Kept:
    """The sums of one layer, of which heads, after how many tokens."""

    sums: ColumnSums
    heads: tuple[int, ...]
    tokens: int


def check_cache(cache: Any) -> None:
    """Refuse a cache that does not grow by concatenation.

    Raises:
        UnsupportedError: For a static cache, and for that of an encoder and a decoder.
    """
    if cache is None:
        return
    caches = extra("transformers.cache_utils")
    if isinstance(cache, caches.EncoderDecoderCache):
        raise UnsupportedError(
            "past_key_values", "expected the cache of a decoder, got an EncoderDecoderCache."
        )
    if any(isinstance(layer, caches.StaticLayer) for layer in cache.layers):
        raise UnsupportedError(
            "past_key_values",
            f"expected a dynamic cache for calibrated attention, got a static one ({type(cache).__name__}).",
        )


def known_sums(
    cache: Any, layer: int, heads: tuple[int, ...], batch: int, rows: int, columns: int
) -> ColumnSums | None:
    """Sums of the rows before these, over the columns before these.

    Args:
        cache: After the keys of the present rows went in, or None.
        layer: Which layer.
        heads: Of which heads.
        batch: Sequences B.
        rows: Present rows Q.
        columns: Keys K that they are given; fewer than all with a sliding window.

    Returns:
        Sums of K - Q columns; None if there were no rows before.

    Raises:
        UnsupportedError: If the cache holds tokens whose sums are not known.
    """
    before = columns - rows if cache is None else cache.get_seq_length(layer) - rows
    if before == 0:
        return None
    kept: _Kept | None = None if cache is None else vars(cache).get(_SUMS, {}).get(layer)
    if kept is None or kept.heads != heads:
        got = f"{before} tokens from before it" if kept is None else "one calibrated in other heads"
        raise UnsupportedError(
            "past_key_values", f"expected a cache filled with this calibration enabled, got {got}."
        )
    if kept.tokens != before:
        raise UnsupportedError(
            "past_key_values",
            f"expected the {kept.tokens} tokens that calibration has seen, got {before}: a cache cannot be cropped.",
        )
    if kept.sums.total.shape[0] != batch:
        raise UnsupportedError(
            "past_key_values",
            f"expected a batch of {kept.sums.total.shape[0]} as at the last pass, got {batch}; "
            "use model._reorder_cache(cache, index) to repeat or select sequences.",
        )
    return kept.sums.last(columns - rows)


def remember_sums(cache: Any, layer: int, heads: tuple[int, ...], sums: ColumnSums) -> None:
    """Keep the sums of a layer for the next rows; without a cache there are none."""
    if cache is not None:
        vars(cache).setdefault(_SUMS, {})[layer] = _Kept(sums, heads, cache.get_seq_length(layer))


def reorder_cache(former: Callable[[Any, Tensor], Any] | None, cache: Any, index: Tensor) -> Any:
    """Take sequences of a batch from the cache and from its sums, as beam search asks ``model._reorder_cache`` to.

    Args:
        former: How the model does it for its cache; None if the cache does.
        cache: Keys, values and sums.
        index: Which sequences, integers; one may stand there several times.
    """
    if former is None:
        cache.reorder_cache(index)
    else:
        cache = former(cache, index)
    kept = vars(cache).get(_SUMS, {})
    for layer, of_layer in kept.items():
        kept[layer] = replace(of_layer, sums=of_layer.sums.select(index))
    return cache
