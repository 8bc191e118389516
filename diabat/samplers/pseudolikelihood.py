r"""Effective inverse temperatures by maximum pseudo-likelihood, one for each kind of term.

With s_j given the other spins, P(s_j | rest) = σ(2 s_j (β_h h_j + β_J Σ_k J_jk s_k + β_K Σ_{k<l} K_jkl s_k
s_l)) for a sampler that multiplies the fields by β_h, the couplings by β_J and the three-body terms by
β_K.  The fit maximises

    Σ_problems Σ_reads w Σ_j log P(s_j | rest)

by Newton's method.  It is consistent, needs no partition function, and is exact in the limit of all 2^n
states with their probabilities as weights.  Source: Besag (1975); standard errors by the sandwich H⁻¹ V H⁻¹ of
composite likelihoods (Godambe; Varin, Reid and Firth 2011).  ``maximum_pseudolikelihood`` of
``dwave.system.temperatures`` is the same estimator, one problem at a time, and returns -β without these errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.ising import Ising
from diabat.ising.arguments import check_states, read_spins
from diabat.samplers.conditionals import Conditionals, derivatives, present_terms, scores

if TYPE_CHECKING:
    from diabat.ising.model import Values

__all__ = ["BetaFit", "Term", "calibration_error", "fit_betas"]


def fit_betas(
    ising: Ising,
    spins: Values,
    weights: Tensor | None = None,
    *,
    sampled: bool = True,
    groups: Tensor | None = None,
) -> BetaFit:
    """Fit β_h, β_J and β_K to reads, or to all states with their probabilities; pooled over the batch.

    **Which error?**  Without ``groups`` the problems are fixed and only the reads vary: the interval covers the result
    of infinitely many reads of these problems (clustered by read, because the conditionals of one read depend on each
    other).  A sampler whose law is not Boltzmann has no single β: other problems give another fit even without read
    noise.  With ``groups`` the groups are a sample of problems: the interval covers the result of infinitely many
    groups, read noise included.

    Intervals are asymptotic.  Over 300 draws of Boltzmann reads at g = 0.5 the 95 % interval covers in 93 to 97 % with
    64 reads of 16 problems, with 200 of one, and over 3 groups; in 90 % with single reads of 8 problems.

    Args:
        ising: The given problems, fields [*batch, n].
        spins: ±1, [reads, *batch, n], as tensor or array, or a tensor [2^n, n], a table shared by all problems.
        weights: Non-negative weight of each read, [reads, *batch], summing to 1 along the first axis; None if all are
            equal.
        sampled: Whether the reads are a sample.  If not, as for all 2^n states with their probabilities
            [2^n, *batch] as weights, the errors of the reads are 0.
        groups: Label of each problem, integers that broadcast to [*batch]; problems with the same label (for
            example with the same J) vary together.  Fewer than two groups give no error.

    Returns:
        The fitted scales relative to ``ising``; all None if no fit exists: no terms, or a likelihood that grows with β
        without bound.

    Raises:
        ValueError: If spins, weights or groups do not fit the problems.
    """
    spins, weights = _read(ising, spins, weights)
    labels = None if groups is None else _labels(ising, groups)
    kinds = present_terms(ising)
    data = Conditionals(ising, spins, weights, kinds)
    maximum = maximise(data) if kinds else None
    if maximum is None:
        return BetaFit()
    beta, inverse, top = maximum
    exact = labels is None and not sampled
    variance = torch.zeros_like(inverse) if exact else score_covariance(data, beta, labels)
    errors: list[float | None] = (inverse @ variance @ inverse).diagonal().clamp(min=0).sqrt().tolist()
    count = None if labels is None else int(labels.max()) + 1
    if count == 1:
        errors = [None] * len(kinds)
    values: list[float | None] = [None] * 6
    for kind, value, error in zip(kinds, beta.tolist(), errors, strict=True):
        values[2 * kind : 2 * kind + 2] = [value, error]
    return BetaFit(values[0], values[1], values[2], values[3], values[4], values[5], count, top)


def calibration_error(ising: Ising, spins: Values, scales: tuple[float, float, float]) -> float:
    """Largest gap between P(s_j = +1 | rest) of the fitted Boltzmann law and its frequency, over ten bins.

    Bins hold equal numbers of conditionals.  For reads of a Boltzmann law it is of the order of
    sqrt(10/(4 · reads · spins)); a larger value means that no pair of temperatures describes the reads.

    Args:
        ising: The given problems.
        spins: Reads of equal weights, as in :func:`fit_betas`.
        scales: (β_h, β_J, β_K) of the fit.
    """
    spins, weights = _read(ising, spins, None)
    kinds = present_terms(ising) or [0]
    beta = torch.tensor([scales[kind] for kind in kinds], dtype=torch.float64)
    data = Conditionals(ising, spins, weights, kinds)
    seen = data.visible.expand(-1, len(spins), -1)
    s = data.spins.double().expand(seen.shape)[seen]
    # Features are 2 s_j times the local field.
    p = torch.sigmoid(s * torch.cat([beta @ chunk.features for chunk in data])[seen.flatten()])
    random = torch.Generator().manual_seed(0)
    mixed = torch.randperm(len(p), generator=random)  # equal p in no order of the reads
    gap = ((s > 0).double() - p)[mixed[p[mixed].argsort(stable=True)]]
    return max((abs(float(part.mean())) for part in gap.chunk(10) if len(part)), default=0.0)


def _labels(ising: Ising, groups: Tensor) -> Tensor:
    """Label of each problem, 0 .. groups - 1, int64 [P]."""
    try:
        labels = groups.expand(ising.batch_shape).reshape(-1)
    except RuntimeError:
        expected = f"labels that broadcast to {list(ising.batch_shape)}"
        raise ArgumentError("groups", expected, list(groups.shape)) from None
    return torch.unique(labels.cpu(), return_inverse=True)[1]


def _read(ising: Ising, spins: Values, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Reads ±1 and their weights as tensors."""
    if not isinstance(spins, Tensor):
        spins = read_spins(spins, ising.fields)
    reads, n, batch = len(spins), ising.num_spins, list(ising.batch_shape)
    if not reads or list(spins.shape) not in ([reads, *batch, n], [reads, n]):
        raise ArgumentError("spins", f"shape {['reads', *batch, n]} or {['reads', n]}", list(spins.shape))
    if weights is None:
        weights = torch.full((reads, *batch), 1 / reads, dtype=torch.float64)
    if list(weights.shape) != [reads, *batch]:
        raise ArgumentError("weights", f"shape {[reads, *batch]}", list(weights.shape))
    spins = spins.detach().cpu()
    seen = ising.visible_mask.cpu() if spins.ndim > ising.fields.ndim else torch.ones(n, dtype=torch.bool)
    check_states(spins, seen)
    return spins, weights


