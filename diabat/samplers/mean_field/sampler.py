r"""Backend ``mean_field``: naive mean field with the implicit gradient of its fixed point.

    m_j = tanh(h_j + Σ_k J_jk m_k),        P(s_j = +1) = σ(2 (h_j + Σ_k J_jk m_k))

(three-body terms add Σ_{k<l} K_jkl m_k m_l to the local field.)
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from diabat.checks import ArgumentError, check_count, check_positive, is_number
from diabat.ising import Ising, without_autocast
from diabat.samplers.analytic import AnalyticSampler
from diabat.samplers.answers import Moments, Solution
from diabat.samplers.capabilities import FROM_MARGINALS, Capabilities, UnsupportedError
from diabat.samplers.diagnostics import Watched
from diabat.samplers.folding import transformed
from diabat.samplers.mean_field.compiled import is_compiled
from diabat.samplers.mean_field.iteration import local_field, symmetrised
from diabat.samplers.mean_field.rules import Rules
from diabat.samplers.mean_field.solution import FixedPoint


class MeanFieldSampler(AnalyticSampler):
    """Magnetizations at a stable fixed point of mean field, which is a minimum of its free energy.

    From m = 0 on m moves by d g, g = tanh(h + J m + ½ K m m) - m, and
    the damping d is halved whenever g turns back on the g before.  Near a fixed point that damping would take long to
    reach, truncated Newton steps follow, up to twice as long as the way that damping would go at its present rate.  A
    problem has converged where max |g| is within the tolerance and A = 1 - √D (J + K m) √D, D = 1 - m², is positive
    definite.  From a saddle, where A is not, m is pushed in a direction of negative curvature: to the side of g, or
    without fields always to the same one.  Among several minima the answer is nearly always the one that a damped
    iteration reaches.  It depends on neither the rest of the batch nor the number of threads.

    Compiled code solves J of up to 1536 spins on the CPU, and edges of up to 512; torch all else, with a look at
    residuals after every four iterations.  It asks for Cholesky's factors of 0.999 - J first: where they exist there is
    one minimum, and neither Newton steps in the first 24 iterations nor a test of A follow.

    The gradient is that of the fixed point (implicit differentiation), not of the iteration.  It is finite also where a
    problem has not converged: directions in which A is not positive definite then do not respond.

    ``info["converged"]`` says whether all problems have converged, ``info["iterations"]`` and ``info["residual"]``
    (max |g|) are the largest of them, and ``info["problems"]`` has the three of each problem: ``converged`` bool,
    ``iterations`` int32 and ``residual`` float64, all [*batch].

    Args:
        damping: d at the start, in (0, 1].
        max_iterations: Largest number of iterations.
        tolerance: Largest residual of a converged problem.

    Raises:
        ValueError: If an option is out of range.
    """

    name = "mean_field"
    smooth = True
    capabilities = Capabilities(
        law="mean-field",
        three_body=True,
        edges=True,
        samples=False,
        correlations=False,
        gradients=("exact", *FROM_MARGINALS),
    )

    def __init__(self, *, damping: float = 0.7, max_iterations: int = 500, tolerance: float = 1e-6) -> None:
        if not is_number(damping) or not 0 < damping <= 1:
            raise ArgumentError("damping", "a number in (0, 1]", f"{damping!r}")
        max_iterations = check_count("max_iterations", max_iterations)
        check_positive("tolerance", tolerance)
        self.damping, self.max_iterations, self.tolerance = damping, max_iterations, float(tolerance)

    @property
    def watched(self) -> tuple[Watched, ...]:
        """Whether the iteration has converged; this does not measure the distance from the Boltzmann law."""
        return (
            Watched(
                "converged", "converged", least=1, advice="more max_iterations; couplings may be critical"
            ),
            Watched("iterations", "iterations"),
            Watched("residual", "residual", most=self.tolerance, advice="the point is not a fixed point"),
        )

    def differentiable_log_odds(self, ising: Ising) -> Tensor:
        """As in the base class, from one solution: 2x = 2 (h + J m + ½ K m m), whose derivatives never underflow."""
        if transformed() or ising.edges is not None:
            return super().differentiable_log_odds(ising)
        with without_autocast(ising.fields):
            self._require(ising)
            solved, visible = FixedPoint(ising, self._rules, sampler=self), ising.visible_mask
            m = torch.where(visible, 2 * solved.attached(ising)[0] - 1, 0)
            local = local_field(symmetrised(ising), m)
            # The value is that of all other results, within the tolerance of the equation.
            local = local + (solved.found.local - local).detach()
        return torch.where(visible, 2 * local, 0)

    def solution(self, ising: Ising, *, odds: bool = False, seed: int = 0) -> Solution | None:
        """As in the base class, for batches that compiled code solves."""
        if not is_compiled(ising):
            return None
        self._require(ising)
        return FixedPoint(ising, self._rules, odds=odds)

    def _moments(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        solved = FixedPoint(ising, self._rules, sampler=self)
        return Moments(solved.attached(ising)[0], ising.visible_mask, info=solved.info)

    def _smooth_moments(self, ising: Ising) -> tuple[Tensor, Tensor | None]:
        ising, visible = ising.dense(), ising.visible_mask
        solved = FixedPoint(ising, self._rules)
        info, local = solved.info, solved.found.local
        if not info["converged"]:
            raise UnsupportedError(
                "gradient",
                "second derivatives through 'mean_field' expect a converged fixed point, got a residual of "
                f"{info['residual']:.3g} after {info['iterations']} iterations; raise max_iterations.",
            )
        symmetric = symmetrised(ising)
        # From a fixed point one Newton step gives the correct first derivative, two steps give three.
        for _ in range(2):
            local = _newton_step(symmetric, local, visible)
        return torch.where(visible, torch.sigmoid(2 * local), 0), None

    @property
    def _rules(self) -> Rules:
        return Rules(float(self.damping), _below(self.tolerance), self.max_iterations)


@cache
def _below(tolerance: float) -> float:
    """A number of both precisions below the tolerance: float32(0.1) is more than 0.1."""
    return float(np.nextafter(np.float32(min(tolerance, 2)), np.float32(0)))


def _newton_step(ising: Ising, local: Tensor, visible: Tensor) -> Tensor:
    """One step towards x = h + J tanh(x) + ..., the local fields of a fixed point."""
    m = torch.where(visible, torch.tanh(local), 0)
    slope = torch.where(visible, 1 - m**2, 0)
    system = torch.eye(m.shape[-1], dtype=m.dtype, device=m.device)
    if ising.couplings is not None:
        system = system - ising.couplings * slope[..., None, :]
    if ising.three_body is not None:
        system = system - torch.einsum("...jkl,...l->...jk", ising.three_body, m) * slope[..., None, :]
    residual = local_field(ising, m) - local
    return local + torch.linalg.solve(system, residual[..., None])[..., 0]
