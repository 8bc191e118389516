"""Burn-in and time averages of a simulation of parallel tempering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diabat.samplers.tempering.chain_statistics import rhat
from diabat.samplers.tempering.ladder import bridge_terms, equalised, swap_attempts
from diabat.samplers.tempering.simulation import ChainSimulation, Rules

Array = NDArray[Any]
Sums = list[tuple[int, Array]]
"""Lengths of some parts of all chains, and sums over them, [P, C, m]."""

# Fractions of the burn-in at which the ladder is adjusted; the rest runs with the final ladder.
_TUNING = (1 / 8, 1 / 8, 1 / 4)
# Largest number of sweeps of one call of the compiled loop: limits float32 rounding and the size of records.
_CALL = 64
# Segments of a chain: at least 32 sweeps each if other chains give the error, else as many as possible.
_MOST_SEGMENTS, _SEGMENT = 16, 32


def burn_in(simulation: ChainSimulation, rules: Rules, sweeps: int, *, tune: bool) -> Array:
    """Run the burn-in sweeps, whose states are discarded; ``tune`` adjusts the ladder in their first half.

    The ladder of a problem depends only on the rejections of its own chains.

    Returns:
        Mean probability of a swap of each pair of neighbours since the last change of the ladder, [P, R - 1].
    """
    left = sweeps
    replicas = simulation.betas.shape[1]
    if replicas == 1:
        simulation.run(rules, sweeps)
        return np.empty((len(simulation.betas), 0))
    for share in _TUNING if tune and replicas > 2 else ():
        stretch = int(sweeps * share)
        if stretch < 2:  # pairs of one parity would have no attempt
            continue
        attempts = swap_attempts(simulation.sweeps, stretch, replicas) * simulation.chains
        found = simulation.run(rules, stretch)
        simulation.betas = equalised(simulation.betas, found.rejections.sum(1), attempts)
        left -= stretch
    attempts = swap_attempts(simulation.sweeps, left, replicas) * simulation.chains
    return 1 - simulation.run(rules, left).rejections.sum(1) / np.maximum(attempts, 1)


@dataclass(frozen=True, eq=False)
class Spread:
    """What the diagnostics of P problems follow from; C chains, m spins, B blocks: the chains, or segments of one.

    These are 12 C + 16 bytes for each spin of each problem, and 20 C + 16 for more than 128 sweeps.
    """

    probability: Array  # [P, m]
    error: Array  # of the probability, from the spread of the blocks, [P, m]; infinite for one block
    halves: list[
        tuple[int, Array]
    ]  # length, and Σ P(s = +1 | rest) [P, C, m], of the halves of each chain, or of all
    magnetization: list[
        tuple[int, Array]
    ]  # length, and Σ s [P, C, m], of all sweeps, or of each segment of one chain
    sweeps: int  # of each chain
    chains: int  # C

    def effective_reads(self, seen: Array) -> Array:
        """Number of independent reads with the same squared error, summed over the spins ``seen`` [P, m]; [P].

        NaN for one chain, whose segments agree in a mode that it does not leave, and where all chains agree to the last
        bit, which is no evidence that they would find another mode.
        """
        p = self.probability
        if self.chains == 1:
            return np.full(len(p), np.nan)
        variance, squared = (np.where(seen, v, 0).sum(-1) for v in (p * (1 - p), self.error**2))
        return np.where(squared > 0, variance / np.where(squared > 0, squared, 1), np.nan)

    def autocorrelation_time(self, seen: Array) -> Array:
        """τ in sweeps, [P]: T · (variance of block averages)/(variance of a spin), both summed over the spins."""
        m = _means(self.magnetization)
        steps = self.sweeps * self.chains / len(m)
        if len(m) == 1:
            return np.full(m.shape[1], np.nan)
        spread = np.where(seen, m.var(0, ddof=1), 0).sum(-1)
        variance = np.where(seen, 1 - m.mean(0) ** 2, 0).sum(-1)
        return np.where(variance > 0, steps * spread / np.where(variance > 0, variance, 1), 1.0)

    def rhat(self, seen: Array) -> Array:
        """Largest split R-hat of the spins ``seen``, [P]; NaN for a single sweep and for one chain.

        The means over half a chain are those of P(s = +1 | rest), the variances are p(1 - p).
        """
        if len(self.halves) == 1 or self.chains == 1:
            return np.full(len(self.probability), np.nan)
        means = _means(self.halves)
        values = rhat(means, means * (1 - means), max(1, self.sweeps // 2))
        return np.where(seen, values, 1.0).max(-1)


class Averages(NamedTuple):
    """Time averages on the last rung of P problems, m spins; what was not requested is empty."""

    spread: Spread
    acceptance: Array  # mean probability of a swap of each pair of neighbours, [P, R - 1]
    pairs: Array  # mean of s_j s_k, [P, m, m]
    forward: Array  # sums of the bridge, [B, P, R - 1]
    backward: Array  # sums of the bridge, [B, P, R - 1]


def averages(
    simulation: ChainSimulation, rules: Rules, sweeps: int, *, pairs: bool = False, bridge: bool = False
) -> Averages:
    """Run sweeps of every chain after its burn-in, and average over them.

    On request also s_j s_k (``pairs``) and the sums for log Z (``bridge``).
    """
    replicas, chains = simulation.betas.shape[1], simulation.chains
    attempts = np.maximum(swap_attempts(simulation.sweeps, sweeps, replicas), 1) * chains
    parts = [_segment(simulation, rules, lengths, pairs, bridge) for lengths in _segments(sweeps, chains)]
    lengths, ups, spins, rejections, products, forward, backward = zip(*parts, strict=True)

    def in_blocks(sums: tuple[Array, ...]) -> Sums:
        return [(sweeps, _total(sums))] if chains > 1 else list(zip(lengths, sums, strict=True))

    means, middle = _means(in_blocks(ups)), len(parts) // 2
    error = means.std(0, ddof=1) / np.sqrt(len(means)) if len(means) > 1 else np.full(means.shape[1:], np.inf)
    halves = [slice(middle), slice(middle, None)] if middle else [slice(None)]
    spread = Spread(
        probability=means.mean(0),
        error=error,
        halves=[(sum(lengths[half]), _total(ups[half])) for half in halves],
        magnetization=[(k, s.astype(np.float32)) for k, s in in_blocks(spins)],  # whole numbers: exact
        sweeps=sweeps,
        chains=chains,
    )
    return Averages(
        spread,
        acceptance=1 - _total(rejections) / attempts,
        pairs=_total(products) / (sweeps * chains) if pairs else np.empty(0),
        forward=_log_blocks(forward) if bridge else np.empty(0),
        backward=_log_blocks(backward) if bridge else np.empty(0),
    )


class _Segment(NamedTuple):
    """Sums over one segment of all chains; arrays that are not requested are empty."""

    length: int
    up: Array  # [P, C, m]
    spin: Array  # [P, C, m]
    rejections: Array  # [P, R - 1]
    products: Array  # [P, m, m]
    forward: Array  # [P, C, R - 1]
    backward: Array  # [P, C, R - 1]


def _segment(
    simulation: ChainSimulation, rules: Rules, lengths: list[int], pairs: bool, bridge: bool
) -> _Segment:
    """Run one segment in calls of the given lengths."""
    nothing, calls = np.empty(0), []
    for length in lengths:
        found = simulation.run(rules, length, average=True, exponents=bridge, every=int(pairs))
        products = _products(found.reads) if pairs else nothing
        low, high = bridge_terms(simulation.betas, found.exponents) if bridge else (nothing, nothing)
        sums = found.ups, found.sums, found.rejections.sum(1)
        calls.append(_Segment._make((length, *sums, products, low, high)))
    if len(calls) == 1:
        return calls[0]
    _, *totals, forward, backward = zip(*calls, strict=True)
    logarithms = np.logaddexp.reduce(forward), np.logaddexp.reduce(backward)
    return _Segment._make((sum(lengths), *map(_total, totals), *logarithms))


def _segments(sweeps: int, chains: int) -> list[list[int]]:
    """Lengths of the calls of each segment; an even number of segments, unless there is one sweep."""
    wanted = _MOST_SEGMENTS if chains == 1 else max(2, min(_MOST_SEGMENTS, sweeps // _SEGMENT))
    count = min(sweeps, wanted)
    count -= count % 2 if count > 1 else 0
    lengths = np.diff(np.arange(count + 1) * sweeps // count)
    return [np.diff(np.arange(-(-x // _CALL) + 1) * x // -(-x // _CALL)).tolist() for x in lengths.tolist()]


def _total(parts: Sequence[Array]) -> Array:
    """Their sum in float64; itself if there is one."""
    return parts[0] if len(parts) == 1 else np.asarray(np.sum(parts, axis=0, dtype=np.float64))


def _products(reads: Array) -> Array:
    """Σ s_j s_k of reads [t, P, C, m], float64 [P, m, m]."""
    sweeps, problems, chains, n = reads.shape
    s = reads.transpose(1, 0, 2, 3).reshape(problems, sweeps * chains, n).astype(np.float32)
    return np.matmul(s.transpose(0, 2, 1), s).astype(np.float64)


def _means(sums: Sums) -> Array:
    """Means per chain and part, float64 [B, P, m]."""
    means = [np.divide(s, length, dtype=np.float64).swapaxes(0, 1) for length, s in sums]
    return means[0] if len(means) == 1 else np.concatenate(means)


def _log_blocks(terms: Sequence[Array]) -> Array:
    """Logarithms of sums [B, P, R - 1] of each block, from those [P, C, R - 1] of every segment."""
    if terms[0].shape[1] > 1:
        return np.logaddexp.reduce(np.stack(terms)).swapaxes(0, 1)
    return np.stack(terms)[:, :, 0]
