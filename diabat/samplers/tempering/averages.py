"""Burn-in and time averages of a simulation of parallel tempering."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diabat.samplers.tempering.chain_statistics import rhat
from diabat.samplers.tempering.ladder import bridge_terms, equalised, swap_attempts
from diabat.samplers.tempering.simulation import ChainSimulation, Rules

Array = NDArray[Any]

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


@dataclass(frozen=True)
class Averages:
    """Time averages on the last rung of P problems, C chains, n spins; B blocks: the chains, or segments of one chain.

    What was not requested is empty.
    """

    blocks: Array  # mean of P(s = +1 | rest) in each block, [B, P, n]
    halves: (
        Array | None
    )  # the same in the first and second half of each chain, [2C, P, n]; None for a single sweep
    magnetization: Array  # mean of s in each block, [B, P, n]
    sweeps: int  # of each chain
    chains: int  # C
    acceptance: Array  # mean probability of a swap of each pair of neighbours, [P, R - 1]
    pairs: Array  # mean of s_j s_k, [P, n, n]
    forward: Array  # sums of the bridge, [B, P, R - 1]
    backward: Array  # sums of the bridge, [B, P, R - 1]
    reads: Array  # every state, int8 [sweeps, P, C, n]

    @property
    def probability(self) -> Array:
        """P(s = +1), [P, n]: the Rao-Blackwell average of P(s = +1 | rest)."""
        return self.blocks.mean(0)

    @property
    def error(self) -> Array:
        """Standard error of the probability from the spread of the blocks, [P, n]; infinite for one block."""
        count = len(self.blocks)
        if count == 1:
            return np.full(self.blocks.shape[1:], np.inf)
        return self.blocks.std(0, ddof=1) / np.sqrt(count)

    def effective_reads(self, seen: Array) -> Array:
        """Number of independent reads with the same squared error, summed over the spins ``seen`` [P, n]; [P].

        NaN for one chain, whose segments agree in a mode that it does not leave.
        """
        p = self.probability
        if self.chains == 1:
            return np.full(len(p), np.nan)
        variance, squared = (np.where(seen, v, 0).sum(-1) for v in (p * (1 - p), self.error**2))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(variance > 0, variance / squared, np.inf)

    def autocorrelation_time(self, seen: Array) -> Array:
        """τ in sweeps, [P]: T · (variance of block averages)/(variance of a spin), both summed over the spins."""
        m, steps = self.magnetization, self.sweeps * self.chains / len(self.magnetization)
        if len(m) == 1:
            return np.full(m.shape[1], np.nan)
        spread = np.where(seen, m.var(0, ddof=1), 0).sum(-1)
        variance = np.where(seen, 1 - m.mean(0) ** 2, 0).sum(-1)
        return np.where(variance > 0, steps * spread / np.where(variance > 0, variance, 1), 1.0)

    def rhat(self, seen: Array) -> Array:
        """Largest split R-hat of the spins ``seen``, [P]; NaN for a single sweep and for one chain.

        The means over half a chain are those of P(s = +1 | rest), the variances are p(1 - p).
        """
        if self.halves is None or self.chains == 1:
            return np.full(self.blocks.shape[1], np.nan)
        values = rhat(self.halves, self.halves * (1 - self.halves), max(1, self.sweeps // 2))
        return np.where(seen, values, 1.0).max(-1)


def averages(
    simulation: ChainSimulation,
    rules: Rules,
    sweeps: int,
    *,
    pairs: bool = False,
    bridge: bool = False,
    reads: bool = False,
) -> Averages:
    """Run sweeps of every chain after its burn-in, and average over them.

    On request also s_j s_k (``pairs``), the sums for log Z (``bridge``), and every state (``reads``).
    """
    replicas, chains = simulation.betas.shape[1], simulation.chains
    attempts = np.maximum(swap_attempts(simulation.sweeps, sweeps, replicas), 1) * chains
    wanted = {"pairs": pairs, "bridge": bridge, "reads": reads}
    parts = [_segment(simulation, rules, lengths, **wanted) for lengths in _segments(sweeps, chains)]
    return Averages(
        blocks=_in_blocks([s.up for s in parts], [s.length for s in parts]),
        halves=_in_halves(parts),
        magnetization=_in_blocks([s.spin for s in parts], [s.length for s in parts]),
        sweeps=sweeps,
        chains=chains,
        acceptance=1 - _total([s.rejections for s in parts]) / attempts,
        pairs=_total([s.products for s in parts]) / (sweeps * chains),
        forward=_log_blocks([s.forward for s in parts]) if bridge else np.empty(0),
        backward=_log_blocks([s.backward for s in parts]) if bridge else np.empty(0),
        reads=np.concatenate([s.reads for s in parts]),
    )


class _Segment(NamedTuple):
    """Sums over one segment of all chains; arrays that are not requested are empty."""

    length: int
    up: Array  # [P, C, n]
    spin: Array  # [P, C, n]
    rejections: Array  # [P, R - 1]
    products: Array  # [P, n, n]
    forward: Array  # [P, C, R - 1]
    backward: Array  # [P, C, R - 1]
    reads: Array  # [length, P, C, n]


def _segment(
    simulation: ChainSimulation, rules: Rules, lengths: list[int], *, pairs: bool, bridge: bool, reads: bool
) -> _Segment:
    """Run one segment in calls of the given lengths."""
    nothing, calls = np.empty(0), []
    for length in lengths:
        every = 1 if pairs or reads else 0
        found = simulation.run(rules, length, average=True, exponents=bridge, every=every)
        sums = found.ups.astype(np.float64), found.sums.astype(np.float64), found.rejections.sum(1)
        products = _products(found.reads) if pairs else nothing
        low, high = bridge_terms(simulation.betas, found.exponents) if bridge else (nothing, nothing)
        calls.append(_Segment(length, *sums, products, low, high, found.reads if reads else nothing))
    _, *totals, forward, backward, states = zip(*calls, strict=True)
    logarithms = np.logaddexp.reduce(forward), np.logaddexp.reduce(backward)
    return _Segment._make((sum(lengths), *map(_total, totals), *logarithms, np.concatenate(states)))


def _segments(sweeps: int, chains: int) -> Iterator[list[int]]:
    """Lengths of the calls of each segment; an even number of segments, unless there is one sweep."""
    wanted = _MOST_SEGMENTS if chains == 1 else max(2, min(_MOST_SEGMENTS, sweeps // _SEGMENT))
    count = min(sweeps, wanted)
    count -= count % 2 if count > 1 else 0
    edges = np.arange(count + 1) * sweeps // count
    for length in np.diff(edges).tolist():
        calls = -(-length // _CALL)
        yield [length * (c + 1) // calls - length * c // calls for c in range(calls)]


def _total(parts: Sequence[Array]) -> Array:
    return np.sum(parts, axis=0)


def _products(reads: Array) -> Array:
    """Σ s_j s_k of reads [t, P, C, n], float64 [P, n, n]."""
    problems, n = reads.shape[1], reads.shape[3]
    s = reads.transpose(1, 0, 2, 3).reshape(problems, -1, n).astype(np.float32)
    return np.matmul(s.transpose(0, 2, 1), s).astype(np.float64)


def _in_blocks(sums: list[Array], lengths: list[int]) -> Array:
    """Means per chain, or per segment of one chain, from sums [P, C, n] of every segment; [B, P, n]."""
    if sums[0].shape[1] > 1:
        return (_total(sums) / sum(lengths)).swapaxes(0, 1)
    return np.stack([s[:, 0] / length for s, length in zip(sums, lengths, strict=True)])


def _in_halves(parts: list[_Segment]) -> Array | None:
    if len(parts) == 1:
        return None
    middle = len(parts) // 2
    halves = parts[:middle], parts[middle:]
    means = [_total([s.up for s in half]) / sum(s.length for s in half) for half in halves]
    return np.concatenate([m.swapaxes(0, 1) for m in means])


def _log_blocks(terms: list[Array]) -> Array:
    """As `_in_blocks`, for sums in logarithms."""
    if terms[0].shape[1] > 1:
        return np.logaddexp.reduce(np.stack(terms)).swapaxes(0, 1)
    return np.stack(terms)[:, :, 0]
