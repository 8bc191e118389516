"""Couplings as edges, with memory and work linear in their number; J and K from a number for each pair or triple."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.ising.arguments import read_index, read_values
from diabat.ising.checks import IsingError, check_finite, check_tensor, first_true

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DENSE_SPINS = 4096
"""Largest number of spins for which edges are expanded into a matrix (128 MiB in float64)."""


@dataclass(frozen=True, eq=False)
class Edges:
    """Couplings of some pairs of spins; all other pairs are uncoupled.  Give them as ``couplings`` of an ``Ising``.

    Every pair is named once, in either order.  For one J, torch's sparse COO and CSR tensors can be given to ``Ising``
    instead; they hold both J_jk and J_kj.

    Args:
        index: Pairs of spins, integers [E, 2]: a tensor, an array or a list.
        values: J of every pair, [*lead, E]; ``lead`` broadcasts against the batch of the fields, whose dtype they get.

    Raises:
        IsingError: If the index is not an integer array [E, 2], or there is not one value for each pair.
    """

    index: Tensor
    values: Tensor

    if TYPE_CHECKING:  # the constructor accepts more types than the attributes have

        def __init__(
            self, index: Tensor | np.ndarray | Sequence[Any], values: Tensor | np.ndarray | Sequence[Any]
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", read_index(self.index))
        object.__setattr__(self, "values", read_values(self.values, self.index))

    @property
    def count(self) -> int:
        """Number E of edges."""
        return len(self.index)

    @property
    def lead(self) -> torch.Size:
        """Leading dimensions of the values, which broadcast against the batch."""
        return self.values.shape[:-1]

    @property
    def bandwidth(self) -> int:
        """Largest distance |j - i| of two coupled spins, 0 without edges."""
        return int(self.index.diff().abs().max()) if self.count else 0

    def with_values(self, values: Tensor) -> Edges:
        """The same pairs with other values [*lead, E], unchecked; they may be those of a transform of torch.func."""
        edges = object.__new__(Edges)
        vars(edges).update(index=self.index.to(values.device), values=values)
        return edges

    def matrix(self, n: int) -> Tensor:
        """J as a symmetric matrix [*lead, n, n], differentiable in the values; ArgumentError beyond ``DENSE_SPINS``."""
        if n > DENSE_SPINS:
            fix = (
                "'tempering', 'mean_field', 'refine', 'dimod' and 'banded' take edges, except with "
                "'linear_response', with second derivatives of 'mean_field' and under torch.func."
            )
            reason = f"edges are expanded into a matrix for up to {DENSE_SPINS} spins, got {n}; {fix}"
            raise ArgumentError("couplings", reason)
        j, k = self.index.T
        flat = self.values.new_zeros(*self.lead, n * n)
        flat = flat.index_add(-1, j * n + k, self.values).index_add(-1, k * n + j, self.values)
        return flat.reshape(*self.lead, n, n)

    def local_fields(self, spins: Tensor) -> Tensor:
        """Σ_k J_jk s_k, differentiable, in the broadcast shape of ``spins`` [..., n] and the values."""
        j, k = self.index.T
        to_j, to_k = self.values * spins[..., k], self.values * spins[..., j]
        zeros = to_j.new_zeros(*to_j.shape[:-1], spins.shape[-1])
        return zeros.index_add(-1, j, to_j).index_add(-1, k, to_k)

    def exponent(self, spins: Tensor) -> Tensor:
        """Σ J_jk s_j s_k over the edges, differentiable, for spins [..., n]."""
        j, k = self.index.T
        return (self.values * spins[..., j] * spins[..., k]).sum(-1)

    def mapped(self, convert: Callable[[Tensor], Tensor]) -> Edges:
        """The same edges with converted values, and the index on their device; itself if nothing changes."""
        values = convert(self.values)
        return self if values is self.values else self.with_values(values)


def no_edges(fields: Tensor) -> Edges:
    """J = 0 in the dtype of the fields."""
    return Edges(torch.zeros(0, 2, dtype=torch.int64, device=fields.device), fields.new_zeros(0))


def edges_of(J: Tensor, n: int) -> Edges:
    """Edges of a symmetric sparse tensor [n, n]; entries given twice are added, as torch defines it.

    Values are the mean of J_jk and J_kj, so that the gradient of J is symmetric, as that of a matrix is.
    """
    if J.is_nested:
        check_tensor("couplings", J)
    if J.layout not in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        raise IsingError("couplings", "a dense, COO, CSR or CSC tensor", f"the layout {J.layout}")
    if tuple(J.shape) != (n, n):
        got = f"{list(J.shape)}; use diabat.Edges for several J"
        raise IsingError("couplings", f"a sparse tensor [n, n] with n = {n}", got)
    J = J.to_sparse_coo().coalesce()
    if J.dense_dim():
        raise IsingError("couplings", "two sparse dimensions", "a dense one; use diabat.Edges")
    (rows, columns), values = J.indices(), J.values()
    known = values.detach()
    check_finite("couplings", known)
    order = (columns * n + rows).argsort()  # of the mirror images
    wrong = (rows != columns[order]) | (columns != rows[order])
    if not bool(wrong.any()):
        wrong = ~torch.isclose(known, known[order], rtol=1e-6, atol=1e-12)
    if at := first_true(wrong):
        got = f"{float(known[at]):.6g} at [{int(rows[at])}, {int(columns[at])}] and another number, or none"
        fix = "use U + U.T of an upper triangle U, or diabat.Edges"
        raise IsingError("couplings", "a symmetric matrix", f"{got}, at its mirror image; {fix}")
    if at := first_true((rows == columns) & (known != 0)):
        where = int(rows[at])
        raise IsingError("couplings", "no diagonal", f"{float(known[at]):.3g} at [{where}, {where}]")
    upper = rows < columns
    return Edges(torch.stack((rows[upper], columns[upper]), dim=1), ((values + values[order]) / 2)[upper])


def best_form(edges: Edges, n: int) -> Edges | Tensor:
    """Edges, or the matrix if a spin has more than n/8 neighbours on average: a dense sweep is then as fast."""
    dense = n <= DENSE_SPINS and 16 * edges.count > n * n
    return edges.matrix(n) if dense else edges


def pairs_of(J: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs [E, 2] of the nonzero entries of a symmetric matrix [n, n], in row-major order, and their values [E]."""
    pairs = np.argwhere(np.triu(J, 1))
    return pairs, J[pairs[:, 0], pairs[:, 1]]


