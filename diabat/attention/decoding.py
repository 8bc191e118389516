"""The state of decoding: keys and values of the tokens so far."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from diabat.checks import ArgumentError, ArgumentTypeError


@dataclass(frozen=True, eq=False)
class DecodingState:
    """Keys and values that the next query of a layer can see, S of them.

    ``BoltzmannAttention.step`` returns a new state and leaves the old one as it is, so that several continuations can
    start from one state.

    Attributes:
        keys: [B, H, S, d], rotated if the layer uses rotary positions.
        values: [B, H, S, d].
        key_mask: bool [B, S], False at padding; None without padding.
        position: Position of the next token, int64 [].
    """

    keys: Tensor
    values: Tensor
    key_mask: Tensor | None
    position: Tensor

    @classmethod
    def empty(cls, keys: Tensor, values: Tensor) -> DecodingState:
        """The state before the first token, for keys and values of this batch and precision."""
        zero = torch.zeros((), dtype=torch.int64, device=keys.device)
        return cls(keys[..., :0, :], values[..., :0, :], None, zero)

    def reorder(self, rows: Tensor) -> DecodingState:
        """Select sequences, e.g. the beams that survive; rows int64 [B'] (else ValueError) are those they continue."""
        if not isinstance(rows, Tensor) or rows.dtype != torch.int64 or rows.ndim != 1:
            got = f"{rows.dtype} {list(rows.shape)}" if isinstance(rows, Tensor) else type(rows).__name__
            raise ArgumentError("rows", "int64 [B]", got)
        key_mask = None if self.key_mask is None else self.key_mask[rows]
        return DecodingState(self.keys[rows], self.values[rows], key_mask, self.position)

    def to(self, device: torch.device | str) -> DecodingState:
        """Move all tensors."""
        key_mask = None if self.key_mask is None else self.key_mask.to(device)
        return DecodingState(self.keys.to(device), self.values.to(device), key_mask, self.position.to(device))

    def extended(self, keys: Tensor, values: Tensor, longest: int | None) -> DecodingState:
        """Append keys and values of new tokens, [B, H, Q, d], and keep the last ``longest``."""
        count, key_mask = keys.shape[-2], self.key_mask
        k, v = torch.cat((self.keys, keys), -2), torch.cat((self.values, values), -2)
        key_mask = None if key_mask is None else F.pad(key_mask, (0, count), value=True)
        return DecodingState(k, v, key_mask, self.position + count).last(longest)

    def last(self, count: int | None) -> DecodingState:
        """Keep the last ``count`` keys, or all of them."""
        if count is None or self.keys.shape[-2] <= count:
            return self
        first = self.keys.shape[-2] - count
        key_mask = None if self.key_mask is None else self.key_mask[:, first:]
        return DecodingState(self.keys[:, :, first:], self.values[:, :, first:], key_mask, self.position)


def check_state(x: Tensor, state: DecodingState | None, num_heads: int, embed_dim: int) -> None:
    """Refuse anything but one token of every sequence of a state; ValueError names the argument."""
    if x.shape[1] != 1:
        raise ArgumentError("x", f"one token of every sequence, [B, {embed_dim}]", list(x.shape))
    if state is None:
        return
    if not isinstance(state, DecodingState):
        raise ArgumentTypeError("state", "a DecodingState or None", type(state).__name__)
    expected = (x.shape[0], num_heads, embed_dim // num_heads)
    batch, heads, _, features = state.keys.shape
    if (batch, heads, features) != expected:
        keys = f"keys [{expected[0]}, {num_heads}, S, {expected[2]}] for this token"
        raise ArgumentError("state", keys, list(state.keys.shape))
