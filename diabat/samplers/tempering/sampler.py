"""Backend ``tempering``: many Markov chains at once, with parallel tempering."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.checks import ArgumentError, check_choice, check_count, check_flag, is_integer, is_number
from diabat.ising import Ising
from diabat.samplers.answers import Moments, Samples
from diabat.samplers.base import Sampler
from diabat.samplers.capabilities import Capabilities
from diabat.samplers.diagnostics import Info, Later, Watched
from diabat.samplers.tempering.annealing import Schedule, anneal, check_schedule
from diabat.samplers.tempering.averages import averages, burn_in
from diabat.samplers.tempering.batch import Batch, Kept, require_single_precision
from diabat.samplers.tempering.ladder import even_ladder
from diabat.samplers.tempering.results import assembled, rhat_of_reads
from diabat.samplers.tempering.simulation import ChainSimulation, Method, Rules

Array = NDArray[Any]

_DEFAULT_REPLICAS, _MOST_REPLICAS = 8, 256
_MOST = 2**31 - 1


class TemperingSampler(Sampler):
    r"""Parallel tempering: heat bath or Metropolis at beta = 1, with replicas at smaller beta that exchange states.

    Every chain has R replicas at the inverse temperatures 0 = β_0 < ... < β_{R-1} = 1 of a ladder; replica r samples
    P(s)^β_r.  After every sweep neighbours swap with probability min(1, exp((β_i - β_{i+1})(A_{i+1} - A_i))), A = -E,
    for pairs with even i and with odd i in turn.  During the burn-in the ladder of each problem is adjusted so that
    all neighbours reject equally often; then it is fixed.

    ``sample``: **each read is the last state of a separate chain**, which started at random and ran ``burn_in`` sweeps.
    Reads are independent; their distance from the Boltzmann law depends on ``burn_in``.  With ``thin`` there are
    ``num_chains`` chains, and each gives a read every ``thin`` sweeps after its burn-in (read r is from chain r mod
    num_chains); errors of their averages are those of independent chains.

    ``moments``: averages over ``num_chains`` chains and ``sweeps`` sweeps after the burn-in of P(s_j = +1 | rest), the
    Rao-Blackwell form of the average of s_j.  ``Moments.num_reads``, which smoothing uses, is num_chains · sweeps, the
    states in the average.  The standard error is that of independent chains (of segments, if there is one chain), but
    at least two thirds of that of num_reads independent reads: chains cannot measure modes that none of them visited.
    log Z is computed on request; diagnostics when ``info`` is read, from averages that it keeps, 12 to 20 bytes for
    each chain of each spin.

    With a ``schedule`` a chain has one replica, which is led along ascending β to states of low energy.  Such reads
    follow no Boltzmann law: ``capabilities.law`` is ``annealed``, no gradient is estimated from them, and moments are
    averages over ``num_reads`` of them.

    Fields and couplings are rounded to float32.  P(s | rest) has a relative error of about 1e-6 and an absolute error
    of 2^-33: a spin never points against a local field above about 11.4, which should happen less than once in 2^33
    draws.  Random numbers are Philox4x32-10 of (seed, problem, chain, replica, sweep, spin): the draw of a problem
    depends on its index in the batch, not on other problems, threads, or blocks.

    Args:
        num_replicas: R, from 1 (plain chains at beta = 1) to 256; None for 8.
        betas: The ladder, ascending to 1.0; excludes ``num_replicas`` and is not adjusted.
        schedule: β along which the chain of each read is annealed, ascending from 0 or more, in units of 1 over the
            energy of the problem.  The sweeps of ``burn_in`` are divided evenly among them.  ``auto`` chooses one for
            every sweep and problem, from 1/σ_j to 5/σ_j of its spins, σ_j² = h_j² + Σ_k J_jk² + Σ_{k<l} K_jkl².  A read
            is the last state of its chain; with ``track_lowest`` the lowest after any sweep.  Excludes replicas,
            ``thin`` and ``persistent``.
        burn_in: Sweeps before the first read, at least 1.
        sweeps: Sweeps of each chain that ``moments`` averages over.
        num_chains: Chains of each problem behind ``moments`` and thinned reads.
        thin: Sweeps between reads of one chain; None uses a separate chain for every read.
        method: ``heat_bath`` or ``metropolis``; None is ``metropolis`` along a schedule, else ``heat_bath``.
        num_reads: Reads that the ``covariance`` estimator draws.
        persistent: Chains continue from the end of the last call (see ``chains``), if the number of chains, the
            batch shape and the number of couplings are the same; the ladder is kept as well.  The result then
            depends on earlier calls, and each call should have a different seed.
        track_lowest: ``sample`` keeps the state of lowest energy after any sweep, of all chains and replicas, in
            ``Samples.tracked``; :meth:`Samples.lowest` reports it.
        threads: Number of threads; None for as many as torch uses.

    Raises:
        ValueError: If an option is out of range.
    """

    name = "tempering"

    def __init__(
        self,
        *,
        num_replicas: int | None = None,
        betas: tuple[float, ...] | None = None,
        schedule: Schedule | None = None,
        burn_in: int = 64,
        sweeps: int = 64,
        num_chains: int = 16,
        thin: int | None = None,
        method: Method | None = None,
        num_reads: int = 1000,
        persistent: bool = False,
        track_lowest: bool = False,
        threads: int | None = None,
    ) -> None:
        burn_in = check_count("burn_in", burn_in, most=_MOST)
        sweeps = check_count("sweeps", sweeps, most=_MOST)
        num_chains = check_count("num_chains", num_chains, most=_MOST)
        thin = check_count("thin", thin, most=_MOST, optional=True)
        threads = check_count("threads", threads, most=_MOST, optional=True)
        self.schedule = check_schedule(schedule, burn_in)
        if method is None:
            method = "heat_bath" if self.schedule is None else "metropolis"
        check_choice("method", method, get_args(Method))
        check_flag("persistent", persistent)
        check_flag("track_lowest", track_lowest)
        num_reads = check_count("num_reads", num_reads)
        if self.schedule is not None:
            _refuse_beside_schedule(num_replicas=num_replicas, betas=betas, thin=thin, persistent=persistent)
            num_replicas = 1
        self.ladder = _check_ladder(num_replicas, betas)
        self.tuned = betas is None
        self.burn_in, self.sweeps, self.num_chains, self.thin = burn_in, sweeps, num_chains, thin
        self.method, self.num_reads = method, num_reads
        self.persistent, self.track_lowest, self.threads = persistent, track_lowest, threads
        self._kept: Kept | None = None

    @property
    def num_replicas(self) -> int:
        """R."""
        return len(self.ladder)

    @cached_property
    def capabilities(self) -> Capabilities:
        """Any problem that fits in memory; log Z if the ladder of every problem begins at β = 0."""
        if self.schedule is not None:
            return Capabilities(law="annealed", three_body=True, edges=True, gradients=())
        return Capabilities(
            three_body=True, edges=True, log_partition=bool(self.ladder[0] == 0), remembers=self.persistent
        )

    @property
    def watched(self) -> tuple[Watched, ...]:
        """Whether the chains have mixed, with the limits of docs/tempering.md; nothing of annealed chains."""
        if self.schedule is not None:
            return ()
        apart = "chains are in different modes; more num_replicas, then more burn_in and sweeps"
        alone = "one chain cannot show whether it has mixed; more num_chains"
        return (
            Watched("rhat_max", "R-hat, largest", most=1.3, advice=alone if self.num_chains == 1 else apart),
            Watched("effective_sample_size", "effective samples", pick="min"),
            Watched(
                "autocorrelation_time",
                "autocorrelation time in sweeps",
                most=self.burn_in / 10,
                advice="burn_in should be ten times this value",
            ),
            Watched(
                "swap_rates", "swap rate, smallest", least=0.2, advice="more num_replicas or a longer burn_in"
            ),
        )

    @property
    def chains(self) -> Tensor | None:
        """Spins of the kept chains by rung, a copy, int8 ±1 [num_chains, num_replicas, *batch, n], or None.

        Set it to continue from a checkpoint: the next call starts from these spins if their shape fits.

        Raises:
            ValueError: If set on a sampler that is not ``persistent``, or to a value that is not such a tensor.
        """
        return None if self._kept is None else self._kept.spins.clone()

    @chains.setter
    def chains(self, spins: Tensor) -> None:
        if not self.persistent:
            raise ArgumentError("chains", "a sampler with persistent=True", "one that keeps no chains")
        self._kept = Kept.checked(spins, self.num_replicas)

    def reset(self) -> None:
        """Discard the kept chains and their ladder: the next call starts at random."""
        self._kept = None

    # Chains are not buffers: their shape is that of the last call, and .to() must not convert spins or ladder.
    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Add the kept chains, their ladder and the number of their couplings, as copies."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._kept is not None:
            destination.update({prefix + name: tensor for name, tensor in self._kept.tensors().items()})

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        """Load the chains of a state of any shape; a state without chains resets the sampler.

        Raises:
            ValueError: If there are chains but the sampler is not persistent, or the chains do not fit the sampler.
        """
        state = {name: state_dict[prefix + name] for name in Kept.NAMES if prefix + name in state_dict}
        if state and not self.persistent:
            raise ArgumentError("state", "no chains for a sampler with persistent=False", "some")
        kept = Kept.from_tensors(state, self.num_replicas) if state else None
        others = {
            name: tensor for name, tensor in state_dict.items() if name.removeprefix(prefix) not in state
        }
        super()._load_from_state_dict(others, prefix, *rest)
        self._kept = kept

    def _require(self, ising: Ising) -> None:
        super()._require(ising)
        require_single_precision(self.name, ising)

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        if self.schedule is not None:
            return self._annealed(ising, num_reads, seed, self.schedule)
        chains, thin = num_reads if self.thin is None else min(self.num_chains, num_reads), self.thin or 0
        sweeps = self.burn_in + thin * -(-num_reads // chains)
        batch, rules = self._begun(ising, seed, chains, track=self.track_lowest)
        found, rates = [], []
        for simulation in batch.simulations:
            rates.append(self._burn_in(simulation, batch, rules))
            if thin:
                found.append(simulation.run(rules, sweeps - self.burn_in, every=thin).reads)
            else:
                found.append(simulation.spins()[None, :, :, -1])
        spins = batch.joined.reads(found, num_reads).to(ising.fields.device)
        info = self._ended(batch, chains, sweeps, rates)
        if thin:
            info |= rhat_of_reads(spins, chains)
        tracked = batch.lowest() if self.track_lowest else None
        return Samples(spins, ising.visible_mask, info=Info(info), tracked=tracked)

    def _annealed(self, ising: Ising, num_reads: int, seed: int, schedule: Schedule) -> Samples:
        """The last, or the lowest, states of chains that are led along the schedule."""
        batch, rules = self._begun(ising, seed, num_reads, track=self.track_lowest)
        for simulation in batch.simulations:
            anneal(simulation, rules, schedule, self.burn_in)
        found = [s.lowest if self.track_lowest else s.spins()[:, :, -1] for s in batch.simulations]
        spins = batch.joined.reads([states[None] for states in found], num_reads).to(ising.fields.device)
        info = self._ended(batch, num_reads, self.burn_in, []) | {"schedule": schedule}
        del info["swap_rates"]
        return Samples(spins, ising.visible_mask, info=Info(info))

    def _moments(self, ising: Ising, correlations: bool, seed: int, log_partition: bool = False) -> Moments:
        if self.schedule is not None:
            return super()._moments(ising, correlations, seed)
        batch, rules = self._begun(ising, seed, self.num_chains, averaged=True)
        wanted, found = {"pairs": correlations, "bridge": log_partition}, []
        for simulation in batch.simulations:
            self._burn_in(simulation, batch, rules)
            found.append(averages(simulation, rules, self.sweeps, **wanted))
        rates, sweeps = [a.acceptance for a in found], self.burn_in + self.sweeps
        info = self._ended(batch, self.num_chains, sweeps, rates)
        return assembled(batch, found, self.num_chains * self.sweeps, wanted, info)

    def _begun(
        self, ising: Ising, seed: int, chains: int, *, track: bool = False, averaged: bool = False
    ) -> tuple[Batch, Rules]:
        """The chains of a call at their starts."""
        threads = torch.get_num_threads() if self.threads is None else self.threads
        kept = self._kept if self.persistent else None
        batch = Batch(ising, chains, self.ladder, kept, track=track, averaged=averaged)
        return batch, Rules(seed, self.method, threads)

    def _burn_in(self, simulation: ChainSimulation, batch: Batch, rules: Rules) -> Array:
        tuned = batch.start is not None and batch.start.betas is not None
        return burn_in(simulation, rules, self.burn_in, tune=self.tuned and not tuned)

    def _ended(self, batch: Batch, chains: int, sweeps: int, rates: list[Array]) -> dict[str, Any]:
        """Keep the chains, if they persist; returns entries of ``info``, given the swap rates of each bucket."""
        if self.persistent:
            self._kept = batch.kept()
        joined, betas, replicas = batch.joined, [s.betas for s in batch.simulations], self.num_replicas
        return {
            "method": self.method,
            "num_chains": chains,
            "num_replicas": replicas,
            "sweeps": sweeps,
            "updates": joined.flat.total_visible * replicas * chains * sweeps,
            "betas": Later(lambda: joined.per_problem(betas)),
            "continued": batch.start is not None,
            "swap_rates": Later(lambda: joined.per_problem(rates)),
        }


def _refuse_beside_schedule(**options: Any) -> None:
    """Refuse options of chains that stay at one temperature."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise ArgumentError(name, f"cannot be combined with schedule, got {value!r}.")


def _check_ladder(num_replicas: Any, betas: Any) -> Array:
    """Check the options and return the initial ladder."""
    if betas is None:
        count = _DEFAULT_REPLICAS if num_replicas is None else num_replicas
        if not is_integer(count) or not 1 <= count <= _MOST_REPLICAS:
            raise ArgumentError(
                "num_replicas", f"an integer between 1 and {_MOST_REPLICAS}", f"{num_replicas!r}"
            )
        return even_ladder(int(count))
    if num_replicas is not None:
        raise ArgumentError("num_replicas", f"cannot be combined with betas, got {num_replicas!r}.")
    rungs = list(betas) if isinstance(betas, list | tuple) else []
    numbers = all(is_number(b) and math.isfinite(b) for b in rungs)
    ascending = numbers and all(a < b for a, b in pairwise(rungs))
    if not (rungs and len(rungs) <= _MOST_REPLICAS and ascending and rungs[0] >= 0 and rungs[-1] == 1):
        raise ArgumentError(
            "betas", f"up to {_MOST_REPLICAS} ascending numbers from 0 or more to 1.0", f"{betas!r}"
        )
    return np.array(rungs, dtype=np.float64)
