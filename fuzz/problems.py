"""Strategies of problems: sizes, batches, couplings of every form, masks, layouts, dtypes and strengths."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from diabat.ising import Ising, pack_couplings, pack_three_body
from diabat.ising.edges import Edges

BATCHES = ((), (1,), (3,), (2, 3), (7,), (3, 1), (1, 1), (2, 1, 3), (17,))
LARGEST = {torch.float32: 3e38, torch.float64: 1e300}
USUAL, EXTREME = 1e4, 1e25
"""Largest strength that is drawn from a continuum, and where a backend may begin to refuse."""
SEEDS = st.integers(0, 2**31)
DTYPES = st.sampled_from([torch.float64, torch.float32])


def one_in(number: int) -> st.SearchStrategy[bool]:
    """True in one of so many examples; False is the simpler one."""
    return st.integers(0, number - 1).map(lambda drawn: drawn == number - 1)


def mostly(usual: st.SearchStrategy, rare: st.SearchStrategy, number: int = 5) -> st.SearchStrategy[Any]:
    """The usual strategy, and in one of so many examples the rare one."""
    return one_in(number).flatmap(lambda drawn: rare if drawn else usual)


def scales(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers between two positive ones, spread evenly over their logarithms."""
    return st.floats(math.log10(low), math.log10(high)).map(lambda exponent: 10.0**exponent)


def normal(seed: int, *shape: int) -> Tensor:
    """Standard normal numbers of a seed, float64."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


@st.composite
def values(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype, most: float, extreme: bool) -> Tensor:
    """Zeros, numbers of any size up to some strength, few of them or many, or signs with many ties."""
    strength = draw(st.just(1.0) | scales(1e-6, most))
    if extreme and draw(one_in(25)):
        strength = draw(st.sampled_from([1e30, LARGEST[dtype]]))
    kind = draw(st.sampled_from(["zeros", "sparse", "each", "normal", "normal", "uniform", "signs"]))
    if kind in ("sparse", "each"):
        fill = st.just(0.0) if kind == "sparse" or math.prod(shape) > 60 else st.nothing()
        drawn = torch.from_numpy(draw(arrays(np.float64, shape, elements=st.floats(-1, 1), fill=fill)))
    else:
        drawn = torch.zeros(shape, dtype=torch.float64) if kind == "zeros" else normal(draw(SEEDS), *shape)
        if kind != "normal" or strength > USUAL:
            drawn = drawn.sign() if kind == "signs" else drawn.clamp(-1, 1)
    return (drawn * strength).to(dtype)


@st.composite
def leads(draw: st.DrawFn, batch: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to the batch: shared, per problem, or of some axes, such as one J per head."""
    kept = tuple(size if draw(st.booleans()) else 1 for size in batch)
    return draw(st.sampled_from([(), batch, kept, kept[1:]]))


@st.composite
def float_masks(draw: st.DrawFn, visible: Tensor, added: Tensor) -> Tensor:
    """What is added to scores, in any dtype, and a number that hides a key where none is seen."""
    kinds = (torch.float16, torch.bfloat16, torch.float32)
    hiding = draw(st.sampled_from([-math.inf, *(torch.finfo(kind).min for kind in kinds)]))
    return added.to(draw(DTYPES)).masked_fill(~visible, hiding)


