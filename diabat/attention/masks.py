"""The masks of ``torch.nn.MultiheadAttention`` as visibility and as what is added to the fields."""

from __future__ import annotations

import torch
from torch import Tensor

from diabat.checks import ArgumentError


def attention_masks(
    shape: tuple[int, ...],
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    is_causal: bool,
    device: torch.device,
) -> tuple[Tensor, Tensor | None]:
    """Visible keys, and the sum of the float masks, of queries [B, H, L, S].

    Args:
        shape: (B, H, L, S).
        key_padding_mask: bool, True hides, or float, [B, S].
        attn_mask: bool or float, [L, S] or [B·H, L, S].
        is_causal: Hide the keys after the query if there is no ``attn_mask``.
        device: Where they go if there is no mask.

    Returns:
        bool, and float or None, both broadcastable to ``shape``.

    Raises:
        ValueError: If a mask is of another shape or dtype.
    """
    B, H, L, S = shape
    visible = torch.ones(L, S, dtype=torch.bool, device=device)
    added = None
    if attn_mask is not None:
        _check("attn_mask", attn_mask, ((L, S), (B * H, L, S)))
        per_head = attn_mask if attn_mask.ndim == 2 else attn_mask.view(B, H, L, S)
        visible, added = _split(per_head)
    elif is_causal:
        visible = visible.tril()
    if key_padding_mask is not None:
        _check("key_padding_mask", key_padding_mask, ((B, S),))
        seen, of_keys = _split(key_padding_mask[:, None, None, :])
        visible = visible & seen
        if of_keys is not None:
            added = of_keys if added is None else added + of_keys
    return visible, added


def _split(mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """What a mask leaves visible, and what it adds there."""
    if mask.dtype == torch.bool:
        return ~mask, None
    # Some libraries hide by the lowest number instead of -inf, to which a field would be added in vain.
    visible = ~(mask <= torch.finfo(mask.dtype).min)  # a NaN hides nothing: it is to be seen
    return visible, torch.where(visible, mask, 0)


def _check(name: str, mask: Tensor, shapes: tuple[tuple[int, ...], ...]) -> None:
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ArgumentError(name, f"expected dtype bool or float, got {mask.dtype}.")
    if all(tuple(mask.shape) != shape for shape in shapes):
        expected = " or ".join(str(list(shape)) for shape in shapes)
        raise ArgumentError(name, f"expected shape {expected}, got {list(mask.shape)}.")
