"""Folding: under ``torch.func.vmap`` the mapped dimension of a problem becomes the first of its batch.

Backends look at values (visibility, distinct couplings, ranges), which mapped tensors do not show.  The autograd
functions around them therefore are opaque to vmap, and their rules call them again on a larger batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Terms(NamedTuple):
    """What a problem consists of, as it travels through autograd; shapes as in :class:`diabat.Ising`."""

    fields: Tensor
    couplings: Tensor | None
    three_body: Tensor | None
    visible: Tensor | None


TermDims = tuple[int | None, int | None, int | None, int | None]


def mapped_first(t: Tensor, dim: int | None, size: int, place: int = 0) -> Tensor:
    """Move the mapped dimension of ``size`` to ``place``, expanded where the tensor has none."""
    if dim is not None:
        return t.movedim(dim, place)
    shape = list(t.shape)
    shape.insert(place, size)
    return t.unsqueeze(place).expand(shape)


def folded_terms(terms: Terms, dims: TermDims, size: int, *, own: bool = False) -> Terms:
    """Terms of a batch [size, *batch] of problems.

    Args:
        terms: Terms, some of them mapped.
        dims: Mapped dimension of each, None where it is the same for all.
        size: Length of the mapped dimension.
        own: Give every element J and K of its own, as gradients need, also where they are the same for all.
    """
    fields = mapped_first(terms.fields, dims[0], size)
    rank = fields.ndim - 2

    def lead(t: Tensor | None, dim: int | None, order: int, own: bool) -> Tensor | None:
        if t is None or (dim is None and not own):
            return t  # broadcasts from the right, as before
        t = mapped_first(t, dim, size)
        missing = rank - (t.ndim - 1 - order)
        return t.reshape(size, *(1,) * missing, *t.shape[1:])

    return Terms(
        fields,
        lead(terms.couplings, dims[1], 2, own),
        lead(terms.three_body, dims[2], 3, own),
        lead(terms.visible, dims[3], 1, False),
    )


def unfolded(gradient: Tensor | None, like: Tensor | None, dim: int | None) -> Tensor | None:
    """Gradient of a folded term as that of the term itself, mapped dimension first."""
    if gradient is None or like is None:
        return None
    shape = list(like.shape)
    if dim is not None:
        shape.pop(dim)
    return gradient.reshape(len(gradient), *shape)


def dims_of(*outputs: Tensor | None) -> tuple[int | None, ...]:
    """Mapped dimension of outputs that have it first, or are None."""
    return tuple(None if t is None else 0 for t in outputs)


def batched_cotangent(*cotangents: Tensor | None) -> bool:
    """Whether autograd runs a backward pass for many cotangents at once (``is_grads_batched``, ``vectorize=True``).

    That is done by an older vmap than torch.func's, which asks no rule of ours.
    """
    return any(t is not None and torch._C._functorch.is_legacy_batchedtensor(t) for t in cotangents)


def refuse_batched_cotangent(*cotangents: Tensor | None) -> None:
    """Refuse such a pass where values are looked at.

    Raises:
        RuntimeError: With what to use instead.
    """
    if batched_cotangent(*cotangents):
        raise RuntimeError(
            "gradient: expected one cotangent, got a batch of them (is_grads_batched or vectorize=True); "
            "use torch.func.jacrev."
        )
