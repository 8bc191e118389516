"""Backend ``refine``: the reads of another backend, followed by sweeps of heat bath at beta = 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from diabat.checks import ArgumentError, check_count
from diabat.ising import Ising
from diabat.samplers.answers import Samples
from diabat.samplers.base import Capabilities, Sampler
from diabat.samplers.diagnostics import Watched
from diabat.samplers.grouping import Group, grouped
from diabat.samplers.heat_bath import heat_bath
from diabat.samplers.registry import build_base


class RefineSampler(Sampler):
    r"""Reads of a base backend, moved towards the Boltzmann law by k sweeps of heat bath.

    Each sweep visits the visible spins in order and draws each from P(s_j = +1 | rest) = 1/(1 + exp(-2 f_j)),
    f_j = h_j + Σ_k J_jk s_k + Σ_{k<l} K_jkl s_k s_l, of the problem as it was asked for.  The Boltzmann law
    at beta = 1 is invariant, so that no sweep increases the total variation to it, whatever the base, and
    the bias vanishes as k grows: fast at moderate couplings, slowly where the law has several modes.

    The law is Boltzmann if that of the base is.  Otherwise it stays declared as the base's: it tends to
    Boltzmann, but k finite sweeps promise no distance.  Log-weights of the base are kept as they are; where
    they correct its reads to the Boltzmann law they still do, because that law is invariant.

    Args:
        sampler: The base: a name, or a sampler.
        options: Options of the base, if it is given by name.
        sweeps: k, at least 0; 0 gives the base's own reads.
        num_reads: Reads behind ``moments``.

    Raises:
        ValueError: If the base cannot draw samples or has learnable parameters, an option has a bad value, or
            ``options`` come with a sampler that is built already.
        TypeError: If ``sampler`` is neither name nor sampler, or the base has no such option.
    """

    name = "refine"

    # The name comes first in the union: a configuration reports its first member.
    def __init__(
        self,
        sampler: str | Sampler = "dqa",
        *,
        options: dict[str, Any] | None = None,
        sweeps: int = 4,
        num_reads: int = 1000,
    ) -> None:
        check_count("sweeps", sweeps, least=0)
        if sweeps >= 2**31:
            raise ArgumentError("sweeps", f"expected an integer below 2^31, got {sweeps}.")
        check_count("num_reads", num_reads)
        self.base, self.sweeps, self.num_reads = build_base(sampler, options), sweeps, num_reads
        if not self.base.capabilities.samples:
            raise ArgumentError(
                "sampler",
                f"expected a backend that draws samples, got '{self.base.name}', "
                "which computes moments only.",
            )
        if learnable := len(list(self.base.parameters())):
            raise ArgumentError(
                "sampler",
                "expected a base without learnable parameters, which reads cannot train, "
                f"got '{self.base.name}' with {learnable}.",
            )

    @property
    def capabilities(self) -> Capabilities:
        """Law and limits of the base; moments are averages over reads."""
        base = self.base.capabilities
        return Capabilities(
            law=base.law,
            max_spins=base.max_spins,
            three_body=base.three_body,
            per_problem_couplings=base.per_problem_couplings,
        )

    @property
    def watched(self) -> tuple[Watched, ...]:
        """That of the base: what the sweeps start from."""
        return tuple(fact.below("base", self.base.name) for fact in self.base.watched)

    @property
    def expected_error(self) -> str | None:
        """What the sweeps leave of the error of the base."""
        if self.base.capabilities.law == "boltzmann":
            return self.base.expected_error
        return (
            f"that of '{self.base.name}', which {self.sweeps} sweeps of heat bath move towards the Boltzmann law; "
            "4 after a 5 ns anneal leave a mean |error| of P of .001 at g = 0.6, .008 at 1 and .032 at 2 (docs/dqa.md)"
        )

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        # Two streams, so that the sweeps do not repeat the numbers behind the reads they start from.
        of_base, of_sweeps = np.random.SeedSequence(seed).spawn(2)
        base_seed = int(of_base.generate_state(1, np.uint64)[0] >> 1)  # seeds are below 2^63
        drawn = self.base.sample(ising, num_reads, seed=base_seed)
        spins = drawn.spins
        if self.sweeps:
            spins = _swept(spins, ising, self.sweeps, np.random.Generator(np.random.PCG64(of_sweeps)))
        info = {"base": dict(drawn.info), "sweeps": self.sweeps}
        return Samples(spins, ising.visible_mask, drawn.log_weights, info)


def _cost(groups: int, problems: int, spins: int) -> float:
    """Additions of a sweep, plus a constant for the calls of one tier, in the same unit at 100 reads."""
    return 5e3 + groups * problems * float(spins) ** 2


def _swept(spins: Tensor, ising: Ising, sweeps: int, rng: np.random.Generator) -> Tensor:
    """Sweep int8 reads [R, *batch, n] into new ones."""
    reads, total = spins.shape[0], ising.fields.numel()
    # int8 [N·n + 1, R], reads fastest; the last row is where padding is read from and written to.
    padded = torch.full((total + 1, reads), -1, dtype=torch.int8)
    padded[:-1] = spins.reshape(reads, total).T  # by torch, several times faster than numpy at this
    cells = padded.numpy()
    for group in grouped(ising, _cost):
        rows = group.tier.cells.transpose(1, 2).cpu().numpy()  # [G, m, Q]
        state = cells[rows]  # [G, m, Q, R]
        heat_bath(state, *_parameters(group), sweeps=sweeps, uniforms=rng.random)
        cells[rows] = state
    return padded[:-1].T.contiguous().reshape(spins.shape).to(spins.device)


def _parameters(group: Group) -> tuple[Any, Any, Any]:
    """Fields, couplings and three-body terms of a group, float64."""
    parts = (group.fields, group.couplings, group.three_body)
    h, J, K = (None if t is None else t.detach().double().cpu().numpy() for t in parts)
    return h, J, K
