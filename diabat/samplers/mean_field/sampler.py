r"""Backend ``mean_field``: damped naive mean field with the implicit gradient of its fixed point.

    m_j = tanh(h_j + Σ_k J_jk m_k),        P(s_j = +1) = σ(2 (h_j + Σ_k J_jk m_k))

(naive mean field; three-body terms add Σ_{k<l} K_jkl m_k m_l to the local field.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diabat.checks import ArgumentError, check_count, check_positive, is_number
from diabat.ising import Ising
from diabat.samplers.answers import Moments, Solution
from diabat.samplers.base import Capabilities, Sampler, UnsupportedError
from diabat.samplers.diagnostics import Watched
from diabat.samplers.edge_response import EdgeResponse
from diabat.samplers.mean_field.iteration import Iterated, iterate, local_field
from diabat.samplers.mean_field.small_batches import SmallSolution, is_small, small_moments


class MeanFieldSampler(Sampler):
    """Magnetizations at a mean-field fixed point, found by damped iteration from m = 0.

    The gradient is that of the fixed point (implicit differentiation), not of the iteration.  With strong couplings
    the iteration may stop unconverged or in one of several fixed points: ``info["converged"]`` says whether all
    problems have converged, ``info["iterations"]`` and ``info["residual"]`` are the largest of them, and
    ``info["problems"]`` has the three of each problem: ``converged`` bool, ``iterations`` int32 and ``residual``
    float64, all [*batch].

    Each problem stops as soon as it has converged, so its answer does not depend on the others.  On the CPU, up to
    128 spins (256 where few problems share a J) and without three-body terms, compiled code solves it, up to 24 spins
    with one problem per lane of a vector: a problem whose residual falls slowly takes Newton steps
    m + (1 - D J)⁻¹ (tanh(h + J m) - m), D = diag(1 - m²), near a stable fixed point only, so that it is the one to
    which the damped iteration leads, and one that oscillates halves its damping.

    Args:
        damping: Weight of the new value in m ← (1 - damping) m + damping tanh(...), in (0, 1].
        max_iterations: Largest number of iterations.
        tolerance: Stop when no magnetization changes by more than this.

    Raises:
        ValueError: If an option is out of range.
    """

    name = "mean_field"
    capabilities = Capabilities(
        law="mean-field",
        three_body=True,
        edges=True,
        samples=False,
        correlations=False,
        gradients=("exact", "straight_through", "linear_response"),
        solution=True,
    )

    def __init__(self, *, damping: float = 0.7, max_iterations: int = 500, tolerance: float = 1e-6) -> None:
        if not is_number(damping) or not 0 < damping <= 1:
            raise ArgumentError("damping", f"expected a number in (0, 1], got {damping!r}.")
        check_count("max_iterations", max_iterations)
        check_positive("tolerance", tolerance)
        self.damping, self.max_iterations, self.tolerance = damping, max_iterations, float(tolerance)

    @property
    def watched(self) -> tuple[Watched, ...]:
        """Whether the iteration has converged; this does not measure the distance from the Boltzmann law."""
        return (
            Watched("converged", "converged", least=1, advice="a smaller damping, or more max_iterations"),
            Watched("iterations", "iterations"),
            Watched("residual", "residual", most=self.tolerance, advice="the point is not a fixed point"),
        )

    @property
    def expected_error(self) -> str:
        """The mean of docs/dqa.md, n = 8."""
        return (
            "mean |error| of P .009, .044, .074 for h ~ N(0, g), J ~ N(0, g/√n) at g = 0.3, 0.6, 1; "
            "without bound in single problems with strong couplings (docs/dqa.md)"
        )

    def solution(self, ising: Ising, *, odds: bool = False, differentiated: bool = True) -> Solution | None:
        """As in the base class, for batches that compiled code solves."""
        return SmallSolution(ising, self._rules, odds=odds) if is_small(ising) else None

    def _moments(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        visible = ising.visible_mask
        if is_small(ising):
            small = SmallSolution(ising, self._rules)
            probability = small_moments(ising, small)
            return Moments(probability=probability, visible=visible, info=self._info(small.iterated))
        with torch.no_grad():
            found = iterate(ising.detach(), *self._rules)
        m = found.magnetization
        local: Any = local_field(_symmetrised(ising), m)
        if ising.edges is None:
            local = _FixedPointResponse.apply(local, _effective_couplings(ising.detach(), m), m, visible)
        else:
            local = EdgeResponse.apply(local, ising.edges, m, visible)
        # σ(2x), not (tanh x + 1)/2: it keeps its relative precision when m is -1 to rounding.
        probability = torch.where(visible, torch.sigmoid(2 * local), 0)
        return Moments(probability=probability, visible=visible, info=self._info(found))

    def _smooth_moments(self, ising: Ising) -> tuple[Tensor, Tensor | None]:
        ising, visible = ising.dense(), ising.visible_mask
        with torch.no_grad():
            problem = ising.detach()
            small = is_small(problem)
            found = SmallSolution(problem, self._rules).iterated if small else iterate(problem, *self._rules)
        info, m = self._info(found), found.magnetization
        if not info["converged"]:
            raise UnsupportedError(
                "gradient",
                "second derivatives through 'mean_field' expect a converged fixed point, got a residual of "
                f"{info['residual']:.3g} after {info['iterations']} iterations; raise max_iterations or damp more.",
            )
        symmetric = _symmetrised(ising)
        local = local_field(problem, m)
        # From a fixed point one Newton step gives the correct first derivative, two steps give three.
        for _ in range(2):
            local = _newton_step(symmetric, local, visible)
        return torch.where(visible, torch.sigmoid(2 * local), 0), None

    @property
    def _rules(self) -> tuple[float, float, int]:
        return self.damping, self.tolerance, self.max_iterations

    def _info(self, found: Iterated) -> dict[str, Any]:
        converged = found.residual <= self.tolerance
        return {
            "iterations": int(found.iterations.max()),
            "residual": float(found.residual.max()),
            "converged": bool(converged.all()),
            "problems": {
                "iterations": found.iterations,
                "residual": found.residual,
                "converged": converged,
            },
        }


def _symmetrised(ising: Ising) -> Ising:
    """Replace J and K by their symmetric part, so that their gradients are symmetric."""
    if ising.edges is not None:  # one value for both entries
        return ising
    J, K = ising.couplings, ising.three_body
    apart = 1 - torch.eye(ising.num_spins, dtype=ising.fields.dtype, device=ising.fields.device)
    if J is not None and J.requires_grad:
        J = (J + J.mT) / 2 * apart
    if K is not None and K.requires_grad:
        K = (K + K.transpose(-1, -2)) / 2
        K = (K + K.movedim(-1, -3) + K.movedim(-3, -1)) / 3
        K = K * apart * apart[:, :, None] * apart[:, None, :]
    return Ising(ising.fields, J, ising.visible, K, check=False)


def _effective_couplings(ising: Ising, m: Tensor) -> Tensor | None:
    """∂(local field)_j / ∂m_k = J_jk + Σ_l K_jkl m_l."""
    effective = ising.couplings
    if ising.three_body is not None:
        cubic = torch.einsum("...jkl,...l->...jk", ising.three_body, m)
        effective = cubic if effective is None else effective + cubic
    return effective


def _newton_step(ising: Ising, local: Tensor, visible: Tensor) -> Tensor:
    """One step towards x = h + J tanh(x) + ..., the local fields of a fixed point."""
    m = torch.where(visible, torch.tanh(local), 0)
    response = torch.where(visible, 1 - m**2, 0)
    residual = local_field(ising, m) - local
    effective = _effective_couplings(ising, m)
    if effective is None:
        return local + residual
    identity = torch.eye(m.shape[-1], dtype=m.dtype, device=m.device)
    system = identity - effective * response[..., None, :]
    return local + torch.linalg.solve(system, residual[..., None])[..., 0]


class _FixedPointResponse(torch.autograd.Function):
    """Identity on the local field x; its backward turns ∂L/∂x at the fixed point into ∂L/∂x at fixed m.

    x = h + J tanh(x) gives dx = (1 - J D)⁻¹ (dh + dJ m) with D = diag(1 - m²), so that the cotangent u
    becomes (1 - D J)⁻¹ u.
    """

    @staticmethod
    def forward(ctx: Any, local: Tensor, effective: Tensor | None, m: Tensor, visible: Tensor) -> Tensor:
        response = torch.where(visible, 1 - m**2, 0)  # invisible spins do not respond
        ctx.save_for_backward(*((response,) if effective is None else (response, effective)))
        return local.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        (u,) = cotangents
        response, *rest = ctx.saved_tensors
        if not rest:
            return u, None, None, None
        identity = torch.eye(u.shape[-1], dtype=u.dtype, device=u.device)
        system = identity - response[..., None] * rest[0]
        return torch.linalg.solve(system, u[..., None])[..., 0], None, None, None