def pack_couplings(pairs: Tensor, n: int, reach: int | None = None) -> Tensor:
    """Build symmetric J [..., n, n] from its upper triangle [..., n(n-1)/2] in row-major order; differentiable.

    With a ``reach`` w the entries are those with k - j <= w, [..., Σ_{d=1..w} (n-d)]; the others are 0.
    """
    j, k = pair_indices(n, reach, pairs.device)
    J = pairs.new_zeros(*pairs.shape[:-1], n, n)
    J[..., j, k] = pairs
    return J + J.mT


def pair_indices(
    n: int, reach: int | None = None, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Indices of all pairs j < k of n spins with k - j <= reach, in row-major order."""
    if reach is None or reach >= n - 1:
        j, k = torch.triu_indices(n, n, offset=1, device=device)
        return j, k
    # All spins but the last w have w partners, and the last ones are all coupled: no mask, whose values are read.
    j = torch.arange(n - reach, device=device)[:, None].expand(-1, reach)
    k = j + torch.arange(1, reach + 1, device=device)
    last = torch.triu_indices(reach, reach, offset=1, device=device) + (n - reach)
    both = torch.cat((torch.stack((j.flatten(), k.flatten())), last), 1)
    return both[0], both[1]


def pack_three_body(triples: Tensor, n: int) -> Tensor:
    """Build symmetric K [..., n, n, n] from its entries j<k<l [..., n(n-1)(n-2)/6]; differentiable."""
    K = triples.new_zeros(*triples.shape[:-1], n, n, n)
    for j, k, m in permutations(triple_indices(n, triples.device)):
        K[..., j, k, m] = triples
    return K


def triple_indices(n: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """Indices of all triples j < k < l of n spins, in lexicographic order."""
    pairs = torch.triu_indices(n, n, offset=1, device=device)
    # The pairs above each j are the last ones of all pairs.
    counts = [math.comb(max(n - 1 - j, 0), 2) for j in range(max(n, 1))]
    above = [pairs[:, pairs.shape[1] - count :] for count in counts]
    first = [torch.full((count,), j, device=device) for j, count in enumerate(counts)]
    k, m = torch.cat(above, 1)
    return torch.cat(first), k, m
