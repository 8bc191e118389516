r"""Log-odds of each spin given the others: the tables behind the pseudo-likelihood.

    log P(s_j | rest) = log σ( Σ_t β_t x_t ),   x_t = 2 s_j f_t,
    f_h = h_j,   f_J = Σ_k J_jk s_k,   f_K = Σ_{k<l} K_jkl s_k s_l

Problems are processed in chunks: 2^16 states of all problems at once would not fit in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from diabat.ising import Ising, flat_index

# Cells (problem, read, spin) of one chunk: its tables of 256 KiB each fit in the cache of a core.
_CHUNK = 1 << 15
# Up to this many cells in total, about 100 MiB, are kept between the iterations of a fit.
_KEEP = 1 << 22


@dataclass(frozen=True, eq=False)
class Chunk:
    """A chunk of P problems with R reads each, in float64."""

    features: Tensor  # x, [terms, P·R·n]; 0 where the spin is invisible
    weights: Tensor  # of the read, [P·R·n]; 0 where the spin is invisible
    reads: Tensor  # weight of each read, [P, R]


def present_terms(ising: Ising) -> list[int]:
    """Which of fields (0), couplings (1) and three-body terms (2) have a nonzero entry."""
    terms = (ising.fields, ising.couplings, ising.three_body)
    return [kind for kind, value in enumerate(terms) if value is not None and bool((value != 0).any())]


class Conditionals:
    """The chunks of all problems, in order, on the CPU; kept in memory if they are small, else recomputed.

    Of spins ±1, [R, *batch, n], or [R, n] for reads that all problems share, with weights [R, *batch], and of the terms
    of these ``kinds``, as in :func:`present_terms`.
    """

    def __init__(self, ising: Ising, spins: Tensor, weights: Tensor, kinds: list[int]) -> None:
        n, total, reads = ising.num_spins, ising.num_problems, len(spins)
        # Problems first, so that couplings act by a matrix product: [P | 1, R, n].
        s = spins.detach().cpu()
        self.spins = s[None] if s.ndim == 2 else s.reshape(reads, total, n).movedim(0, 1)
        self.weights = weights.detach().cpu().double().reshape(reads, total).T
        self.visible = ising.visible_mask.cpu().reshape(total, 1, n)
        self.kinds, self.terms = kinds, [_rows(kind, ising) for kind in kinds]
        self._kept = list(self._form()) if reads * total * n <= _KEEP else None

    def __iter__(self) -> Iterator[Chunk]:
        """At most 2^15 cells at a time, but at least one problem."""
        return self._form() if self._kept is None else iter(self._kept)

    def _form(self) -> Iterator[Chunk]:
        total, reads = self.weights.shape
        n = self.visible.shape[-1]
        for rows in torch.arange(total).split(max(1, _CHUNK // (reads * n))):
            visible, w = self.visible[rows], self.weights[rows]
            # An invisible spin counts as 0, also in the local fields of the others.
            s = (self.spins if len(self.spins) == 1 else self.spins[rows]).double()
            s = s if visible.all() else s * visible
            x = torch.empty(len(self.kinds), len(rows), reads, n, dtype=torch.float64)
            for out, kind, (values, row) in zip(x, self.kinds, self.terms, strict=True):
                # Couplings and reads that all problems share need one product.
                field = _local_field(kind, values if len(values) == 1 else values[row[rows]], s)
                out.copy_(2 * s * field)
            yield Chunk(x.flatten(1), (w[..., None] * visible).flatten(), w)


def derivatives(tables: Iterable[Chunk], beta: Tensor) -> tuple[float, Tensor, Tensor]:
    """Log pseudo-likelihood Σ w log P(s_j | rest), its gradient [t] and negative Hessian [t, t]."""
    value, gradient, hessian = 0.0, torch.zeros_like(beta), beta.new_zeros(len(beta), len(beta))
    for table in tables:
        log_p = logsigmoid(beta @ table.features)
        value += float(table.weights @ log_p)
        miss = log_p.expm1_().neg_()  # 1 - P without cancellation
        slope = table.weights * miss
        gradient += table.features @ slope
        hessian += (table.features * slope.mul_(miss.neg_().add_(1))) @ table.features.T
    return value, gradient, hessian


def scores(table: Chunk, beta: Tensor) -> Tensor:
    """Gradient of Σ_j log P(s_j | rest) of every read, [t, P, R]."""
    miss = -torch.expm1(logsigmoid(beta @ table.features))
    return (table.features * miss).reshape(len(beta), *table.reads.shape, -1).sum(-1)


def _rows(kind: int, ising: Ising) -> tuple[Tensor, Tensor]:
    """The distinct fields, couplings or three-body terms, float64 [D, ...], and the index of each problem [P]."""
    value = (ising.fields, ising.couplings, ising.three_body)[kind]
    assert value is not None
    lead = value.shape[: value.ndim - kind - 1]
    rows = value.detach().cpu().double().reshape(-1, *value.shape[len(lead) :])
    return rows, flat_index(lead, ising.batch_shape)


def _local_field(kind: int, terms: Tensor, s: Tensor) -> Tensor:
    """Local field f of one kind of term for spins [P | 1, R, n], broadcastable to [P, R, n]."""
    if kind == 0:
        return terms[:, None, :]
    if kind == 1:
        return s @ terms
    return torch.einsum("pjkl,prk,prl->prj", terms, s, s) / 2
