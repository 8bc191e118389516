"""Direct enumeration of a few small problems, without splitting into halves (kernel).

With cached tables of the ±1 states S and their products in pairs and triples,

    E = h Sᵀ + J S₂ᵀ + K S₃ᵀ,      p = exp(E - max E) / Σ exp(E - max E),      P(s_j = +1) = Σ_s p [s_j = +1]

in float64 for any dtype of the problem: no sum loses its largest terms, however strong the problem is.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations, permutations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.samplers.exact.half_energies import split_energies
from diabat.samplers.exact.smooth import smooth_gradient, smooth_probabilities
from diabat.samplers.folding import refuse_batched_cotangent

Array = NDArray[Any]

MOST_SPINS = 9
"""Limit for one row: OpenBLAS splits larger products by the number of threads, which changes their last bit."""
MOST_STATES = 1 << 13
"""Limit for several rows, over all problems; above it the half-split products are also faster."""
FEW_STATES = 1 << 9
"""Up to here loading compiled code is not worthwhile."""
BYTES_PER_STATE = 32
"""Exponents, weights and their products."""


class States:
    """All states of ``spins`` spins.

    Attributes:
        signs: ±1, [2^spins, spins]; bit j of the row index is spin j.
        bits_and_one: The states as 0 and 1, with a column of ones, which sums the weights.
        pairs: j and k of all j < k.
        pair_signs: s_j s_k, [2^spins, spins(spins-1)/2].
    """

    def __init__(self, spins: int) -> None:
        bits = (np.arange(1 << spins)[:, None] >> np.arange(spins)) & 1
        self.signs = 2.0 * bits - 1
        self.bits_and_one = np.concatenate((bits, np.ones((1 << spins, 1))), axis=1)
        self.pairs = np.triu_indices(spins, 1)
        self.pair_signs = np.ascontiguousarray(self.signs[:, self.pairs[0]] * self.signs[:, self.pairs[1]])


@lru_cache(maxsize=MOST_SPINS)
def table_of_states(spins: int) -> States:
    """The states of a number of spins, kept."""
    return States(spins)


@lru_cache(maxsize=MOST_SPINS)
def _triples(spins: int) -> tuple[Array, Array]:
    """Indices j < k < l, [3, T], and s_j s_k s_l, [2^spins, T]."""
    index = np.array(list(combinations(range(spins), 3)), np.int64).reshape(-1, 3).T
    return index, np.ascontiguousarray(table_of_states(spins).signs[:, index].prod(1))


def enumerated(fields: Array, J: Array | None, K: Array | None) -> tuple[Array, Array, Array]:
    """Probabilities of +1, log Z and the probability of every state.

    Args:
        fields: h, float64 [G, Q, m].
        J: float64 [G, m, m], read through its symmetric part, or None.
        K: float64 [G, m, m, m], read likewise, or None.

    Returns:
        float64 [G, Q, m], [G, Q] and [G, Q, 2^m].
    """
    groups, queries, m = fields.shape
    table = table_of_states(m)
    exponent = (fields.reshape(-1, m) @ table.signs.T).reshape(groups, queries, -1)
    if J is not None:
        j, k = table.pairs
        # Not with BLAS, as above: this product has one row per group.
        exponent += np.einsum("gp,xp->gx", (J[:, j, k] + J[:, k, j]) / 2, table.pair_signs)[:, None]
    if K is not None:
        index, signs = _triples(m)
        values = sum(K[:, a, b, c] for a, b, c in permutations(index)) / 6
        exponent += np.einsum("gp,xp->gx", values, signs)[:, None]
    scale = exponent.max(-1, keepdims=True)
    weights = np.exp(exponent - scale)
    sums = (weights.reshape(groups * queries, -1) @ table.bits_and_one).reshape(groups, queries, m + 1)
    total = sums[..., m:]
    # Rounding of the sums can exceed 1.
    p = np.minimum(sums[..., :m] / total, 1.0)
    return p, (np.log(total) + scale)[..., 0], weights / total


def pairs_of_states(weights: Array, spins: int) -> Array:
    """<s_j s_k>, float64 [G, Q, m, m], with ones on the diagonal, from the probabilities of all states."""
    table = table_of_states(spins)
    j, k = table.pairs
    out = np.ones((*weights.shape[:2], spins, spins))
    out[..., j, k] = out[..., k, j] = np.einsum("gqx,xp->gqp", weights, table.pair_signs)
    return out


class Enumerated(torch.autograd.Function):
    """(h [G, Q, m], J, K) -> (P(s = +1), log Z, probabilities of states in float64), with the analytic backward.

    For cotangents v of P and u of log Z let f(s) = Σ_j v_j [s_j = +1].  Then dL/dE(s) = p(s) (f(s) - <f> + u).
    """

    @staticmethod
    def forward(
        ctx: Any, fields: Tensor, J: Tensor | None, K: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Solve; keep the probabilities of states for the backward pass."""
        p, log_z, weights = enumerate_states(fields, J, K)
        ctx.save_for_backward(fields, J, K, weights)
        ctx.mark_non_differentiable(weights)
        return p, log_z, weights

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Covariances of f with spins and their products; differentiable again if create_graph is set."""
        v, u = cotangents[:2]
        refuse_batched_cotangent(v, u)
        *terms, weights = ctx.saved_tensors
        if torch.is_grad_enabled():
            return tuple(smooth_gradient(terms, _smooth, ctx.needs_input_grad, v, u))
        fields, J, K = terms
        groups, queries, m = fields.shape
        table, wanted = table_of_states(m), ctx.needs_input_grad
        f = v.double().numpy().reshape(-1, m) @ table.bits_and_one[:, :m].T
        p = weights.numpy().reshape(f.shape)
        centre = (p * f).sum(-1) - u.double().numpy().reshape(-1)
        g = p * (f - centre[:, None])
        dh = torch.from_numpy((g @ table.signs).reshape(fields.shape)).to(fields.dtype)
        by_group = g.reshape(groups, queries, -1).sum(1)
        dJ = _matrix_gradient(by_group, m).to(J.dtype) if wanted[1] else None
        dK = _tensor_gradient(by_group, m).to(K.dtype) if wanted[2] else None
        return dh, dJ, dK


def enumerate_states(fields: Tensor, J: Tensor | None, K: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Differentiable `enumerated`; results have the dtype of the fields, except the probabilities of states."""
    dtype = np.float32 if fields.dtype == torch.float32 else np.float64
    p, log_z, weights = enumerated(_array(fields), _array(J), _array(K))
    return (
        torch.from_numpy(p.astype(dtype, copy=False)),
        torch.from_numpy(log_z.astype(dtype, copy=False)),
        torch.from_numpy(weights),
    )


def _array(t: Any) -> Any:
    return None if t is None else t.detach().double().numpy()


def _smooth(fields: Tensor, J: Tensor | None, K: Tensor | None) -> tuple[Tensor, Tensor]:
    """Probabilities and log Z by differentiable operations."""
    groups, _, m = fields.shape
    return smooth_probabilities(fields, split_energies(J, K, groups, m, fields.device))


def _matrix_gradient(g: Array, m: int) -> Tensor:
    """dL/dJ, [G, m, m], of dL/dE summed over the queries of each group, [G, 2^m]."""
    table = table_of_states(m)
    j, k = table.pairs
    out = np.zeros((len(g), m, m))
    out[:, j, k] = out[:, k, j] = np.einsum("gx,xp->gp", g, table.pair_signs) / 2
    return torch.from_numpy(out)


def _tensor_gradient(g: Array, m: int) -> Tensor:
    """dL/dK, [G, m, m, m], from the same sums."""
    index, signs = _triples(m)
    out, values = np.zeros((len(g), m, m, m)), np.einsum("gx,xp->gp", g, signs) / 6
    for a, b, c in permutations(index):
        out[:, a, b, c] = values
    return torch.from_numpy(out)
