"""The compiled kernel of chains inside the graphs of ``torch.compile`` and ``torch.export``: one operator, any length.

Traced operators would bind a graph to one length, since their recursion follows it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diabat.attention.chain import Passes
from diabat.attention.chain_operators import ChainLaw
from diabat.attention.compiled import refuse_second


def _passes(J: Tensor, words: Tensor | None, *law: Any) -> Passes:
    *options, need_weights = law
    return Passes(ChainLaw(*options), J, words, need_weights=need_weights)


@torch.library.custom_op("diabat::chain", mutates_args=(), device_types="cpu")
def _chain(
    q: Tensor, k: Tensor, v: Tensor, J: Tensor, key_mask: Tensor | None, words: Tensor | None,
    readout: str, scale: float, causal: bool, dropout: float, need_weights: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mixed values and weights, or an empty tensor in their place."""
    passes = _passes(J, words, readout, scale, causal, dropout, need_weights)
    out, *weights = (t.contiguous() for t in passes.results(q, k, v, J, key_mask))
    return out, weights[0] if weights else q.new_empty(0)


@_chain.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    shape = (*q.shape[:3], k.shape[2]) if rest[-1] else (0,)
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(*shape)


@torch.library.custom_op("diabat::chain_backward", mutates_args=(), device_types="cpu")
def _chain_backward(
    g: Tensor, of_weights: Tensor, q: Tensor, k: Tensor, v: Tensor, J: Tensor, key_mask: Tensor | None,
    words: Tensor | None, readout: str, scale: float, causal: bool, dropout: float, need_weights: bool,
) -> list[Tensor]:  # fmt: skip
    """Derivatives by q, k, v and J."""
    passes, terms = _passes(J, words, readout, scale, causal, dropout, need_weights), (q, k, v, J, key_mask)
    found = passes.gradient(terms, (), g, of_weights if need_weights else None)
    return [t.contiguous() for t in found if t is not None]


@_chain_backward.register_fake
def _(g: Tensor, of_weights: Tensor, *terms: Any) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in terms[:4]]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.law = *inputs[:6], inputs[6:]
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, g: Tensor, of_weights: Tensor) -> tuple[Any, ...]:
    found = torch.ops.diabat.chain_backward(g, of_weights, *ctx.saved_tensors, *ctx.law)
    return *found, *(None,) * (2 + len(ctx.law))


_chain.register_autograd(_backward, setup_context=_save)
_chain_backward.register_autograd(refuse_second)