@st.composite
def problems(
    draw: st.DrawFn, *, spins: int = 10, most: float = USUAL, extreme: bool = False, three_body: bool = True
) -> Ising:
    """A valid problem of up to ``spins`` spins and the strength ``most``.

    Some have strengths of 1e30 and more if ``extreme``, a K if ``three_body``, and tensors that require a gradient.
    """
    dtype, batch = draw(DTYPES), draw(st.sampled_from(BATCHES))
    has_three = three_body and draw(one_in(4))
    n = draw(st.integers(1, min(spins, 7) if has_three else spins))

    def drawn(lead: tuple[int, ...], order: int) -> Tensor:
        return draw(values((*lead, math.comb(n, order)), dtype, most, extreme))

    def finished(tensor: Tensor, order: int) -> Tensor:
        """The same numbers in another layout of the memory; an expanded one repeats the first problem."""
        layout = draw(st.sampled_from(["contiguous", "strided", "transposed", "expanded"]))
        if layout == "strided":
            tensor = torch.stack([tensor, tensor.new_full(tensor.shape, torch.nan)], -1)[..., 0]
        elif layout == "transposed" and tensor.ndim > 1:
            tensor = tensor.transpose(0, -1).contiguous().transpose(0, -1)
        elif layout == "expanded" and tensor.ndim > order:
            tensor = tensor[:1].expand(tensor.shape)
        return tensor.requires_grad_(draw(st.booleans()))

    h, J, K = finished(drawn(batch, 1), 1), None, None
    if not draw(one_in(6)):
        J = pack_couplings(drawn(draw(leads(batch)), 2), n)
        if (width := draw(st.none() | st.integers(0, 3))) is not None:
            J = J.tril(width).triu(-width)
        J = finished(J, 2)
        if not J.requires_grad and draw(one_in(5)):
            J = _edges(J, draw(SEEDS))
    if has_three:
        K = finished(pack_three_body(drawn(draw(leads(batch)), 3), n), 3)
    offset = draw(st.none() | values(draw(leads(batch)), dtype, most, False))
    return Ising(h, J, draw(_visible(batch, n)), K, offset)


@st.composite
def _visible(draw: st.DrawFn, batch: tuple[int, ...], n: int) -> Tensor | None:
    kind = draw(st.sampled_from(["all", "all", "some", "each", "causal", "whole problems", "none"]))
    if kind == "all" or (kind == "causal" and not batch):
        return None
    if kind == "causal":
        return torch.ones(batch[-1], n, dtype=torch.bool).tril(n - batch[-1])
    shapes = {
        "some": (*draw(leads(batch)), n),
        "none": (n,),
        "whole problems": (*batch, 1),
        "each": (*batch, n),
    }
    share = 0.0 if kind == "none" else draw(st.sampled_from([0.9, 0.6, 0.2]))
    mask = torch.from_numpy(np.random.default_rng(draw(SEEDS)).random(shapes[kind]) < share)
    return mask.expand((*batch, n)) if kind == "whole problems" else mask


def _edges(J: Tensor, seed: int) -> Any:
    """The same couplings as edges, with some of the pairs that have none, in any order; or as a sparse tensor."""
    if J.ndim == 2 and seed % 2:
        return J.to_sparse_coo()
    n = J.shape[-1]
    pairs = torch.triu_indices(n, n, offset=1).T
    coupled = (J != 0).reshape(-1, n, n).any(0)[pairs[:, 0], pairs[:, 1]]
    order = normal(seed, len(pairs), 2)
    kept = coupled | (order[:, 0] > 0)
    pairs = torch.where(order[:, 1:] > 0, pairs, pairs.flip(1))[kept][order[kept, 0].argsort()]
    return Edges(pairs, J[..., pairs[:, 0], pairs[:, 1]])


def parts(ising: Ising) -> list[tuple[int, Tensor]]:
    """Those of h, J and K that are given, each with its number of spin axes."""
    tensors = ((1, ising.fields), (2, ising.couplings), (3, ising.three_body))
    return [(order, tensor) for order, tensor in tensors if tensor is not None]


def largest(ising: Ising) -> float:
    """Largest absolute value among h, J and K."""
    return max(float(t.detach().double().abs().max()) for _, t in parts(ising))


def reach(ising: Ising) -> float:
    """Largest sum of |J| and |K| that act on one spin; below 1, mean field has one fixed point."""
    terms = [(order, t.detach().double().abs()) for order, t in parts(ising) if order > 1]
    return float(sum(t.flatten(1 - order).sum(-1).max() for order, t in terms))


def first(ising: Ising) -> Ising:
    """The first problem of the batch alone."""
    tensors = (ising.fields, ising.couplings, ising.visible, ising.three_body, ising.offset)
    alone: list[Any] = [
        None if tensor is None else tensor[(0,) * (tensor.ndim - order)]
        for tensor, order in zip(tensors, (1, 2, 1, 3, 0), strict=True)
    ]
    return Ising(*alone)
