r"""Gradient estimators: pure functions from a cotangent and moments or samples to gradients of h, J and K, in a table.

All take the cotangent v_j = ∂L/∂P(s_j = +1), [*batch, n], and return gradients per problem: ∂L/∂h [*batch, n],
∂L/∂J [*batch, n, n] (symmetric; the energy reads ½ Σ_{j≠k} J_jk s_j s_k) and ∂L/∂K [*batch, n, n, n].
Where J is held as edges, two of them return ∂L/∂J of every edge, [*batch, E], without a matrix.
Entries of invisible spins are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from diabat.attention.susceptibility import consistent_correlations, multiplier_gradient
from diabat.checks import ArgumentError
from diabat.ising import Ising
from diabat.ising.edges import Edges
from diabat.samplers.answers import AdjointSolution
from diabat.samplers.capabilities import Estimator
from diabat.samplers.folding import refuse_batched_cotangent


class ProblemGradient(NamedTuple):
    """Gradient of the loss with respect to one batch of problems, None where not requested, and to the sampler."""

    fields: Tensor
    couplings: Tensor | None
    three_body: Tensor | None
    parameters: tuple[Tensor, ...] = ()


def straight_through(
    cotangent: Tensor, probability: Tensor, visible: Tensor, response_at: Tensor | None = None, *,
    couplings: bool | Edges, three_body: bool,
) -> ProblemGradient:  # fmt: skip
    r"""Mean-field response, without feedback through J.

        dm_j = (1 - t_j²)(dh_j + Σ_k dJ_jk m_k + Σ_{k<l} dK_jkl m_k m_l),    P = (1 + m)/2

    with m as sampled.  For a Boltzmann law t = m: 1 - m_j² is the variance of the spin, its exact response to its
    own field.  A sampler with another law may not reach full magnetization in strong fields.  That of a 5 ns anneal
    peaks near h = 6 and falls back to 0.96 at h = 60.  There 1 - m² is much larger than the true response, and
    fields trained with it diverge (to 10^7 in one run).  `mean_field_probability`, that is
    t_j = tanh(h_j + Σ_k J_jk m_k), gives a response near 0.

    Biased if spins are correlated, but defined for any sampler; adds no variance.

    Args:
        cotangent: v, [*batch, n].
        probability: P(s_j = +1) as sampled, [*batch, n].
        visible: bool [*batch, n].
        response_at: (1 + t)/2, [*batch, n]; None for t = m.
        couplings: Also return ∂L/∂J; for edges, that of every edge.
        three_body: Also return ∂L/∂K.
    """
    at = probability if response_at is None else response_at
    # (1 - t²)/2 = 2 P (1 - P), which keeps its relative precision near P = 0.
    response = torch.where(visible, 2 * at * (1 - at) * cotangent, 0)
    m = torch.where(visible, 2 * probability - 1, 0)
    dJ = dK = None
    if isinstance(couplings, Edges):
        j, k = couplings.index.T
        dJ = response[..., j] * m[..., k] + response[..., k] * m[..., j]
    elif couplings:
        dJ = _symmetric_pairs(response, m)
    if three_body:
        dK = _symmetric_triples(response, m)
    return ProblemGradient(response, dJ, dK)


def linear_response(
    cotangent: Tensor, probability: Tensor, visible: Tensor, effective: Tensor | None, *, couplings: bool,
    three_body: bool, response_at: Tensor | None = None,
) -> ProblemGradient:  # fmt: skip
    r"""Mean-field response with its feedback through J; uses no reads and adds no variance.

    The derivative of the fixed point of mean field with Onsager's reaction term,

        m = tanh(h + J m - V m),    dm = χ (dh + dJ m - dV m),    χ = (D⁻¹ + V - J)⁻¹,    D = 1 - t²

    at the sampled m and with t as in :func:`straight_through`.  The diagonal V(J, D) is the one that makes the
    diagonal of χ equal to the variances D (:mod:`diabat.attention.susceptibility`).  For couplings of any strength χ
    is then a covariance matrix: |χ_jk| <= sqrt(D_j D_k).  V = 0 would be the plain (D⁻¹ - J)⁻¹, which is
    singular at a coupling strength of order one.  D is held fixed in dV.  A three-body term enters through
    the effective coupling J_jk + Σ_l K_jkl m_l and adds Σ_{k<l} dK_jkl m_k m_l to dh_j.

    Given the magnetizations of a Boltzmann law, ∂L/∂h and ∂L/∂J miss the exact gradient by J² instead of
    straight-through's J.  ∂L/∂K, and ∂L/∂J in what depends on K, are of zeroth order.

    Arguments as in :func:`straight_through`; ``effective`` is J_jk + Σ_l K_jkl m_l as from
    :func:`effective_couplings`, symmetric, [*lead, n, n], or None.
    """
    if effective is None:
        return straight_through(
            cotangent, probability, visible, response_at, couplings=couplings, three_body=three_body
        )
    at, dtype = (probability if response_at is None else response_at).double(), cotangent.dtype
    # D = 1 - t² = 4 P (1 - P); rounding can push P above 1.
    scale = torch.where(visible, 4 * at * (1 - at), 0).clamp(min=0).sqrt()
    correlations = consistent_correlations(scale[..., :, None] * effective * scale[..., None, :])
    heard = (correlations @ (scale * cotangent / 2)[..., None])[..., 0]
    response = scale * heard  # χ v/2
    m = torch.where(visible, 2 * probability.double() - 1, 0)
    dJ = dK = None
    if couplings:
        # V = (Λ - 1)/D, hence ∂L/∂Λ = -response m/D; a frozen spin has no reaction.
        echo = torch.where(scale > 0, heard * m / scale, 0)
        reaction = scale[..., :, None] * multiplier_gradient(correlations, echo) * scale[..., None, :]
        dJ = _symmetric_pairs(response, m) - _without_diagonal(reaction)
    if three_body:
        dK = _symmetric_triples(response, m)
    dJ, dK = (None if t is None else t.to(dtype) for t in (dJ, dK))
    return ProblemGradient(response.to(dtype), dJ, dK)


def effective_couplings(ising: Ising, probability: Tensor) -> Tensor | None:
    r"""Compute J_jk + Σ_l K_jkl m_l, [*lead or *batch, n, n], at the sampled m, [*batch, n], without edges.

    J if there is no K; None if there is neither.
    """
    if ising.three_body is None:
        return ising.matrix
    m = torch.where(ising.visible_mask, 2 * probability - 1, 0)
    cubic = torch.einsum("...jkl,...l->...jk", ising.three_body, m)
    return cubic if ising.matrix is None else ising.matrix + cubic


def mean_field_probability(ising: Ising, probability: Tensor) -> Tensor:
    r"""Compute σ(2 f_j), f_j = h_j + Σ_k J_jk m_k + Σ_{k<l} K_jkl m_k m_l, [*batch, n]: mean field from sampled m."""
    m = torch.where(ising.visible_mask, 2 * probability - 1, 0)
    local = ising.fields
    if ising.edges is not None:
        local = local + ising.edges.local_fields(m)
    elif ising.matrix is not None:
        local = local + (m[..., None, :] @ ising.matrix)[..., 0, :]
    if ising.three_body is not None:
        local = local + torch.einsum("...jkl,...k,...l->...j", ising.three_body, m, m) / 2
    return torch.sigmoid(2 * local)


def covariance(
    cotangent: Tensor, spins: Tensor, visible: Tensor, *, couplings: bool | Edges, three_body: bool
) -> ProblemGradient:
    r"""Fluctuation-dissipation with sample covariances (unbiased for Boltzmann samples).

        ∂L/∂h_j = Cov(f, s_j),   ∂L/∂J_jk = ½ Cov(f, s_j s_k),   f = ½ Σ_i v_i s_i

    with the N - 1 normalisation.

    Arguments as in :func:`straight_through`; ``spins`` are the reads, ±1, [num_reads, *batch, n].  For edges ∂L/∂J is
    Cov(f, s_j s_k).  ValueError with a single read, which has no covariance; RuntimeError for a batch of cotangents,
    for which einsum has no rule.
    """
    refuse_batched_cotangent(cotangent)
    reads = spins.shape[0]
    if reads < 2:
        raise ArgumentError("num_reads", f"the covariance estimator expects at least 2 reads, got {reads}.")
    s = torch.where(visible, spins.to(cotangent.dtype), 0)
    w = s.new_full(s.shape[:-1], 1 / reads)
    f = (s * cotangent).sum(-1) / 2
    centred = w * (f - (w * f).sum(0)) / (1 - (w**2).sum(0))
    dh = torch.einsum("r...,r...j->...j", centred, s)
    dJ = dK = None
    if isinstance(couplings, Edges):
        j, k = couplings.index.T
        # One read at a time: the products of all would not fit in memory.
        parts = zip(centred, s, strict=True)
        dJ = sum((c[..., None] * one[..., j] * one[..., k] for c, one in parts), s.new_zeros(()))
    elif couplings:
        dJ = _without_diagonal(torch.einsum("r...,r...j,r...k->...jk", centred, s, s) / 2)
    if three_body:
        dK = _without_coincidences(torch.einsum("r...,r...j,r...k,r...l->...jkl", centred, s, s, s) / 6)
    return ProblemGradient(dh, dJ, dK)


def adjoint(cotangent: Tensor, solution: AdjointSolution, *, couplings: bool, **rest: Any) -> ProblemGradient:
    """The derivative of the sampler's own law, also with respect to the sampler's parameters.

    ``solution`` is :meth:`diabat.Sampler.solution` of the problem, with the seed of the forward pass.  It knows
    what is visible, and ∂L/∂J has the shape of J.  RuntimeError for a batch of cotangents.
    """
    refuse_batched_cotangent(cotangent)
    exact = solution.derivative(cotangent)
    return ProblemGradient(exact.fields, exact.couplings if couplings else None, None, exact.parameters)


Need = Literal["probability", "response_at", "effective", "spins", "solution"]


@dataclass(frozen=True)
class GradientEstimator:
    """A row of the table.

    Attributes:
        name: As in ``Capabilities.gradients``.
        function: Takes the cotangent, and by name ``visible``, ``couplings``, ``three_body`` and what it ``needs``.
        needs: Names of further arguments, as in the estimators above; only these are computed.
        edges: Whether it returns ∂L/∂J of edges; else they become a matrix.
    """

    name: Estimator
    function: Callable[..., ProblemGradient]
    needs: tuple[Need, ...]
    edges: bool = False

    @cached_property
    def uses_reads(self) -> bool:
        """Whether the sampler draws reads; else it computes moments, from reads or without."""
        return "spins" in self.needs

    @cached_property
    def uses_adjoint(self) -> bool:
        """Whether both passes need the same seed, and the sampler's parameters get a gradient."""
        return "solution" in self.needs


