"""Couplings of the keys of a cache: a decoding step computes those of the new key only."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from diabat.attention.chain import same_tokens
from diabat.attention.chain_couplings import Band, ChainCouplings
from diabat.samplers.folding import is_traced


class CachedCouplings:
    """Couplings of the keys of the last pass, which a step takes over if it adds one key to the same ones.

    A cache holds values, from which couplings follow.  They are the same if values and parameters are: values are
    compared number by number, parameters by their version, which changes through ``.data`` leave as it is.  Without
    gradients the values of the last pass are kept until the next one, beside the cache.
    """

    def __init__(self) -> None:
        self._kept: list[_Kept] = []

    def __reduce__(self) -> Any:
        """Copies and files of a model start without the values of its last pass."""
        return CachedCouplings, ()

    def of(self, chain: ChainCouplings, value: Tensor, dtype: torch.dtype, queries: int) -> Band:
        """Couplings of every key with the w keys before it, [B, H, K, w], and features of the last w keys.

        Args:
            chain: What they are.
            value: Values of the cache, [B, H_kv, K, D].
            dtype: Their precision, float32 or float64.
            queries: Tokens of this pass.
        """
        try:
            kept = self._kept.pop()  # one operation, also between threads: the last pass is continued once
        except IndexError:
            kept = None
        if torch.is_grad_enabled() or is_traced():
            every: Band = chain(_tokens(value, dtype))
            return every
        parameters = (p for p in chain._parameters.values() if p is not None)
        versions = [dtype, *((p.data_ptr(), p._version) for p in parameters)]
        if queries == 1 and kept is not None and kept.versions == versions and kept.precede(value):
            past = kept.band.features
            new, features = chain(_tokens(value[:, :, -1:], dtype), past)
            values = torch.cat((kept.band.values, new), 2)
            if past is not None and chain.bandwidth > 1:
                features = torch.cat((past, features), 2)[:, :, -chain.bandwidth :]
        else:
            values, features = chain(_tokens(value, dtype))
            features = features[:, :, -chain.bandwidth :]
        band = Band(values, features)
        if not (value.is_inference() or torch.is_inference_mode_enabled()):  # such tensors have no version
            self._kept = [_Kept(value, value._version, band, versions)]
        return band


class _Kept(NamedTuple):
    """Values of a pass and their version, couplings, and versions of the parameters."""

    value: Tensor
    version: int
    band: Band
    versions: list[Any]

    def precede(self, value: Tensor) -> bool:
        """Whether ``value`` are the values of this pass, which have not changed, and those of one more key."""
        (batch, heads, keys, size), before = value.shape, self.value
        if (before.shape, before.dtype) != ((batch, heads, keys - 1, size), value.dtype):
            return False
        if before._version != self.version:
            return False
        return same_tokens(value, before) if value.is_cpu else torch.equal(value[:, :, :-1], before)


def _tokens(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Values of all heads of a token, [B, K, H_kv D]."""
    return value.transpose(1, 2).flatten(2).to(dtype)
