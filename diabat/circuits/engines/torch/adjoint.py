"""The adjoint method on a torch device: derivatives of fields, couplings and angles in constant memory."""

from __future__ import annotations

import torch
from torch import Tensor

from diabat.circuits.engines.torch.steps import HalvedStates, TorchSteps


def observable(states: HalvedStates, cotangents: Tensor, pair_cotangents: Tensor | None) -> Tensor:
    """O(x) = Σ_j v_j [s_j = +1] + Σ_{jk} w_jk s_j s_k, float64 [A, B, Q], for v [Q, n] and w [Q, n, n]."""
    high, low = states.field_terms(cotangents)
    total = (high + low + cotangents.sum(1)) / 2
    return total if pair_cotangents is None else total + states.pair_terms(pair_cotangents)


def part_gradient(
    steps: TorchSteps, operator: Tensor, *, with_angles: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Derivatives of L = Σ_q <ψ_q|O_q|ψ_q>.

    With |λ> = O|ψ> the steps are undone one by one on |ψ> and |λ>. In step k, with t(x) = Im( conj λ(x) ψ(x) ),

        ∂L/∂Φ_k(x) = -2 t(x),    ∂L/∂a_k = Re <λ| Σ_j R_j |ψ>,

    and Φ_k is linear in h, J, b_k and c_k: Σ_k b_k t and Σ_k c_k t are summed, and contracted with the spins once at
    the end. Memory is two pairs of states, for any number of steps.

    Args:
        steps: The plan for these problems.
        operator: O, float64 [A, B, Q].
        with_angles: Whether derivatives of the angles are requested; else they stay zero, which saves a fifth of the
            time.

    Returns:
        ∂L/∂h, [Q, n]; ∂L/∂J with zero diagonal, [1, n, n] summed over the problems where they share J, or [Q, n, n];
        and ∂L/∂b, ∂L/∂c and ∂L/∂a, [3, steps]; all float64.
    """
    psi = steps.run()
    weight = torch.view_as_real(psi[0]).square().sum(-1)
    # A constant in O has no effect; removing it reduces the products below and their rounding errors.
    centred = (operator - (operator * weight).sum((0, 1))).to(weight.dtype)
    pair = torch.cat([psi * centred, psi])
    del psi, weight, centred
    scratch = torch.empty_like(pair)
    plan, states = steps.plan, steps.states
    angles = torch.zeros(3, plan.steps, dtype=torch.float64, device=pair.device)
    high, low = (torch.zeros_like(table) for table in steps.fields)
    pairs = torch.zeros_like(steps.couplings)
    for k in reversed(range(plan.steps)):
        b, c = float(plan.field_angles[k]), float(plan.coupling_angles[k])
        if with_angles:
            angles[2, k] = steps.mixer_slope(pair[0], pair[1], scratch[0])
        pair, scratch = steps.mix(k, pair, scratch, sign=-1)
        t = torch.mul(pair[0].conj(), pair[1], out=scratch[0]).imag.contiguous()
        t_high, t_low = t.sum(1, keepdim=True), t.sum(0, keepdim=True)
        t_pairs = t.sum(2, keepdim=True) if pairs.shape[2] == 1 else t
        if with_angles:
            angles[0, k] = -_dot(t_high, steps.fields[0]) - _dot(t_low, steps.fields[1])
            angles[1, k] = -_dot(t_pairs, steps.couplings)
        high.add_(t_high, alpha=-b)
        low.add_(t_low, alpha=-b)
        pairs.add_(t_pairs, alpha=-c)
        steps.turn(k, pair, sign=-1)
    couplings = states.pair_sums(pairs) / 2
    couplings.diagonal(dim1=1, dim2=2).zero_()
    return states.spin_sums(high[:, 0], low[0]), couplings, angles


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum()
