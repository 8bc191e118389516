"""Couplings of the keys of a cache: a decoding step computes those of the new key only."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from diabat.attention.chain import same_tokens
from diabat.attention.key_couplings import KeyCouplings
from diabat.samplers.folding import transformed


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

    def of(self, chain: KeyCouplings, value: Tensor, dtype: torch.dtype, queries: int) -> Tensor:
        """Couplings of every key with the w keys before it, [B, H, K, w].

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
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or transformed():
            return chain(_tokens(value, dtype))[0]
        parameters = (p for p in chain._parameters.values() if p is not None)
        versions = [dtype, *((p.data_ptr(), p._version) for p in parameters)]
        if queries == 1 and kept is not None and kept.versions == versions and kept.precedes(value):
            new, features = chain(value[:, :, -1:].reshape(len(value), 1, -1).to(dtype), kept.features)
            memory = kept.extended(new, value.shape[2])
            if chain.bandwidth > 1:
                features = torch.cat((kept.features, features), 2)
        else:
            memory, features = chain(_tokens(value, dtype))
        if not (value.is_inference() or torch.is_inference_mode_enabled()):  # such tensors have no version
            features = features[:, :, -chain.bandwidth :]
            self._kept = [_Kept(value, value._version, memory, features, versions)]
        return memory[:, :, : value.shape[2]]


class _Kept(NamedTuple):
    """Values of a pass and their version, couplings, features of the last w keys, and versions of the parameters.

    The couplings are the beginning of a memory, [B, H, capacity, w].
    """

    value: Tensor
    version: int
    memory: Tensor
    features: Tensor
    versions: list[Any]

    def precedes(self, value: Tensor) -> bool:
        """Whether ``value`` are the values of this pass, which have not changed, and those of one more key."""
        (batch, heads, keys, size), before = value.shape, self.value
        if before.shape != (batch, heads, keys - 1, size) or before.dtype != value.dtype:
            return False
        if before._version != self.version:
            return False
        return same_tokens(value, before) if value.is_cpu else torch.equal(value[:, :, :-1], before)

    def extended(self, new: Tensor, keys: int) -> Tensor:
        """Memory with couplings of one more key; what passes before have seen of it does not change."""
        memory, (batch, heads, capacity, w) = self.memory, self.memory.shape
        if keys > capacity:
            memory = new.new_empty(batch, heads, 2 * keys, w)
            memory[:, :, : keys - 1] = self.memory[:, :, : keys - 1]
        memory[:, :, keys - 1 : keys] = new
        return memory


def _tokens(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Values of all heads of a token, [B, K, H_kv D]."""
    return value.transpose(1, 2).flatten(2).to(dtype)
