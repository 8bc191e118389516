"""Windows of all queries of a pass, without scores of other keys: of what a mask shows, or plain causal ones."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from diabat.attention.head_axis import repeated
from diabat.attention.streaming import FarKeys
from diabat.attention.windows import gathered, products_by_query, visible_slots, window_mix, window_scores


class Windows(NamedTuple):
    """The last T visible keys of every query; * is [B or 1, H or 1, Q].

    Attributes:
        keys: The key in each slot, int64 [*, T]; None under a causal mask without padding.
        filled: Whether there is a visible key in the slot, bool [*, T] or [Q, T].
        far: The keys before them.
    """

    keys: Tensor | None
    filled: Tensor
    far: FarKeys

    @classmethod
    def causal(cls, queries: int, size: int, device: torch.device) -> Windows:
        """Those of a causal mask without padding."""
        return cls(None, visible_slots(queries, size, None, device), FarKeys(1 - size))

    @classmethod
    def of(cls, keys: Tensor, filled: Tensor, visible: Tensor, bias: Tensor | None) -> Windows:
        """Those of a mask [*, K]; visible keys fill the slots from the last one."""
        return cls(keys, filled, FarKeys(torch.where(filled, keys, 0)[..., 0], visible, bias))

    def scores(self, q: Tensor, key: Tensor, softcap: float | None) -> Tensor:
        """Scores of slots, [B, H, Q, T], of queries [B, H, Q, D] and keys [B, H_kv, K, D]."""
        if self.keys is None:
            scores = window_scores(q, repeated(key, q.shape[1] // key.shape[1]), self.filled.shape[-1])
        else:
            scores = products_by_query(q, self._states(key, q.shape[1]).mT)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if self.far.bias is not None and self.keys is not None:
            scores = scores + self.far.bias.gather(-1, self.keys)
        return scores

    def mixed(self, weights: Tensor, value: Tensor) -> Tensor:
        """Mixed values [B, H, Q, d] of weights of slots, [B, H, Q, T], and values [B, H_kv, K, d]."""
        heads = weights.shape[1]
        if self.keys is None:
            return window_mix(weights, repeated(value, heads // value.shape[1]), weights.shape[-1])
        return products_by_query(weights, self._states(value, heads))

    def _states(self, states: Tensor, heads: int) -> Tensor:
        assert self.keys is not None
        own = self.keys.shape[1] > 1  # a mask for each query head
        return gathered(repeated(states, heads // states.shape[1]) if own else states, self.keys)
