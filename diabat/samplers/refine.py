"""Backend ``refine``: reads of another backend, followed by heat-bath sweeps at beta = 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from diabat.checks import ArgumentError, check_count
from diabat.ising import Ising
from diabat.samplers.answers import Samples
from diabat.samplers.base import Sampler
from diabat.samplers.capabilities import FROM_READS, Capabilities
from diabat.samplers.diagnostics import Watched
from diabat.samplers.registry import build_base
from diabat.samplers.seeds import child_seed
from diabat.samplers.tempering.batch import Batch, Kept, require_single_precision
from diabat.samplers.tempering.simulation import Rules


class RefineSampler(Sampler):
    r"""Reads of a base backend, moved towards the Boltzmann law by k heat-bath sweeps.

    Each sweep visits the visible spins in order and draws each from P(s_j = +1 | rest) = 1/(1 + exp(-2 f_j)),
    f_j = h_j + Σ_k J_jk s_k + Σ_{k<l} K_jkl s_k s_l, of the given problem.  The Boltzmann law at beta = 1 is
    invariant: no sweep increases the total variation distance to it, for any base.  The bias vanishes as k grows:
    fast at moderate couplings, slowly where the law has several modes.

    The sweeps are those of ``tempering``, with one chain for each read and one replica: fields and couplings are
    rounded to float32, P(s | rest) is right to about 1e-6 of itself and to 2^-33, and the random numbers are
    Philox4x32-10 of (seed, problem, read, sweep, spin), independent of other problems and of the number of threads.

    The declared law is that of the base.  If it is not Boltzmann, the reads tend to Boltzmann, but k sweeps guarantee
    no distance.

    Args:
        sampler: The base: a name, or a sampler.
        options: Options of the base, if ``sampler`` is a name.
        sweeps: k, at least 0; 0 gives the base's own reads.
        num_reads: Reads behind ``moments``.

    Raises:
        ValueError: If the base cannot draw samples or has learnable parameters, an option has a bad value, or
            ``options`` are given with a sampler object.
        TypeError: If ``sampler`` is neither name nor sampler, or the base has no such option.
    """

    name = "refine"

    # str comes first in the union: a configuration reports the first member.
    def __init__(
        self,
        sampler: str | Sampler = "dqa",
        *,
        options: dict[str, Any] | None = None,
        sweeps: int = 4,
        num_reads: int = 1000,
    ) -> None:
        sweeps = check_count("sweeps", sweeps, least=0)
        if sweeps >= 2**31:
            raise ArgumentError("sweeps", "an integer below 2^31", sweeps)
        num_reads = check_count("num_reads", num_reads)
        self.base = build_base(sampler, options, not_learnable="because reads cannot train them")
        self.sweeps, self.num_reads = sweeps, num_reads

    @property
    def capabilities(self) -> Capabilities:
        """Law and limits of the base; moments are averages over reads.  No gradients if the base has none."""
        base = self.base.capabilities
        return Capabilities(
            law=base.law, max_spins=base.max_spins, three_body=base.three_body, edges=True,
            gradients=FROM_READS if base.gradients else (), note=base.note,
        )  # fmt: skip

    @property
    def watched(self) -> tuple[Watched, ...]:
        """The watched facts of the base."""
        return tuple(fact.below("base", self.base.name) for fact in self.base.watched)

    def _require(self, ising: Ising) -> None:
        super()._require(ising)
        if self.sweeps:
            require_single_precision(self.name, ising)

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        drawn = self.base.sample(ising, num_reads, seed=child_seed(seed, 0))
        spins = drawn.spins
        if self.sweeps:  # with a stream of their own, not that of the base
            (stream,) = np.random.SeedSequence(seed, spawn_key=(1,)).generate_state(1, np.uint64)
            # One chain per read, with one replica at beta = 1.
            start = Kept(spins.detach().cpu()[:, None], None, np.ones((ising.num_problems, 1)))
            batch = Batch(ising, num_reads, np.ones(1), start)
            for simulation in batch.simulations:
                simulation.run(Rules(int(stream), threads=torch.get_num_threads()), self.sweeps)
            spins = batch.kept().spins[:, 0].to(spins.device)
        return Samples(spins, ising.visible_mask, {"base": drawn.info, "sweeps": self.sweeps})
