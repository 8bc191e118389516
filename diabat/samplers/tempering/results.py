"""Moments and diagnostics of a batch, from the time averages of its parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.samplers.answers import Moments
from diabat.samplers.tempering.averages import Averages
from diabat.samplers.tempering.batch import Batch, Part
from diabat.samplers.tempering.ladder import log_partition

Array = NDArray[Any]
# Smallest reported error, relative to that of independent reads: chains cannot measure modes they never visited.
_LEAST = 2 / 3

Found = list[tuple[Part, Averages]]


def assembled(
    batch: Batch, averages: Sequence[Averages], states: int, wanted: dict[str, bool], info: dict[str, Any]
) -> Moments:
    """Moments of the batch from the averages of its parts over so many ``states``, with diagnostics in ``info``.

    ``wanted`` says which optional results the averages contain: pairs, bridge, reads.
    """
    ising, found = batch.ising, list(zip(batch.parts, averages, strict=True))
    dtype = ising.fields.dtype
    details = _diagnostics(batch, found)
    log_z = correlation = None
    if wanted["pairs"]:
        correlation = _correlation(batch, found).to(dtype)
    if wanted["bridge"]:
        log_z, details["log_partition_error"] = _log_partition(batch, found)
    if wanted["reads"]:
        details["chain"] = _chain(batch, found)
    return Moments(
        probability=_per_spin(batch, [a.probability for a in averages]).clamp(0, 1).to(dtype),
        visible=ising.visible_mask,
        correlation=correlation,
        log_partition=None if log_z is None else log_z.to(dtype),
        standard_error=_per_spin(batch, [reported_error(a, states) for a in averages]).to(dtype),
        num_reads=states,
        info=info | details,
    )


def reported_error(averages: Averages, states: int) -> Array:
    """Measured standard error, at least two thirds of √(p(1 - p)/states), p smoothed; [P, n].

    A single block gives no measured error; then the error is that of one read.
    """
    p = (states * averages.probability + 0.5) / (states + 1)
    binomial = np.sqrt(p * (1 - p) / states)
    measured = averages.error
    return np.where(np.isfinite(measured), np.maximum(measured, _LEAST * binomial), np.sqrt(p * (1 - p)))


def _per_spin(batch: Batch, values: Sequence[Array]) -> Tensor:
    """Join values [P, m] of every part to float64 [*batch, n]; 0 for invisible spins."""
    if not values:
        return torch.zeros_like(batch.ising.fields, dtype=torch.float64)
    return batch.tiers.per_spin([part.dense(v) for part, v in zip(batch.parts, values, strict=True)])


def _correlation(batch: Batch, found: Found) -> Tensor:
    ising = batch.ising
    if not found:
        return torch.zeros(
            *ising.fields.shape, ising.num_spins, dtype=torch.float64, device=ising.fields.device
        )
    return batch.tiers.per_pair([part.dense(a.pairs) for part, a in found])


def _log_partition(batch: Batch, found: Found) -> tuple[Tensor, Tensor]:
    """Log Z and its standard error, float64 [*batch]; 0 for problems without visible spins."""
    both = [log_partition(part.seen.sum(1) * math.log(2), a.forward, a.backward) for part, a in found]
    return batch.one_per_problem([v for v, _ in both], 0.0), batch.one_per_problem([e for _, e in both], 0.0)


def _diagnostics(batch: Batch, found: Found) -> dict[str, Any]:
    rhat = batch.one_per_problem([a.rhat(part.seen) for part, a in found], 1.0)
    return {
        "swap_rates": batch.per_problem([a.acceptance for _, a in found]),
        "rhat": rhat,
        "rhat_max": float(rhat.max()),
        "effective_sample_size": batch.one_per_problem([a.effective_reads(part.seen) for part, a in found]),
        "autocorrelation_time": batch.one_per_problem(
            [a.autocorrelation_time(part.seen) for part, a in found]
        ),
        "measured_error": _per_spin(batch, [a.error for _, a in found]),
    }


def _chain(batch: Batch, found: Found) -> Tensor:
    """Every state, int8 [sweeps, C, *batch, n]."""
    shape = (found[0][1].sweeps, found[0][1].chains) if found else (0, 0)
    flat = np.full((batch.ising.fields.numel() + 1, *shape), -1, np.int8)
    for part, average in found:
        part.write(average.reads.transpose(1, 3, 0, 2), flat)
    by_chain = torch.from_numpy(flat[:-1]).movedim(0, -1)
    return by_chain.reshape(*shape, *batch.ising.fields.shape).contiguous()
