r"""What each query sees: which keys, in which slots of its window, which before it, and what a mask adds to scores.

One description serves a causal rule, padding on either side, any mask, a cache and chunks of queries.  Queries are the
last Q of S keys.  A rule is kept as a rule, so that kernels need no matrix [Q, S]; a mask that is one becomes it.
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from diabat.attention.head_axis import head_products, repeated
from diabat.attention.streaming import FarKeys
from diabat.attention.windows import (
    gathered,
    products_by_query,
    slot_keys,
    slots_to_keys,
    window_mix,
    window_scores,
)
from diabat.samplers.folding import is_traced
from diabat.samplers.kept import kept

_KINDS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LEAST = torch.tensor([torch.finfo(kind).min for kind in _KINDS], dtype=torch.float64, device="cpu")
# By dtype of a mask, rising: -inf, and the lowest numbers of its dtype and of those that it may have been cast from.
_HIDING = {kind: sorted({-math.inf, *_LEAST.to(kind).tolist()}) for kind in _KINDS}
_DOUBTFUL = -1e4
"""Numbers below it are written to hide a key, which they do not."""


def visible_in(mask: Tensor) -> Tensor:
    """The keys that a mask leaves visible, bool in its shape: the one rule for all masks.

    The mask is bool, True where a key is visible, or floating.  Then -inf and the lowest number of its dtype, or of
    float16, bfloat16, float32 or float64, from which it may have been cast, hide a key.
    """
    if mask.dtype == torch.bool:
        return mask
    numbers = _HIDING[mask.dtype]
    if mask.is_cpu and mask.numel() and not is_traced():
        # Most masks have one such number, which is seen by its size in a third of the time.
        values, low = mask.detach(), mask <= numbers[-1]
        if (least := float(values.min())) in numbers and least == float(values.where(low, -math.inf).max()):
            return ~low
    hidden = mask == numbers[0]
    for number in numbers[1:]:
        hidden = hidden | (mask == number)  # not of NaN, so that it is reported
    return ~hidden


def read_mask(name: str, mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """The keys that a mask leaves visible, see `visible_in`, and what it adds to scores, 0 at other keys, or None.

    A number that is added but was hardly meant so is named in a warning, on the CPU; not in graphs and transforms.
    """
    seen = visible_in(mask)
    if seen is mask:
        return mask, None
    added = torch.where(seen, mask, 0)
    if is_traced() or not (mask.is_cpu and added.numel()):
        return seen, added
    least, most = float(added.detach().min()), float(added.detach().max())
    if least < _DOUBTFUL:
        warnings.warn(
            f"{name}: {least:g} is added to scores and hides no key: its spin still acts on those coupled to it; use "
            "bool or -inf to hide it.",
            UserWarning,
            stacklevel=2,
        )
    return seen, None if least == most == 0 and not added.requires_grad else added


class Visible(NamedTuple):
    """What Q queries see of S keys.

    Attributes:
        queries, keys: Q and S.
        causal: Query i sees no key after S - Q + i.
        key_mask: Keys that are not padding, bool [B or 1, S]; None for all.
        mask: Visible keys, bool, broadcastable to [B, H, Q, S], in place of ``causal`` and ``key_mask``; or None.
        bias: Added to scores, likewise; or None.
        ends: With ``causal`` and ``key_mask``, the last key of each sequence, int64 [B]: the windows of later queries
            end there, as those of a mask do; None if they end at the query.
    """

    queries: int
    keys: int
    causal: bool = False
    key_mask: Tensor | None = None
    mask: Tensor | None = None
    bias: Tensor | None = None
    ends: Tensor | None = None

    @classmethod
    def of(cls, mask: Tensor, bias: Tensor | None = None) -> Visible:
        """From visible keys, bool [B or 1, H or 1, Q, S], and what is added to scores, likewise, 0 at other keys.

        A causal mask with padding on the left that adds nothing becomes the rule by which it is faster, of all queries
        also with padding on the right; on the CPU, as its numbers are read, and not in graphs and transforms.
        """
        queries, keys = mask.shape[-2:]
        if is_traced() or not mask.is_cpu:
            return cls(queries, keys, mask=mask, bias=bias)
        if queries and keys and bias is None:
            last = mask[:, 0, -1]
            full, left = bool(last.all()), bool(last[:, -1].all())
            rule = cls(queries, keys, True, None if full else last.clone())
            together = full or ((queries == keys or left) and _has_no_holes(last))
            one = queries == mask.shape[1] == 1
            if together and (one or torch.equal(rule.rows(mask.device).expand(mask.shape), mask)):
                return rule if left else rule._replace(ends=keys - 1 - last.flip(-1).int().argmax(-1))
        return cls(queries, keys, mask=mask, bias=bias)

    @property
    def is_rule(self) -> bool:
        """Whether nothing but ``causal`` and ``key_mask`` says what is seen."""
        return self.mask is None and self.bias is None

    def rows(self, device: torch.device) -> Tensor:
        """Visible keys of all queries, bool, broadcastable to [B, H, Q, S]."""
        if self.mask is not None:
            return self.mask
        seen = torch.ones(self.queries, self.keys, dtype=torch.bool, device=device)
        if self.causal:
            seen = seen.tril(self.keys - self.queries)
        return seen if self.key_mask is None else seen & self.key_mask[:, None, None]

    def absolute(self, device: torch.device) -> Windows:
        """All keys as slots: couplings are between absolute positions."""
        if self.is_rule and self.key_mask is None and not is_traced():
            return _kept_windows(self.queries, self.keys, self.causal, None, device, False)
        return Windows(None, self.rows(device), False, 0, None, self.bias)

    def windows(self, size: int, device: torch.device, *, far: bool) -> Windows:
        """The last T visible keys of every query, T = min(size, S), as slots; with ``far`` also those before them.

        Of a rule slots are positions up to the query, or to ``ends``, and padding leaves its slots empty.
        """
        if not self.is_rule or self.key_mask is not None or is_traced():
            return self._windows(size, device, far=far)
        if self.queries == 1:  # whose keys are one more at every token
            rule = Rule(1, min(size, self.keys), True, size)
            return self._windows(size, device, far=far)._replace(rule=rule)
        return _kept_windows(self.queries, self.keys, self.causal, size, device, far)

    def _windows(self, size: int, device: torch.device, *, far: bool) -> Windows:
        queries, keys = self.queries, self.keys
        # Exported graphs are of any length: their slots before the first key are empty.
        size = size if torch.compiler.is_exporting() else min(size, keys)
        if not self.is_rule or not (self.causal or queries == 1):
            return self._of_mask(size, device, far=far)
        seen = None if self.key_mask is None else self.key_mask[:, None, None]
        if self.ends is not None:
            return self._to_ends(size, self.ends, far=far)
        if queries == keys:
            before = FarKeys(1 - size, seen) if far else None
            return Windows(None, _filled(keys, size, self.key_mask, device), True, 0, before)
        before = FarKeys(keys - queries + 1 - size, seen) if far else None
        if queries == 1:
            own = _slots(1, size, size, device) if seen is None else seen[..., keys - size :]
            return Windows(None, own, False, keys - size, before)
        places = slot_keys(queries, keys, size, device)
        filled = places >= 0
        at = places.clamp_min(0)
        if self.key_mask is not None:
            filled = (filled & self.key_mask[:, at])[:, None]
        return Windows(at[None, None], filled, False, 0, before, None, places[None, :, 0])

    def _to_ends(self, size: int, ends: Tensor, *, far: bool) -> Windows:
        """Windows of a rule that end at the query, or at the last key of its sequence."""
        assert self.key_mask is not None
        place = torch.arange(self.keys, device=ends.device)
        first = torch.minimum(place[self.keys - self.queries :], ends[:, None]) + 1 - size
        places = first[..., None] + place[:size]
        at = places.clamp_min(0)
        filled = (places >= 0) & self.key_mask[torch.arange(len(ends), device=ends.device)[:, None, None], at]
        before = FarKeys(first[:, None], self.key_mask[:, None, None]) if far else None
        return Windows(at[:, None], filled[:, None], False, 0, before, None, first)

    def _of_mask(self, size: int, device: torch.device, *, far: bool) -> Windows:
        seen = self.rows(device)
        place = torch.arange(self.keys, device=device, dtype=torch.int32)
        # Hidden keys come after all visible ones, as other numbers, so that no key is in two slots.
        last = torch.where(seen, place, place - self.keys).topk(size).values.flip(-1)
        filled = last >= 0
        at = torch.where(filled, last, last + self.keys).long()
        at, filled = (t.reshape(*(1,) * (4 - t.ndim), *t.shape) for t in (at, filled))
        before = FarKeys(torch.where(filled, at, 0)[..., 0], seen, self.bias) if far else None
        return Windows(at, filled, False, 0, before, self.bias)


class Windows(NamedTuple):
    """Keys in the T slots of every query.

    Attributes:
        at: The key in each slot, int64 [B or 1, H or 1, Q or 1, T]; None for a rule.
        filled: Whether there is a visible key in the slot, bool, broadcastable to [B, H, Q, T].
        moves: Slot t of query i is the key i - T + 1 + t; else, without ``at``, the key ``first`` + t.
        first: The key in the first slot.
        far: Visible keys before the window that count; None for none.
        bias: Added to scores of keys, broadcastable to [B, H, Q, S]; or None.
        starts: With ``at`` whose keys stand together, the first of each query, int64 [B or 1, Q], negative before the
            first key; or None.
        rule: What ``filled`` follows from, and of several queries all slots; None where they do not.
    """

    at: Tensor | None
    filled: Tensor
    moves: bool
    first: int
    far: FarKeys | None = None
    bias: Tensor | None = None
    starts: Tensor | None = None
    rule: Rule | None = None

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Products of queries [B, H, Q, E] with the keys of their slots, of [B, H_kv, S, E]; [B, H, Q, T]."""
        size, groups = self.filled.shape[-1], q.shape[1] // k.shape[1]
        if self.at is not None:
            return products_by_query(q, self._states(k, q).mT)
        if self.moves:
            return window_scores(q, repeated(k, groups), size)
        return head_products(q, k[..., self.first : self.first + size, :].mT)

    def added(self, scores: Tensor) -> Tensor:
        """Scores of slots with what a mask adds to them."""
        if self.bias is None:
            return scores
        bias = self.bias.to(scores)
        return scores + (bias if self.at is None else _taken(bias, self.at))

    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        """Sums of values [B, H_kv, S, d] by weights of slots, [B, H, Q, T]; [B, H, Q, d]."""
        size, groups = weights.shape[-1], weights.shape[1] // v.shape[1]
        if self.at is not None:
            return products_by_query(weights, self._states(v, weights))
        if self.moves:
            return window_mix(weights, repeated(v, groups), size)
        return head_products(weights, v[..., self.first : self.first + size, :])

    def on_keys(self, slots: Tensor, keys: int) -> Tensor:
        """Numbers of slots, [B, H, Q, T], at their keys, [B, H, Q, S], 0 elsewhere."""
        if self.moves:
            return slots_to_keys(slots, keys)
        if self.at is None:
            return F.pad(slots, (self.first, keys - self.first - slots.shape[-1]))
        matrix = slots.new_zeros(*slots.shape[:-1], keys)
        return matrix.scatter_add(-1, self.at.expand(slots.shape), slots.masked_fill(~self.filled, 0))

    def _states(self, states: Tensor, rows: Tensor) -> Tensor:
        assert self.at is not None
        own = self.at.shape[1] > 1  # other keys in each query head
        at = self.at.expand(-1, -1, rows.shape[2], -1)
        return gathered(repeated(states, rows.shape[1] // states.shape[1]) if own else states, at)


class Rule(NamedTuple):
    """What windows of a rule without padding follow from.

    Attributes:
        queries, keys, causal: As in :class:`Visible`.
        size: T; None for all keys.
    """

    queries: int
    keys: int
    causal: bool
    size: int | None


def _has_no_holes(last: Tensor) -> bool:
    """Whether the visible keys of each row, bool [B, S], stand together."""
    begins = last[:, 1:] & ~last[:, :-1]
    return not bool(((begins.sum(-1) + last[:, :1].sum(-1)) > 1).any())


def _filled(keys: int, size: int, key_mask: Tensor | None, device: torch.device) -> Tensor:
    """Which slots of moving windows hold a visible key: bool [S, T], or [B, 1, S, T]."""
    if key_mask is None:
        return _slots(keys, keys, size, device)
    return F.pad(key_mask, (size - 1, 0)).unfold(-1, size, 1)[:, None]


@kept(lambda queries, keys, causal, size, device, far: 9 * queries * (keys if size is None else size))
def _kept_windows(
    queries: int, keys: int, causal: bool, size: int | None, device: torch.device, far: bool
) -> Windows:
    """The windows of a rule without padding; all keys for a size of None."""
    visible, rule = Visible(queries, keys, causal), Rule(queries, keys, causal, size)
    if size is None:
        return Windows(None, visible.rows(device), False, 0, None, None, rule=rule)
    return visible._windows(size, device, far=far)._replace(rule=rule)


@kept(lambda queries, keys, size, device: queries * size)
def _slots(queries: int, keys: int, size: int, device: torch.device) -> Tensor:
    """Which slots of windows without padding hold a key, bool [Q, T]."""
    return slot_keys(queries, keys, size, device) >= 0


def _taken(bias: Tensor, at: Tensor) -> Tensor:
    """Bias [B or 1, H or 1, Q or 1, S] of the keys ``at`` [*, T]."""
    shape = torch.broadcast_shapes(bias.shape[:-1], at.shape[:-1])
    return bias.expand(*shape, -1).gather(-1, at.expand(*shape, -1))