# All but "exact", which is the derivative that the sampler's moments have by autograd.
ESTIMATORS = {
    row.name: row
    for row in (
        GradientEstimator("straight_through", straight_through, ("probability", "response_at"), edges=True),
        GradientEstimator("linear_response", linear_response, ("probability", "response_at", "effective")),
        GradientEstimator("covariance", covariance, ("spins",), edges=True),
        GradientEstimator("adjoint", adjoint, ("solution",)),
    )
}


def _symmetric_pairs(response: Tensor, m: Tensor) -> Tensor:
    outer = response[..., :, None] * m[..., None, :]
    return _without_diagonal((outer + outer.mT) / 2)


def _without_diagonal(J: Tensor) -> Tensor:
    """Zero the diagonal of J [..., n, n] in place."""
    J.diagonal(dim1=-2, dim2=-1).zero_()
    return J


def _symmetric_triples(response: Tensor, m: Tensor) -> Tensor:
    product = response[..., :, None, None] * m[..., None, :, None] * m[..., None, None, :]
    cyclic = product + product.movedim(-3, -2) + product.movedim(-3, -1)
    return _without_coincidences(cyclic / 6)


def _without_coincidences(K: Tensor) -> Tensor:
    """Zero the entries of K [..., n, n, n] in which two indices coincide."""
    for first, second in ((-3, -2), (-3, -1), (-2, -1)):
        K.diagonal(dim1=first, dim2=second).zero_()
    return K
