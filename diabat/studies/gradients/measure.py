r"""One gradient estimator on one ensemble, against the exact gradient of the same loss.

The loss is linear, L = Σ_q Σ_j v_qj P_q(s_j = +1), with v ~ N(0, 1) over visible spins: the cotangent of a layer in
training has no preferred direction.  Gradients are those of training: ∂L/∂h of every query, and ∂L/∂J in the shape
of J, summed over the queries that share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from diabat.attention import spin_probabilities
from diabat.ising import Ising
from diabat.samplers.base import Estimator, Sampler
from diabat.studies.comparison import is_analytic, naming_ensemble, timed
from diabat.studies.ensembles import Ensemble


class Gradient(NamedTuple):
    """∂L/∂h and ∂L/∂J of a whole ensemble, flattened, float64; J is None for problems without couplings."""

    h: Tensor
    J: Tensor | None


class Loss(NamedTuple):
    """L = Σ v·P with its exact gradient; v float [*batch, n] in the dtype of the fields, 0 on invisible spins."""

    cotangent: Tensor
    exact: Gradient


def random_loss(case: Ensemble, reference: Sampler, *, seed: int) -> Loss:
    """Draw v ~ N(0, 1) and differentiate the loss by the ``exact`` gradient of an exact backend, in float64.

    Raises:
        FidelityError: If the exact backend refuses the problems.
    """
    ising = case.ising
    drawn = np.random.default_rng(seed).standard_normal((*ising.batch_shape, ising.num_spins))
    v = torch.where(ising.visible_mask, torch.from_numpy(drawn).to(ising.fields), 0)
    double = ising.detach().to(torch.float64)
    with naming_ensemble(case, "gradient"):
        return Loss(v, gradient_of(reference, "exact", double, v.double(), num_reads=None, seed=0))


def gradient_of(
    backend: Sampler, estimator: str, ising: Ising, cotangent: Tensor, *, num_reads: int | None, seed: int
) -> Gradient:
    """Differentiate Σ v·P once through the bridge.

    Raises:
        UnsupportedError: If the backend refuses the problems or the estimator.
    """
    h = ising.fields.detach().requires_grad_()
    J = None if ising.couplings is None else ising.couplings.detach().requires_grad_()
    alpha = spin_probabilities(
        h,
        J,
        backend,
        gradient=estimator,
        visible=ising.visible,
        three_body=ising.three_body,
        num_reads=num_reads,
        seed=seed,
        check=False,
    )
    wanted = (h,) if J is None else (h, J)
    found = torch.autograd.grad((cotangent.to(alpha) * alpha).sum(), wanted)
    flat = [part.detach().double().cpu().reshape(-1) for part in found]
    return Gradient(flat[0], None if J is None else flat[1])


def own_gradient(backend: Sampler, ising: Ising, cotangent: Tensor, *, seed: int) -> Gradient | None:
    """The derivative of the backend's own law, if it is not Boltzmann and the backend can differentiate it."""
    able = backend.capabilities
    if able.law == "boltzmann":
        return None
    for estimator in ("exact", "adjoint"):
        if estimator in able.gradients:
            return gradient_of(backend, estimator, ising, cotangent, num_reads=None, seed=seed)
    return None


def score_gradient(
    backend: Sampler,
    estimator: Estimator,
    ising: Ising,
    loss: Loss,
    own: Gradient | None,
    *,
    num_reads: int,
    seeds: Sequence[int],
) -> dict[str, Any]:
    """All metrics of one estimator, as in ``GRADIENT_DEFINITIONS``; one call if nothing is drawn, else one per seed."""
    drawn = estimator == "covariance" or (estimator != "exact" and not is_analytic(backend))
    reads = num_reads if drawn else None
    estimate = partial(gradient_of, backend, estimator, ising, loss.cotangent, num_reads=reads)
    seconds, first = timed(lambda: estimate(seed=seeds[0]))
    estimates = [first, *(estimate(seed=seed) for seed in (seeds[1:] if drawn else ()))]
    row: dict[str, Any] = {"num_reads": reads, "repeats": len(estimates)}
    for name in ("h", "J"):
        want = getattr(loss.exact, name)
        got = None if want is None else torch.stack([getattr(one, name) for one in estimates])
        row |= _scores(name, got, want, reads, None if own is None else getattr(own, name))
    row["us_per_query"] = 1e6 * seconds / ising.num_problems
    return row


def _scores(
    name: str, got: Tensor | None, exact: Tensor | None, reads: int | None, own: Tensor | None
) -> dict[str, Any]:
    """Scores of estimates [repeats, components] of one gradient."""
    row: dict[str, Any] = dict.fromkeys(
        f"{name}_{key}" for key in ("cosine", "bias", "bias_floor", "variance", "own_cosine")
    )
    if got is None or exact is None or not exact.any():
        return row
    norm = float(exact.norm())
    row[f"{name}_cosine"] = _cosine(got, exact)
    row[f"{name}_bias"] = float((got.mean(0) - exact).norm()) / norm
    if reads is not None and len(got) > 1:
        spread = float(got.var(0).sum())
        row[f"{name}_variance"] = reads * spread / norm**2
        row[f"{name}_bias_floor"] = (spread / len(got)) ** 0.5 / norm
    if own is not None and own.any():
        row[f"{name}_own_cosine"] = _cosine(got, own)
    return row


def _cosine(got: Tensor, to: Tensor) -> float:
    """Mean over the estimates; 0 for an estimate that vanishes."""
    return float(torch.nn.functional.cosine_similarity(got, to[None], dim=-1).mean())
