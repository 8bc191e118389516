"""The window of every query, found from the mask: its last visible key and the T-1 visible keys before it.

Positions in the cache have no meaning here, so that static caches, padding on either side, sliding windows, packed
sequences and prompts in chunks need no rules of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Masks hold 0 or the smallest number of their dtype; some people write -1e4.
_HIDDEN = -1e4


@dataclass(frozen=True)
class KeyWindows:
    """What the queries of a mask see; * is [B or 1, H or 1, Q].

    Attributes:
        bias: Added to scores, [*, K]: the smallest number of its dtype at keys that are not visible.
        keys: The key in each slot of the window, int64 [*, T], different ones in each row.  Slots are in the order of
            keys, and the last one is the last visible key.
        seen: Whether there is a visible key in the slot, bool [*, T].  Visible keys fill the slots from the last one.
        visible: bool [*, K]; all keys in rows without a visible key, where eager attention is uniform.
    """

    bias: Tensor
    keys: Tensor
    seen: Tensor
    visible: Tensor


def find_windows(mask: Tensor, window: int, dtype: torch.dtype, *, far: bool) -> KeyWindows:
    """Find the last ``window`` visible keys of every query.

    Args:
        mask: [B or 1, H or 1, Q, K]; bool, True where a key is visible, or a floating mask that is added to scores.
        window: T; at most K slots are used.
        dtype: Of the scores.
        far: Whether keys before the window are visible.
    """
    visible = mask if mask.dtype == torch.bool else mask > _HIDDEN
    number = mask.shape[-1]
    position = torch.arange(number, device=mask.device, dtype=torch.int32)
    # Hidden keys come after all visible ones, as other numbers, so that no key is in two slots.
    last = torch.where(visible, position, position - number).topk(min(window, number)).values.flip(-1)
    seen = last >= 0
    keys = torch.where(seen, last, last + number).long()
    if not far:
        visible = torch.zeros_like(visible).scatter(-1, keys, seen)
    added = torch.zeros((), dtype=dtype, device=mask.device) if mask.dtype == torch.bool else mask.to(dtype)
    bias = torch.where(visible, added, torch.finfo(dtype).min)
    return KeyWindows(bias, keys, seen, visible | ~seen.any(-1, keepdim=True))
