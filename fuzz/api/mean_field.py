"""``mean_field`` against the equations of its fixed point, solved here by numpy."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import diabat
from diabat.ising import Ising
from fuzz.api.analytic import ROUNDING, check_range
from fuzz.api.problems import parts, random_problem
from fuzz.dice import Dice
from fuzz.outcome import demand

_CONDITION = 1e4


def mean_field(dice: Dice) -> None:
    """The residual of the fixed point where it has converged, and its implicit gradient."""
    ising = random_problem(dice)
    options = {"damping": dice.pick([0.3, 0.7, 1.0])} if dice.chance(0.3) else {}
    moments = diabat.sampler("mean_field", **options).moments(ising)
    check_range(moments, ising)
    probability = moments.probability.detach().double()
    local, effective = _local(ising, probability)
    # How far the residual of the iteration and the rounding of exponents may carry.
    reach = _reach(ising)
    error = (probability - torch.where(ising.visible_mask, torch.sigmoid(2 * local), 0)).abs()
    bound = 1e-6 * (1 + min(reach, 1e6)) ** 2 + ROUNDING[ising.fields.dtype] * float(local.abs().max())
    if moments.info["converged"] and bound < 0.1:
        demand(float(error.max()) <= bound, f"residual: expected {bound:.1e}, got {float(error.max()):.1e}")
    if ising.fields.requires_grad:
        v = dice.normal(*ising.fields.shape)
        (g,) = torch.autograd.grad((moments.probability * v).sum(), [ising.fields])
        demand(bool(g.isfinite().all()), f"gradient: expected finite numbers, got {g}")
        if moments.info["converged"]:
            _check_gradient(g, probability, effective, v, ising)


def _reach(ising: Ising) -> float:
    """Largest sum of |J| and |K| that act on one spin."""
    terms = [(order, t.detach().double().abs()) for order, t in parts(ising) if order > 1]
    return float(sum(t.flatten(1 - order).sum(-1).max() for order, t in terms))


def _local(ising: Ising, p: Tensor) -> tuple[Tensor, Tensor]:
    """Local fields h + J m + ½ K m m, and its derivative in m, in float64."""
    m = torch.where(ising.visible_mask, 2 * p - 1, 0)
    n = ising.num_spins
    local, effective = ising.fields.detach().double(), torch.zeros(*m.shape, n, dtype=torch.float64)
    if ising.couplings is not None:
        J = ising.couplings.detach().double()
        local, effective = local + (J @ m[..., None])[..., 0], effective + J
    if ising.three_body is not None:
        KM = torch.einsum("...jkl,...l->...jk", ising.three_body.detach().double(), m)
        local, effective = local + (KM @ m[..., None])[..., 0] / 2, effective + KM
    return local, effective


def _check_gradient(g: Tensor, p: Tensor, effective: Tensor, v: Tensor, ising: Ising) -> None:
    """∂L/∂h = (1 - D J)⁻¹ 2 P (1 - P) v with D = 4 P (1 - P), where that is well conditioned."""
    if ising.fields.dtype != torch.float64 or _reach(ising) > 1e3:
        return
    D = torch.where(ising.visible_mask, 4 * p * (1 - p), 0)
    system = (torch.eye(p.shape[-1]) - D[..., None] * effective).numpy()
    condition = float(np.linalg.cond(system).max())
    if condition < _CONDITION:
        want = np.linalg.solve(system, (D / 2 * v)[..., None].numpy())[..., 0]
        error = float(np.abs(g.double().numpy() - want).max())
        bound = 1e-5 * condition * (1 + _reach(ising)) ** 2 * max(1.0, float(np.abs(want).max()))
        demand(error <= bound, f"gradient: expected the implicit one within {bound:.1e}, got {error:.1e} off")