Term = Literal["field", "coupling", "three_body"]


@dataclass(frozen=True)
class BetaFit:
    """Fitted scales and their standard errors; None without such a term, or if no finite fit exists.

    Attributes:
        field: β_h, dimensionless, relative to the given fields.
        field_error: Standard error of β_h; 0 for exact state probabilities without groups.
        coupling: β_J.
        coupling_error: Standard error of β_J.
        three_body: β_K.
        three_body_error: Standard error of β_K.
        groups: Number of groups of problems behind the errors; None if the errors are those of the reads.
        log_pseudolikelihood: Mean of log P(s_j | rest) over visible spins and reads at the fit, in nats; -log 2 is
            that of scales 0.
    """

    field: float | None = None
    field_error: float | None = None
    coupling: float | None = None
    coupling_error: float | None = None
    three_body: float | None = None
    three_body_error: float | None = None
    groups: int | None = None
    log_pseudolikelihood: float | None = None

    @property
    def exists(self) -> bool:
        """Whether there is a fit."""
        return (self.field, self.coupling, self.three_body) != (None, None, None)

    @property
    def scales(self) -> tuple[float, float, float]:
        """(β_h, β_J, β_K), 1 for an absent term."""
        h, J, K = (1.0 if value is None else value for value in (self.field, self.coupling, self.three_body))
        return h, J, K

    def interval(self, term: Term, level: float = 0.95) -> tuple[float, float] | None:
        """Confidence interval β ± q · standard error.

        q is the quantile of the normal distribution, or with ``groups`` of Student's t with groups - 1 degrees
        of freedom.  The interval covers the same as the errors: see ``groups`` of :func:`fit_betas`.

        Args:
            term: ``field``, ``coupling`` or ``three_body``.
            level: Confidence level, between 0 and 1.

        Returns:
            Lower and upper end; None without such a term, or if no error is known.

        Raises:
            ValueError: If the term or the level is invalid.
        """
        if term not in ("field", "coupling", "three_body"):
            raise ArgumentError("term", "'field', 'coupling' or 'three_body'", f"{term!r}")
        if not 0 < level < 1:
            raise ArgumentError("level", "a number between 0 and 1", f"{level!r}")
        value, error = getattr(self, term), getattr(self, f"{term}_error")
        if value is None or error is None:
            return None
        half = _quantile((1 + level) / 2, self.groups) * error
        return value - half, value + half


