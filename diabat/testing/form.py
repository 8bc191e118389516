"""The form of results: what :mod:`diabat.testing.structure` demands of every draw."""

from __future__ import annotations

import torch
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers.answers import Moments, Samples
from diabat.testing.core import Trial, demand
from diabat.testing.problems import Lead

FEW_READS = 24


def check_samples_form(samples: Samples, ising: Ising, num_reads: int, where: str) -> None:
    """Demand int8 ±1 [num_reads, *batch, n], -1 where invisible, and log-weights of one number per read."""
    spins, want = samples.spins, [num_reads, *ising.fields.shape]
    demand(list(spins.shape) == want, f"spins {where}: expected shape {want}, got {list(spins.shape)}.")
    demand(spins.dtype == torch.int8, f"spins {where}: expected dtype torch.int8, got {spins.dtype}.")
    ones = bool((spins.abs() == 1).all())
    demand(ones, f"spins {where}: expected only -1 and +1, got {sorted(set(spins.unique().tolist()))}.")
    hidden = ~ising.visible_mask.to(spins.device)
    demand(bool((spins[:, hidden] == -1).all()), f"spins {where}: expected -1 on invisible spins, got +1.")
    if samples.log_weights is not None:
        got = list(samples.log_weights.shape)
        demand(got == want[:-1], f"log_weights {where}: expected shape {want[:-1]}, got {got}.")
    for key in ("backend", "seed"):
        demand(
            key in samples.info,
            f"samples.info {where}: expected the key '{key}', got {sorted(samples.info)}.",
        )


def check_moments_form(moments: Moments, ising: Ising, trial: Trial, where: str) -> None:
    """Demand probabilities in [0, 1] of the fields' shape and dtype, 0 where invisible."""
    batch, n, dtype = list(ising.batch_shape), ising.num_spins, ising.fields.dtype
    demand(list(moments.visible.shape) == [*batch, n], f"visible {where}: expected shape {[*batch, n]}.")
    expected: list[tuple[str, Tensor | None, list[int]]] = [("probability", moments.probability, [*batch, n])]
    if trial.able.correlations:
        expected.append(("correlation", moments.correlation, [*batch, n, n]))
    if trial.able.log_partition:
        expected.append(("log_partition", moments.log_partition, batch))
    if moments.num_reads is not None:
        expected.append(("standard_error", moments.standard_error, [*batch, n]))
    for name, value, shape in expected:
        demand(
            value is not None, f"{name} {where}: expected a tensor, as the capabilities promise, got None."
        )
        assert value is not None
        demand(
            list(value.shape) == shape, f"{name} {where}: expected shape {shape}, got {list(value.shape)}."
        )
        demand(value.dtype == dtype, f"{name} {where}: expected dtype {dtype}, got {value.dtype}.")
        demand(
            bool(torch.isfinite(value).all()), f"{name} {where}: expected finite values, got NaN or infinity."
        )
    p, hidden = moments.probability, ~ising.visible_mask
    demand(bool(((p >= 0) & (p <= 1)).all()), f"probability {where}: expected values in [0, 1].")
    demand(bool((p[hidden] == 0).all()), f"probability {where}: expected 0 on invisible spins.")
    if moments.correlation is not None:
        diagonal = moments.correlation.diagonal(dim1=-2, dim2=-1)
        close = torch.allclose(diagonal, (~hidden).to(diagonal), atol=1e-5)
        demand(
            close,
            f"correlation {where}: expected 1 on the diagonal of visible spins and 0 on invisible ones.",
        )


def check_form(trial: Trial, ising: Ising, where: str) -> None:
    """Draw and compute once and demand the form of both results."""
    if trial.able.samples:
        check_samples_form(trial.draw(ising, FEW_READS), ising, FEW_READS, where)
    moments = trial.sampler.moments(ising, correlations=trial.able.correlations, seed=trial.seed)
    check_moments_form(moments, ising, trial, where)


def leads(trial: Trial) -> tuple[Lead, ...]:
    """Leading shapes of J that the sampler supports."""
    return ("none", "shared", "heads") + (("per_problem",) if trial.able.per_problem_couplings else ())
