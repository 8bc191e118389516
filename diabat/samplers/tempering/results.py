"""Moments of a batch with their diagnostics, from the time averages of its buckets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.samplers.answers import LEAST_ERROR, Moments
from diabat.samplers.diagnostics import Info, Later
from diabat.samplers.tempering.averages import Averages, Spread
from diabat.samplers.tempering.batch import Batch, Joined
from diabat.samplers.tempering.chain_statistics import rhat
from diabat.samplers.tempering.ladder import log_partition

Array = NDArray[Any]


def assembled(
    batch: Batch, found: Sequence[Averages], states: int, wanted: Mapping[str, bool], info: Mapping[str, Any]
) -> Moments:
    """Moments of the batch from the averages of its buckets over so many ``states``, with diagnostics in ``info``.

    ``wanted`` says which optional results the averages contain: pairs, bridge.
    """
    ising, joined = batch.ising, batch.joined
    dtype, spreads = ising.fields.dtype, [a.spread for a in found]
    details = diagnostics(joined, spreads)
    log_z = correlation = None
    if wanted["pairs"]:
        correlation = joined.per_pair([a.pairs for a in found]).to(dtype)
    if wanted["bridge"]:
        start = [joined.flat.num_visible[bucket.rows] * math.log(2) for bucket in joined.buckets]
        both = [log_partition(z, a.forward, a.backward) for z, a in zip(start, found, strict=True)]
        log_z, error = (joined.per_problem(values, 0.0) for values in zip(*both, strict=True))
        log_z, details["log_partition_error"] = log_z.to(dtype), error
    return Moments(
        probability=joined.per_spin([a.probability for a in spreads]).clamp(0, 1).to(dtype),
        visible=ising.visible_mask,
        correlation=correlation,
        log_partition=log_z,
        standard_error=joined.per_spin([reported_error(a, states) for a in spreads]).to(dtype),
        num_reads=states,
        info=Info(info, details),
    )


def diagnostics(joined: Joined, spreads: Sequence[Spread]) -> dict[str, Any]:
    """Entries of ``info`` that are computed when they are read."""

    def each(of: Callable[[Spread, Array], Array], fill: float = math.nan) -> Tensor:
        pairs = zip(joined.buckets, spreads, strict=True)
        return joined.per_problem([of(spread, b.members < b.n) for b, spread in pairs], fill)

    split = cache(lambda: each(Spread.rhat, 1.0))
    return {
        "rhat": Later(split),
        "rhat_max": Later(lambda: float(split().max())),
        "effective_sample_size": Later(lambda: each(Spread.effective_reads)),
        "autocorrelation_time": Later(lambda: each(Spread.autocorrelation_time)),
        "measured_error": Later(lambda: joined.per_spin([spread.error for spread in spreads])),
    }


def rhat_of_reads(spins: Tensor, chains: int) -> dict[str, Any]:
    """Entries of ``info`` of thinned reads, int8 [T·chains, *batch, n]: split R-hat, if chains are several, T >= 4.

    From sums of halves, which are taken now, because the reads are the caller's; an invisible spin stands still, at 1.
    In float64, as ``split_rhat`` takes them, the reads would need eight times their memory.
    """
    half = len(spins) // chains // 2
    if chains < 2 or half < 2:
        return {}
    sums = spins[: 2 * half * chains].unflatten(0, (2, half, chains)).sum(1, dtype=torch.int32)

    @cache
    def largest() -> Tensor:
        m = sums.flatten(0, 1).double().cpu().numpy() / half
        return torch.from_numpy(np.asarray(rhat(m, (1 - m * m) * half / (half - 1), half).max(-1)))

    return {"rhat": Later(largest), "rhat_max": Later(lambda: float(largest().max()))}


def reported_error(averages: Spread, states: int) -> Array:
    """Measured standard error, at least two thirds of √(p(1 - p)/states), p smoothed; [P, m].

    A single block gives no measured error; then the error is that of one read.
    """
    p = (states * averages.probability + 0.5) / (states + 1)
    binomial = np.sqrt(p * (1 - p) / states)
    measured = averages.error
    return np.where(np.isfinite(measured), np.maximum(measured, LEAST_ERROR * binomial), np.sqrt(p * (1 - p)))
