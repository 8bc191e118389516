r"""Keys before the window as spins without couplings.

Spins without couplings are independent of all others: alpha_j = sigmoid(2 h_j), odds exp(2 h_j).  Together with the
problem of the window this is the exact law of couplings that are zero beyond the window, at any distance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from diabat.attention.normalisation import masked_softmax, normalised_weights
from diabat.attention.windows import in_window, slot_keys, slots_of, with_slots_added

if TYPE_CHECKING:
    from diabat.attention.coupled import CoupledHeads


def weights_with_far(heads: CoupledHeads, scores: Tensor, visible: Tensor, *, zero: bool) -> Tensor:
    """Normalised weights of the last Q of S keys and of those before them, [B, H, Q, S].

    Args:
        heads: The layer.
        scores: [B, H, Q, S].
        visible: bool, broadcastable to the scores.
        zero: The mode has no fields, and the scores are 0.
    """
    if heads.mode == "softmax":
        return masked_softmax(scores, visible)
    queries, keys = scores.shape[-2:]
    window = min(heads.window, keys)
    in_slots = slots_of(visible, window)
    if heads.weighting == "odds":
        # Up to a constant of each query the logits are the scores, moved in the window by what the couplings add.
        logits = scores.masked_fill(~visible, torch.finfo(scores.dtype).min).log_softmax(-1)
        slots = slot_keys(scores, window).clamp_min(0)  # nothing moves in slots before the first key
        return heads._moved_softmax(logits, slots, in_slots, zero=zero).masked_fill(~visible, 0)
    near = heads._probabilities(slots_of(scores, window), in_slots, zero=zero)
    inside = in_window(queries, keys, window, scores.device)
    far = torch.sigmoid(2 * scores).masked_fill(inside, 0)
    return normalised_weights(with_slots_added(far, near), visible)