def _quantile(probability: float, groups: int | None) -> float:
    if groups is None:
        return NormalDist().inv_cdf(probability)
    from scipy.special import stdtrit  # scipy.stats takes ten times as long to import

    return float(stdtrit(groups - 1, probability))


_ITERATIONS = 100
_CONVERGED = 1e-9
_ROUNDING = 1e-12


def maximise(data: Conditionals) -> tuple[Tensor, Tensor, float] | None:
    """Best scales [t], the inverse of the negative Hessian [t, t] and the mean log P there; None without a maximum."""
    beta = torch.zeros(len(data.kinds), dtype=torch.float64)
    step, unit = torch.zeros_like(beta), torch.ones_like(beta)
    total, reached = 1.0, -math.inf
    for iteration in range(_ITERATIONS):
        value, gradient, hessian = derivatives(data, beta)
        if value < reached - _ROUNDING * abs(reached):
            step = step / 2  # it was too long; the function is concave, so a shorter one increases it
            beta = beta - step
            continue
        reached = value
        if iteration == 0:
            # Units in which the log-odds are of size 1: the fit works for fields of 1e-6 as for fields of 1.
            total = float(sum(table.weights.sum() for table in data))
            unit = (4 * hessian.diagonal() / total).sqrt()
        if not bool(unit.isfinite().all() and (unit > 0).all()):
            return None
        curvature = hessian / (unit[:, None] * unit) / total
        if float(torch.linalg.eigvalsh(curvature)[0]) < _ROUNDING:
            return None  # collinear terms, or a likelihood that grows with beta without bound
        step = torch.linalg.solve(curvature, gradient / unit / total) / unit
        beta = beta + step
        if float((step * unit).abs().max()) < _CONVERGED:
            inverse = torch.linalg.inv(curvature) / (unit[:, None] * unit) / total
            return beta, inverse, derivatives(data, beta)[0] / total
    return None


def score_covariance(data: Conditionals, beta: Tensor, labels: Tensor | None) -> Tensor:
    """Estimated covariance of the gradient at the maximum, [t, t], over reads or over groups of problems."""
    total = beta.new_zeros(len(beta), len(beta))
    if labels is None:
        for table in data:
            g, w = scores(table, beta), table.reads  # [t, P, R], [P, R]
            share = w.square().sum(-1, keepdim=True)  # 1/R for equal weights
            # R - 1 degrees of freedom.  The gradient of a single read is not centred; nor is that of identical
            # reads, whose spread is zero.
            alone = (share > 1 - 1e-9) | (g == g[..., :1]).all(-1, keepdim=True).all(0)
            centred = torch.where(alone, g, g - (g * w).sum(-1, keepdim=True))
            spread = (centred * w / torch.where(alone, share, 1 - share).sqrt()).flatten(1)
            total += spread @ spread.T
        return total
    sums = [(scores(table, beta) * table.reads).sum(-1) for table in data]
    count = int(labels.max()) + 1
    # The sums add up to 0 at the maximum: count - 1 degrees of freedom.
    grouped = beta.new_zeros(len(beta), count).index_add(1, labels, torch.cat(sums, dim=1))
    return grouped @ grouped.T * count / max(1, count - 1)
