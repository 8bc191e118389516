"""What every attention function of transformers needs: visible keys, keys for every query head, refused arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from diabat.samplers.capabilities import UnsupportedError

# Arguments of other attentions; ignoring one would change the model silently.
_OTHERS = ("s_aux", "sinks", "position_bias", "indices", "block_indices")
# Masks hold 0 or the least number of their dtype; some people write -1e4.
_HIDDEN = -1e4


def visible_keys(mask: Tensor) -> Tensor:
    """Which keys a mask leaves visible, bool in its shape; the mask is bool, True where visible, or added to scores."""
    return mask if not mask.is_floating_point() else mask > _HIDDEN


def refuse_others(implementation: str, arguments: Mapping[str, Any], *more: str) -> None:
    """Raise UnsupportedError for an argument that an attention function does not compute."""
    for name in (*_OTHERS, *more):
        if arguments.get(name) is not None:
            raise UnsupportedError(
                name, f"expected None with attn_implementation {implementation!r}, which does not compute it."
            )
