"""Couplings of the keys of a cache: a decoding step computes those of the new key only."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from diabat.attention.key_couplings import KeyCouplings


class CachedCouplings:
    """Couplings of the keys of the last pass, which a step takes over if it adds one key to the same ones.

    A cache holds values, from which couplings follow.  They are the same if values and parameters are: values are
    compared number by number, parameters by their version, which changes through ``.data`` leave as it is.  Without
    gradients the values of the last pass are kept until the next one, beside the cache.
    """

    def __init__(self) -> None:
        self._kept: _Kept | None = None

    def of(self, chain: KeyCouplings, value: Tensor, dtype: torch.dtype, queries: int) -> Tensor:
        """Couplings of every key with the w keys before it, [B, H, K, w].

        Args:
            chain: What they are.
            value: Values of the cache, [B, H_kv, K, D].
            dtype: Their precision, float32 or float64.
            queries: Tokens of this pass.
        """
        kept, self._kept = self._kept, None
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return chain(_tokens(value, dtype))[0]
        parameters = [p for p in (chain.distance, chain.first, chain.second) if p is not None]
        versions = [dtype, *((p.data_ptr(), p._version) for p in parameters)]
        if queries == 1 and kept is not None and kept.versions == versions and kept.precedes(value):
            new, features = chain(_tokens(value[:, :, -1:], dtype), kept.features)
            band = torch.cat((kept.band, new), 2)
            features = features if chain.bandwidth == 1 else torch.cat((kept.features, features), 2)
        else:
            band, features = chain(_tokens(value, dtype))
        if not value.is_inference():  # such tensors have no version
            features = features[:, :, -chain.bandwidth :]
            self._kept = _Kept(value, value._version, band, features, versions)
        return band


class _Kept(NamedTuple):
    """Values of a pass and their version, couplings, features of the last w keys, and versions of the parameters."""

    value: Tensor
    version: int
    band: Tensor
    features: Tensor
    versions: list[Any]

    def precedes(self, value: Tensor) -> bool:
        """Whether ``value`` are the values of this pass, which have not changed, and those of one more key."""
        (batch, heads, keys, size), before = value.shape, self.value
        if before.shape != (batch, heads, keys - 1, size) or before.dtype != value.dtype:
            return False
        return before._version == self.version and torch.equal(value[:, :, :-1], before)


def _tokens(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Values of all heads of a token, [B, K, H_kv D]."""
    return value.transpose(1, 2).flatten(2).to(dtype)
