"""Random problems: shapes, leads, masks, layouts, dtypes and strengths."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from diabat.edges import Edges
from diabat.ising import Ising, pack_couplings, pack_three_body
from fuzz.dice import Dice

BATCHES: tuple[tuple[int, ...], ...] = ((), (1,), (3,), (7,), (2, 3), (3, 1), (1, 1), (2, 1, 3), (17,))
DTYPES = (torch.float32, torch.float64)
LARGEST = {torch.float32: 3e38, torch.float64: 1e300}
USUAL, EXTREME = 1e4, 1e25
"""Largest strength that is drawn from a continuum, and where a backend may begin to refuse."""


@dataclass(frozen=True)
class Shape:
    """Limits of random problems.

    Attributes:
        spins: Most spins.
        strength: Largest strength.
        extreme: Share of problems with 1e30 and more.
        three_body: Share of problems with K.
        gradients: Share of tensors that require a gradient.
    """

    spins: int = 10
    strength: float = USUAL
    extreme: float = 0.05
    three_body: float = 0.3
    gradients: float = 0.5


def random_problem(dice: Dice, shape: Shape = Shape()) -> Ising:
    """A valid problem; n = 1 to ``shape.spins`` spins, any batch, lead, mask, layout, dtype and strength."""
    dtype, batch = dice.pick(DTYPES), dice.pick(BATCHES)
    has_three = dice.chance(shape.three_body)
    n = dice.integer(1, min(shape.spins, 7) if has_three else shape.spins)
    h = _values(dice, (*batch, n), shape, dtype)
    J = K = None
    if dice.chance(0.85):
        pairs = _values(dice, (*_lead(dice, batch), n * (n - 1) // 2), shape, dtype)
        J = _banded(dice, pack_couplings(pairs, n))
    if has_three:
        triples = _values(dice, (*_lead(dice, batch), n * (n - 1) * (n - 2) // 6), shape, dtype)
        K = pack_three_body(triples, n)
    h = _finished(dice, h, 1, shape)
    J = None if J is None else _finished(dice, J, 2, shape)
    K = None if K is None else _finished(dice, K, 3, shape)
    held = J if J is None or J.requires_grad or not dice.chance(0.2) else _edges(dice, J)
    return Ising(h, held, _visible(dice, batch, n), K)


def _edges(dice: Dice, J: Tensor) -> Edges | Tensor:
    """The same couplings as edges, with some of the pairs that have none, in any order; or as a sparse tensor."""
    if J.ndim == 2 and dice.chance(0.5):
        return J.to_sparse_coo()
    n = J.shape[-1]
    pairs = torch.triu_indices(n, n, offset=1).T
    coupled = (J != 0).reshape(-1, n, n).any(0)[pairs[:, 0], pairs[:, 1]]
    kept = pairs[coupled | (dice.uniform(len(pairs)) > 0)]
    kept = kept[torch.argsort(dice.uniform(len(kept)))]
    kept = torch.where(dice.uniform(len(kept), 1) > 0, kept, kept.flip(1))
    return Edges(kept, J[..., kept[:, 0], kept[:, 1]])


def parts(ising: Ising) -> list[tuple[int, Tensor]]:
    """Those of h, J and K that are given, each with its number of spin axes."""
    tensors = ((1, ising.fields), (2, ising.couplings), (3, ising.three_body))
    return [(order, tensor) for order, tensor in tensors if tensor is not None]


def largest(ising: Ising) -> float:
    """Largest absolute value among h, J and K."""
    return max(float(tensor.detach().double().abs().max()) for _, tensor in parts(ising))


def _values(dice: Dice, shape: tuple[int, ...], kinds: Shape, dtype: torch.dtype) -> Tensor:
    """Numbers of one strength: continuous, of a few values with many ties, or zero."""
    if dice.chance(kinds.extreme):
        strength = dice.pick([1e30, LARGEST[dtype]])
    else:
        strength = dice.log_uniform(1e-6, kinds.strength)
    kind = dice.weighted({"normal": 4, "uniform": 2, "ties": 1, "zeros": 1, "sparse": 1})
    if kind == "normal":
        values = dice.normal(*shape).clamp(-1, 1) if strength > USUAL else dice.normal(*shape)
    elif kind == "ties":
        values = dice.uniform(*shape).sign()
    else:
        values = dice.uniform(*shape) * (kind != "zeros")
    if kind == "sparse":
        values = values * dice.mask(*shape, share=0.3)
    return (values * strength).to(dtype)


def _lead(dice: Dice, batch: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to the batch: shared, per problem, or of some axes."""
    kind = dice.weighted({"shared": 3, "per problem": 2, "some": 2})
    if kind == "shared" or not batch:
        return ()
    if kind == "per problem":
        return batch
    lead = tuple(size if dice.chance(0.5) else 1 for size in batch)
    return lead[dice.integer(0, len(lead)) :]


def _banded(dice: Dice, J: Tensor) -> Tensor:
    if not dice.chance(0.3):
        return J
    n, width = J.shape[-1], dice.integer(0, 3)
    index = torch.arange(n)
    return J * ((index[:, None] - index).abs() <= width)


def _visible(dice: Dice, batch: tuple[int, ...], n: int) -> Tensor | None:
    kind = dice.weighted({"all": 4, "random": 3, "broadcast": 2, "causal": 2, "none": 1, "empty problem": 1})
    if kind == "all":
        return None
    if kind == "random":
        return dice.mask(*batch, n, share=dice.pick([0.2, 0.6, 0.9]))
    if kind == "broadcast":
        return dice.mask(*_lead(dice, batch), n)
    if kind == "causal" and batch and batch[-1] > 1:
        return torch.ones(batch[-1], n, dtype=torch.bool).tril(n - batch[-1])
    if kind == "empty problem":
        return dice.mask(*batch, 1).expand(*batch, n)
    return torch.zeros(n, dtype=torch.bool) if kind == "none" else None


def _finished(dice: Dice, tensor: Tensor, order: int, shape: Shape) -> Tensor:
    """The same numbers in some layout of the memory, perhaps with a gradient."""
    kind = dice.weighted({"contiguous": 3, "strided": 1, "transposed": 1, "expanded": 1})
    if kind == "strided":
        tensor = torch.stack([tensor, tensor.new_full(tensor.shape, torch.nan)], -1)[..., 0]
    elif kind == "transposed" and tensor.ndim > 1:
        tensor = tensor.transpose(0, -1).contiguous().transpose(0, -1)
    elif kind == "expanded" and tensor.ndim > order:
        tensor = tensor[:1].expand(tensor.shape)
    return tensor.requires_grad_(dice.chance(shape.gradients))
