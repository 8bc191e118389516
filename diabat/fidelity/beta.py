r"""Effective inverse temperatures by maximum pseudo-likelihood, one for each kind of term.

With s_j given the other spins, P(s_j | rest) = σ(2 s_j (β_h h_j + β_J Σ_k J_jk s_k + β_K Σ_{k<l} K_jkl s_k
s_l)) for a sampler that multiplies the fields by β_h, the couplings by β_J and the three-body terms by
β_K.  The fit maximises

    Σ_problems Σ_reads w Σ_j log P(s_j | rest)

by Newton's method.  It is consistent, needs no partition function, and is exact in the limit of all 2^n
states with their probabilities as weights.  Source: Besag (1975); two scales as in
``dwave.system.temperatures`` (opposite sign).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from diabat.ising import Ising

_ITERATIONS = 60
_LARGEST_STEP = 2.0
_TINY = 1e-12


@dataclass(frozen=True)
class BetaFit:
    """Fitted scales and their standard errors; None without such a term, or where no finite fit exists.

    Attributes:
        field: β_h.
        field_error: Standard error of β_h; 0 for exact state probabilities.
        coupling: β_J.
        coupling_error: Standard error of β_J.
        three_body: β_K.
        three_body_error: Standard error of β_K.
    """

    field: float | None
    field_error: float | None
    coupling: float | None
    coupling_error: float | None
    three_body: float | None
    three_body_error: float | None


def fit_betas(ising: Ising, spins: Tensor, weights: Tensor, *, sampled: bool = True) -> BetaFit:
    """Fit β_h, β_J and β_K to reads, or to all states with their probabilities.

    Args:
        ising: The problems that were asked for, fields [*batch, n].
        spins: ±1, [reads, *batch, n], or [2^n, n] for a table shared by all problems.
        weights: Non-negative weight of each read, [reads, *batch], summing to 1 along the first axis.
        sampled: Whether the reads are a sample; if False (all states) the standard errors are 0.

    Returns:
        The fit, pooled over the batch; standard errors by the sandwich formula, clustered by read because the
        conditionals of one read depend on each other.
    """
    data = _flatten(ising, spins, weights)
    live = [i for i, terms in enumerate((ising.fields, ising.couplings, ising.three_body)) if _present(terms)]
    beta = torch.ones(len(live), dtype=torch.float64)
    converged = False
    for _ in range(_ITERATIONS if live else 0):
        gradient, hessian, _ = _derivatives(data, beta, live)
        if not torch.isfinite(hessian).all() or float(torch.linalg.eigvalsh(hessian)[0]) < _TINY:
            break
        step = torch.linalg.solve(hessian, gradient)
        # Far from the optimum a full Newton step overshoots; the objective is concave, a shorter one is safe.
        beta = beta + step * min(1.0, _LARGEST_STEP / (float(step.abs().max()) + _TINY))
        if converged := float(step.abs().max()) < 1e-10 * (1 + float(beta.abs().max())):
            break
    if not converged:
        return BetaFit(*(None,) * 6)
    _, hessian, scores = _derivatives(data, beta, live)
    inverse = torch.linalg.inv(hessian)
    errors = (
        (inverse @ scores @ inverse).diagonal().clamp(min=0).sqrt() if sampled else torch.zeros(len(live))
    )
    found: list[float | None] = [None] * 6
    for i, value, error in zip(live, beta.tolist(), errors.tolist(), strict=True):
        found[2 * i : 2 * i + 2] = [value, error]
    return BetaFit(*found)


@dataclass(frozen=True, eq=False)
class _Data:
    ising: Ising  # flat: fields [P, n], J [P | 1, n, n], K [P | 1, n, n, n]
    spins: Tensor  # [R, P | 1, n]
    weights: Tensor  # [R, P]


def _flatten(ising: Ising, spins: Tensor, weights: Tensor) -> _Data:
    n, batch, problems = ising.num_spins, ising.batch_shape, ising.num_problems

    def flat(value: Tensor | None, order: int) -> Tensor | None:
        if value is None:
            return None
        shape = value.shape[-order:]
        if value.shape[:-order].numel() == 1:
            return value.detach().double().reshape(1, *shape)
        return value.detach().double().expand(*batch, *shape).reshape(problems, *shape)

    h = ising.fields.detach().double().reshape(problems, n)
    visible = ising.visible_mask.reshape(problems, n)
    flat_ising = Ising(h, flat(ising.couplings, 2), visible, flat(ising.three_body, 3), check=False)
    shared = spins.ndim == 2 and bool(batch)
    s = spins[:, None, :] if shared else spins.reshape(len(spins), problems, n)
    return _Data(flat_ising, s, weights.double().reshape(len(spins), problems))


def _present(terms: Tensor | None) -> bool:
    return terms is not None and bool((terms != 0).any())


def _features(data: _Data, problem: int, live: list[int]) -> tuple[Tensor, Tensor]:
    """Spins [R, n] of one problem, 0 where invisible, and 2 s_j times the local fields, [R, n, terms]."""
    ising = data.ising
    s = data.spins[:, problem if data.spins.shape[1] > 1 else 0].double() * ising.visible_mask[problem]
    local = []
    for kind in live:
        if kind == 0:
            local.append(ising.fields[problem].expand_as(s))
            continue
        terms = ising.couplings if kind == 1 else ising.three_body
        assert terms is not None
        matrix = terms[problem if len(terms) > 1 else 0]
        local.append(s @ matrix if kind == 1 else torch.einsum("jkl,rk,rl->rj", matrix, s, s) / 2)
    return s, 2 * s[..., None] * torch.stack(local, dim=-1)


def _derivatives(data: _Data, beta: Tensor, live: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient [t], negative Hessian [t, t] and Σ w² g gᵀ over reads [t, t] of the log pseudo-likelihood.

    One problem at a time: all 2^16 states of all queries at once would not fit.
    """
    terms = len(live)
    gradient, hessian, scores = torch.zeros(terms).double(), *torch.zeros(2, terms, terms).double()
    for problem in range(data.weights.shape[1]):
        _, x = _features(data, problem, live)
        w = data.weights[:, problem]
        miss = torch.sigmoid(-(x @ beta))  # probability of the other value of spin j
        g = torch.einsum("rj,rjt->rt", miss, x)
        gradient = gradient + w @ g
        curvature = x * (miss * (1 - miss) * w[:, None])[..., None]
        hessian = hessian + torch.einsum("rjt,rju->tu", curvature, x)
        centred = g - w @ g
        scores = scores + torch.einsum("r,rt,ru->tu", w**2, centred, centred)
    return gradient, hessian, scores
