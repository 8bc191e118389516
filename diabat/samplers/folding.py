"""Folding: under ``torch.func.vmap`` the mapped dimension of a problem becomes its first batch dimension.

Backends read values (visibility, distinct couplings, ranges), which mapped tensors do not expose.  The autograd
functions around them are therefore opaque to vmap, and their vmap rules call them again on a larger batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from diabat.samplers.capabilities import UnsupportedError


class Terms(NamedTuple):
    """The tensors of a problem as arguments of autograd functions; shapes as in :class:`diabat.Ising`."""

    fields: Tensor
    couplings: Tensor | None
    three_body: Tensor | None
    visible: Tensor | None


TermDims = tuple[int | None, int | None, int | None, int | None]


def mapped_first(t: Tensor, dim: int | None, size: int, place: int = 0) -> Tensor:
    """Move the mapped dimension of ``size`` to ``place``; expand the tensor if it has none."""
    if dim is not None:
        return t.movedim(dim, place)
    shape = list(t.shape)
    shape.insert(place, size)
    return t.unsqueeze(place).expand(shape)


def folded_terms(terms: Terms, dims: TermDims, size: int, *, own: bool = False) -> Terms:
    """Convert terms, some of them mapped at ``dims``, to the terms of a batch [size, *batch] of problems.

    ``own`` expands J and K even if they are not mapped, as separate gradients of the elements need.
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
    """Convert the gradient of a folded term to that of the term, mapped dimension first."""
    if gradient is None or like is None:
        return None
    shape = list(like.shape)
    if dim is not None:
        shape.pop(dim)
    return gradient.reshape(len(gradient), *shape)


def dims_of(*outputs: Tensor | None) -> tuple[int | None, ...]:
    """Mapped dimension of outputs: the first, or None for an output that is None."""
    return tuple(None if t is None else 0 for t in outputs)


def is_traced() -> bool:
    """Whether numbers cannot be read: in a graph, or in a transform of torch.func."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or transformed()  # type: ignore[attr-defined]  # not exported by name


def transformed() -> bool:
    """Whether a transform of torch.func or a forward derivative is under way, which ask functions for more rules."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def behind_transforms(name: str, t: Tensor) -> Tensor:
    """The tensor behind transforms of torch.func, whose values can be read; UnsupportedError if ``vmap`` maps it."""
    while torch._C._functorch.is_functorch_wrapped_tensor(t):
        if torch._C._functorch.is_batchedtensor(t):
            expected = "a tensor that torch.func.vmap does not map, since its values are read"
            got = "one that depends on what is mapped; give the elements as a batch, or use a loop"
            raise UnsupportedError(name, expected, got)
        t = torch._C._functorch.get_unwrapped(t)
    return t


def batched_cotangent(*cotangents: Tensor | None) -> bool:
    """Whether autograd runs a backward pass for many cotangents at once (``is_grads_batched``, ``vectorize=True``).

    This uses an older vmap than torch.func's, which ignores our vmap rules.
    """
    is_batched = torch._C._functorch.is_legacy_batchedtensor
    return any([is_batched(t) for t in cotangents if t is not None])


def refuse_batched_cotangent(*cotangents: Tensor | None) -> None:
    """Refuse a batch of cotangents, in backward passes that read values, by a RuntimeError."""
    if batched_cotangent(*cotangents):
        got = "a batch of them (is_grads_batched or vectorize=True)"
        raise RuntimeError(f"gradient: expected one cotangent, got {got}; use torch.func.jacrev.")
