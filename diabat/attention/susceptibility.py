r"""Susceptibility of a spin system whose variances are known, from couplings alone.

Mean field has χ = (D⁻¹ - J)⁻¹, D = diag(1 - m²), or without dividing by the D of a saturated spin

    χ = D^½ C D^½,      C = (1 - S)⁻¹,      S = D^½ J D^½

1 - S is singular where an eigenvalue of S reaches 1, and long before that the diagonal of χ is far from the
given variances 1 - m².  Requiring the diagonal to equal them solves both problems:

    C = (Λ - S)⁻¹,      Λ diagonal such that C_jj = 1 and Λ - S is positive definite

(the diagonal consistency of adaptive TAP: Opper and Winther, Phys. Rev. E 64, 056131, 2001).  Λ minimises the
strictly convex tr Λ - log det(Λ - S), whose value is infinite on the border, so that it exists and is unique
however strong the couplings are, and C is a correlation matrix: |C_jk| <= 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

_TOLERANCE = 1e-8
_MAX_STEPS = 50
# Damped Newton steps stay inside the domain; below this decrement full ones do, and converge quadratically.
_FULL_STEP_BELOW = 0.25
# Largest sum of |S| over a row.  Beyond, C has long reached its limit of infinite couplings to a per cent, and
# with it Λ - S keeps a condition number below about 1e5, at which every step is safe.
_STRONGEST = 100.0
# 2^21 doubles, 16 MiB: several temporaries of this size are alive at once.
_CHUNK_CELLS = 1 << 21


def consistent_correlations(scaled: Tensor) -> Tensor:
    r"""Solve diag (Λ - S)⁻¹ = 1 for a diagonal Λ and return C = (Λ - S)⁻¹, one problem of the batch at a time.

    To second order in S, Λ_j = 1 + Σ_k S_jk² (the Onsager term) and C_jk = S_jk + Σ_l S_jl S_lk.  Costs a few
    inversions of n × n for each problem: three with weak couplings, ten or twenty with strong ones.

    S is ``scaled``, symmetric with zero diagonal, [*batch, n, n]; a problem with a row whose sum of |S| exceeds 100 is
    scaled down to it.  C is float64, symmetric and positive semidefinite with unit diagonal; a spin without couplings
    has a row of the identity.
    """
    n = scaled.shape[-1]
    problems = scaled.detach().double().reshape(-1, n, n)
    rows = problems.abs().sum(-1).amax(-1)[:, None, None] if n else problems.sum((-1, -2), keepdim=True)
    problems = problems / (rows / _STRONGEST).clamp(min=1)
    parts = [_solve(part) for part in problems.split(max(1, _CHUNK_CELLS // max(1, n * n)))]
    return torch.cat(parts).reshape(scaled.shape)


def multiplier_gradient(correlations: Tensor, cotangent: Tensor) -> Tensor:
    r"""Turn a cotangent of Λ into that of S, Λ(S) being the solution of diag (Λ - S)⁻¹ = 1.

    Differentiating the condition, (C ∘ C) dΛ = diag(C dS C), so that g = ∂L/∂Λ, [*batch, n], becomes C diag(y) C with
    (C ∘ C) y = g: ∂L/∂S, [*batch, n, n], symmetric, dL being read as Σ_jk (∂L/∂S)_jk dS_jk; the diagonal, which S does
    not have, is not meant.
    """
    y = torch.linalg.solve(correlations.square(), cotangent)
    product = (correlations * y[..., None, :]) @ correlations
    return (product + product.mT) / 2


def _solve(S: Tensor) -> Tensor:
    """Newton's method on the convex function, problems [N, n, n]; those that are done stand still."""
    lagrange = _start(S)
    C = torch.linalg.inv(torch.diag_embed(lagrange) - S)
    for _ in range(_MAX_STEPS):
        excess = 1 - C.diagonal(dim1=-2, dim2=-1)
        open_ = excess.abs().amax(-1, keepdim=True) > _TOLERANCE
        if not open_.any():
            break
        # The Hessian C ∘ C is positive definite (Schur), hence solvable.
        step = torch.linalg.solve(C.square(), excess)
        decrement = (step * excess).sum(-1, keepdim=True).clamp(min=0).sqrt()
        length = torch.where(decrement < _FULL_STEP_BELOW, 1, 1 / (1 + decrement))
        lagrange = torch.where(open_, lagrange - length * step, lagrange)
        C = torch.linalg.inv(torch.diag_embed(lagrange) - S)
    # A unit diagonal to rounding, and a correlation matrix also where the steps ran out.
    norm = C.diagonal(dim1=-2, dim2=-1).rsqrt()
    C = norm[..., :, None] * C * norm[..., None, :]
    return (C + C.mT) / 2


def _start(S: Tensor) -> Tensor:
    """Λ to second order where Λ - S is positive definite, else a diagonally dominant one."""
    second_order = 1 + S.square().sum(-1)
    _, failed = torch.linalg.cholesky_ex(torch.diag_embed(second_order) - S)
    return torch.where(failed[..., None] == 0, second_order, 1 + S.abs().sum(-1))
