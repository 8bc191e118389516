"""The state of decoding: keys and values of the tokens so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from diabat.checks import ArgumentError, ArgumentTypeError


class _Buffer:
    """Memory behind the states of one sequence of steps, of which each state sees a beginning.

    Whoever continues a state at its end may write behind it, once: what a state sees never changes.

    Attributes:
        keys, values: [B, H, capacity, d].
        key_mask: [B, capacity], True behind the first state: new tokens are not padding; None without padding.
        end: The number of keys after which it has free space, or nothing while it is being written.
    """

    def __init__(self, state: DecodingState, capacity: int) -> None:
        count = state.keys.shape[-2]
        self.keys, self.values = (
            t.new_empty(*t.shape[:2], capacity, t.shape[-1]) for t in (state.keys, state.values)
        )
        mask = state.key_mask
        self.key_mask = None if mask is None else F.pad(mask, (0, capacity - count), value=True)
        self.end = [count]
        self.write(0, state.keys, state.values)

    def claim(self, count: int) -> bool:
        """Whether the caller may write behind the first ``count`` keys."""
        try:
            self.end.remove(count)  # one operation, also between threads
        except ValueError:
            return False
        return True

    def write(self, first: int, keys: Tensor, values: Tensor) -> None:
        """Write keys from ``first`` on."""
        part = slice(first, first + keys.shape[-2])
        # Through `data`: tensors that autograd has saved are other parts of this memory.
        self.keys.data[..., part, :] = keys
        self.values.data[..., part, :] = values


@dataclass(frozen=True, eq=False)
class DecodingState:
    """Keys and values that the next query of a layer can see, S of them.

    ``BoltzmannAttention.step`` returns a new state and leaves the old one as it is, so that several continuations can
    start from one state.  Without gradients, long states share their memory.  A step copies the keys only if another
    one has continued the same state before, or when the memory is full; then it doubles the memory.

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
    _buffer: _Buffer | None = field(default=None, repr=False)

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
        if longest is None and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return self._grown(keys, values)
        count, key_mask = keys.shape[-2], self.key_mask
        first = 0 if longest is None else max(0, self.keys.shape[-2] + count - longest)
        k = torch.cat((self.keys[:, :, first:], keys), -2)
        v = torch.cat((self.values[:, :, first:], values), -2)
        if key_mask is not None:
            key_mask = F.pad(key_mask[:, first:], (0, count), value=True)
        return DecodingState(k, v, key_mask, self.position + count)

    def _grown(self, keys: Tensor, values: Tensor) -> DecodingState:
        """Append keys in the memory of this state if it has space, else in new memory of twice the size."""
        count, buffer = self.keys.shape[-2], self._buffer
        end = count + keys.shape[-2]
        # Tensors of inference mode cannot be written outside of it.
        foreign = buffer is not None and buffer.keys.is_inference() and not torch.is_inference_mode_enabled()
        if buffer is None or foreign or end > buffer.keys.shape[-2] or not buffer.claim(count):
            buffer = _Buffer(self, 2 * end)
            buffer.claim(count)
        buffer.write(count, keys, values)
        buffer.end.append(end)
        k, v = buffer.keys[:, :, :end], buffer.values[:, :, :end]
        key_mask = None if buffer.key_mask is None else buffer.key_mask[:, :end]
        return DecodingState(k, v, key_mask, self.position + keys.shape[-2], buffer)

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
