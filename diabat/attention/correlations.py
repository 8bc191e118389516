r"""Correlations between the spins of one query.

Under the law of the query the connected correlation of the spins of the keys j and k is

    C_jk = <s_j s_k> - <s_j><s_k>:

positive if the query attends to both keys or to none of them, negative if to one or the other, and zero for spins that
are independent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from diabat.attention.coupled import CoupledLayer
from diabat.checks import ArgumentError, is_integer
from diabat.ising import Ising
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.seeds import draw_seed


@dataclass(frozen=True, eq=False)
class QueryMoments:
    """Moments of the coupled spins of one query, m of them, in each of H heads.

    Attributes:
        positions: Positions of the keys of the spins, ascending, int64 [m].
        probability: P(s_j = +1), float64 [H, m].
        correlations: C_jk, symmetric, float64 [H, m, m]; 1 - <s_j>² on the diagonal.
        couplings: J_jk, symmetric, float64 [H, m, m], or None in modes without J.
        num_reads: Number of reads that the moments are estimated from, None if they are computed without reads.
    """

    positions: Tensor
    probability: Tensor
    correlations: Tensor
    couplings: Tensor | None
    num_reads: int | None


def reason_without_correlations(layer: CoupledLayer) -> str | None:
    """One sentence on why a layer has no connected correlations; None if it has."""
    if layer.mode == "softmax":
        return "Softmax attention has no spins, and therefore no correlations."
    if layer.mode == "h":
        return "Mode h has no couplings: its spins are independent, and all connected correlations are 0."
    if layer.mode == "J":
        return "Mode J is uniform attention whatever J is: its correlations do not affect the weights."
    if not layer.sampler.capabilities.correlations:
        return f"Sampler '{layer.sampler.name}' computes marginals only and reports no correlations."
    return None


@torch.no_grad()
def query_moments(
    layer: CoupledLayer, query: int, *, sequence: int = 0, seed: int | None = None
) -> QueryMoments:
    """Solve the problem of one query of the last recorded forward pass again, with correlations, in float64.

    The query sees all keys up to its own position, or all keys without ``causal``: the forward pass must be one without
    padding.  Keys before the window of relative couplings are independent of all others and are left out.

    Args:
        layer: The layer, inside of its :meth:`~diabat.BoltzmannAttention.recording`, after a forward pass over whole
            sequences.
        query: Position of the query.
        sequence: Index in the batch.
        seed: Seed of the reads of sampling backends; None takes one as the forward pass does.

    Raises:
        ValueError: If there is no such query.
        UnsupportedError: In the modes softmax, h and J, and if the sampler does not report correlations.
        RuntimeError: Outside of a recording, or before its first forward pass.
    """
    reason = reason_without_correlations(layer)
    if reason is not None:
        raise UnsupportedError("layer", f"expected one with correlations. {reason}")
    seed = draw_seed(layer._fixed_seed if seed is None else seed)
    problem = layer.last_problem()
    length, spins = problem.fields.shape[-2:]
    if not is_integer(query) or not 0 <= query < length:
        raise ArgumentError("query", f"a position in 0 .. {length - 1}", repr(query))
    h = problem.fields[sequence, :, query, None].double()  # [H, 1, T]
    free = problem.visible_mask[sequence, 0, query]
    J, K = (None if t is None else t.double() for t in (problem.couplings, problem.three_body))
    moments = layer.sampler.moments(
        Ising(h, J, free, K, check=False), correlations=True, num_reads=layer.num_reads, seed=seed
    )
    assert moments.correlation is not None
    positions, own = torch.arange(spins, device=h.device), torch.zeros_like(free)
    if layer.couplings.relative:
        positions = positions + query - spins + 1
    if layer.mode == "J-self":  # the own spin is certain, and independent of all others
        own = positions == query
    m = torch.where(own, 1, moments.magnetization.double())[:, 0]  # [H, T]
    pairs = moments.correlation[:, 0].double() - m[:, :, None] * m[:, None, :]
    pairs = pairs.masked_fill(own | own[:, None], 0)
    probability = torch.where(own, 1, moments.probability.double())[:, 0]
    visible = free | own
    J = None if J is None else J[:, 0, visible][..., visible]
    correlations = pairs[:, visible][..., visible]
    return QueryMoments(positions[visible], probability[:, visible], correlations, J, moments.num_reads)
