"""A batch of Ising models as parallel-tempering simulations, and the chains that are kept between calls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.compute.memory import require_memory
from diabat.ising import Ising
from diabat.ising.checks import is_within
from diabat.samplers.answers import lowest_state
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.flat import Bucket, Flat, flat, flat_fields, flat_interactions
from diabat.samplers.tempering.simulation import ChainSimulation, EdgeSimulation, Simulation

Array = NDArray[Any]

_LARGEST_COUPLING = 1e25


def require_single_precision(sampler: str, ising: Ising) -> None:
    """Refuse couplings whose sums overflow float32.

    Fields beyond float32 are clipped: the spin is still determined by its field, unless couplings are as large.

    Raises:
        UnsupportedError: If a coupling is too large; the message names the sampler.
    """
    for name, value in zip(("couplings", "three_body"), ising.terms[1:], strict=True):
        if value is None or is_within(value, _LARGEST_COUPLING):
            continue
        if (largest := float(value.detach().abs().max())) > _LARGEST_COUPLING:
            raise UnsupportedError(
                name,
                f"sampler '{sampler}' computes in float32, expected values up to "
                f"{_LARGEST_COUPLING:g}, got {largest:.3g}.",
            )


@dataclass(frozen=True, eq=False)
class Kept:
    """Chains kept between two calls."""

    NAMES: ClassVar[tuple[str, ...]] = ("chains", "couplings", "ladder")

    spins: Tensor  # by rung, int8 [C, R, *batch, n]
    couplings: int | None  # number of distinct couplings of the batch; None if unknown
    betas: Array | None  # ladder of every problem of the flat batch, float64 [N, R]; None if not tuned yet

    @classmethod
    def checked(cls, spins: Any, replicas: int) -> Kept:
        """Check and copy the spins that a caller gives.

        Raises:
            ValueError: If they are not int8 ±1 of shape [C, R, *batch, n].
        """
        expected = f"expected int8 spins of -1 and +1, [num_chains, {replicas}, *batch, n]"
        if not isinstance(spins, Tensor):
            raise ArgumentError("chains", f"{expected}, got {type(spins).__name__}.")
        if spins.dtype != torch.int8 or spins.ndim < 3 or spins.shape[1] != replicas:
            raise ArgumentError("chains", f"{expected}, got {spins.dtype} of shape {list(spins.shape)}.")
        if not bool((spins.abs() == 1).all()):
            raise ArgumentError("chains", f"{expected}, got other values.")
        return cls(spins.detach().cpu().clone(), None, None)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], replicas: int) -> Kept:
        """Check and copy the result of :meth:`tensors`.

        Raises:
            ValueError: If chains are missing, chains or ladder have another number of replicas or problems, or the
                ladder is not ascending.
        """
        if "chains" not in tensors:
            names = ", ".join(tensors)
            raise ArgumentError("state", "the chains of a persistent sampler", names)
        spins = cls.checked(tensors["chains"], replicas).spins
        couplings = int(tensors["couplings"]) if "couplings" in tensors else None
        if "ladder" not in tensors:
            return cls(spins, couplings, None)
        ladder = tensors["ladder"].cpu().numpy().copy()
        expected, got = [math.prod(spins.shape[2:-1]), replicas], list(ladder.shape)
        if got != expected:
            raise ArgumentError("state", f"a ladder of shape {expected}", got)
        if ladder.dtype != np.float64 or not (np.isfinite(ladder).all() and (np.diff(ladder) >= 0).all()):
            raise ArgumentError("state", "a ladder of ascending float64", "other values")
        return cls(spins, couplings, ladder)

    def tensors(self) -> dict[str, Tensor]:
        """Copies of all tensors under ``NAMES``: ``chains``, and if they are known ``couplings`` and ``ladder``."""
        found = {"chains": self.spins.clone()}
        if self.couplings is not None:
            found["couplings"] = torch.tensor(self.couplings)
        if self.betas is not None:
            found["ladder"] = torch.from_numpy(self.betas.copy())
        return found

    def fits(self, ising: Ising, chains: int, replicas: int) -> bool:
        """Whether a call can continue these chains."""
        shape = (chains, replicas, *ising.fields.shape)
        return tuple(self.spins.shape) == shape and self.couplings in (None, _count_couplings(ising))

    def of(self, bucket: Bucket) -> tuple[Array, Array | None]:
        """Spins of a bucket, [P, C, R, m], padding spins +1, and the ladder of each problem, if it is tuned."""
        spins = self.spins.reshape(*self.spins.shape[:2], -1, bucket.n).numpy()
        padded = np.concatenate((spins, np.ones((*spins.shape[:-1], 1), np.int8)), axis=-1)
        own = padded[:, :, bucket.rows[:, None], bucket.members].transpose(2, 0, 1, 3)
        return own, None if self.betas is None else self.betas[bucket.rows]


class Joined(NamedTuple):
    """Puts values of the problems in buckets into the shape of the batch, on its device."""

    flat: Flat
    buckets: Sequence[Bucket]
    device: torch.device

    def per_problem(self, values: Sequence[Array], fill: float = math.nan) -> Tensor:
        """[P, ...] of each bucket as [*batch, ...]; ``fill`` for problems without visible spins."""
        return self.flat.per_problem(self.buckets, values, fill).to(self.device)

    def per_spin(self, values: Sequence[Array]) -> Tensor:
        """[P, m] of each bucket as [*batch, n]; 0 for invisible spins."""
        return self.flat.per_spin(self.buckets, values).to(self.device)

    def per_pair(self, values: Sequence[Array]) -> Tensor:
        """[P, m, m] of each bucket as [*batch, n, n]; 0 for invisible spins."""
        return self.flat.per_pair(self.buckets, values).to(self.device)

    def reads(self, values: Sequence[Array], count: int) -> Tensor:
        """The first ``count`` of int8 [t, P, C, m] of each bucket as [count, *batch, n], all chains of a time first."""
        shapes = [(v.shape[0] * v.shape[2], v.shape[1], v.shape[3]) for v in values]
        parts = [v.swapaxes(1, 2).reshape(s)[:count] for v, s in zip(values, shapes, strict=True)]
        return self.flat.reads(self.buckets, parts, count)


class Batch:
    """All problems of a call: C chains of each, with the inverse temperatures of one ladder.

    Problems without visible spins have no chains.

    Args:
        ising: The problems.
        chains: C.
        ladder: β of the rungs, [R].
        kept: Chains to continue, if they fit.
        track: Keep the lowest state of every chain.
        averaged: Whether runs average.

    Attributes:
        joined: Its buckets, and the way back.
        simulations: One per bucket.
        start: The kept chains, if this call continues them, or None.

    Raises:
        ValueError: If the chains do not fit in memory.
    """

    def __init__(
        self, ising: Ising, chains: int, ladder: Array, kept: Kept | None = None, *, track: bool = False,
        averaged: bool = False,
    ) -> None:  # fmt: skip
        replicas, whole, self._terms = len(ladder), flat(ising), _arrays(ising)
        self.ising, self._shape = ising, (chains, replicas)
        self.start = kept if kept is not None and kept.fits(ising, *self._shape) else None
        # The spins of all replicas, and a copy of them as a result.
        needed = (2 * replicas + track) * chains * ising.fields.numel()
        require_memory(needed, f"{chains} chains of {replicas} replicas of {len(whole.pattern)} problems")
        # Edges name spins by their number; of nothing visible there is a bucket without problems.
        divided = ising.edges is None and whole.total_visible > 0
        buckets = whole.buckets(_cost) if divided else (whole.undivided,)
        self.joined, self.simulations = Joined(whole, buckets, ising.fields.device), []
        for bucket in buckets:
            spins, tuned = (None, None) if self.start is None else self.start.of(bucket)
            betas = np.full((len(bucket.rows), replicas), ladder) if tuned is None else tuned
            self.simulations.append(
                self._simulation(
                    bucket, chains=chains, betas=betas, spins=spins, track=track, averaged=averaged
                )
            )

    def _simulation(self, bucket: Bucket, **options: Any) -> ChainSimulation:
        """The simulation of the problems of a bucket."""
        h, J, K, index = self._terms
        fields, starts, queries = bucket.gather(h), bucket.starts, bucket.rows
        if not len(queries):
            return Simulation(None, None, fields, starts, queries, **options)
        if index is not None:
            seen = bucket.spins < bucket.n
            return EdgeSimulation(index, J[bucket.couplings], seen, fields, starts, queries, **options)
        J = None if J is None else bucket.interactions(J, 2)
        K = None if K is None else bucket.interactions(K, 3)
        return Simulation(J, K, fields, starts, queries, **options)

    def kept(self) -> Kept:
        """The current chains."""
        chains, replicas = self._shape
        by_rung = [s.spins().swapaxes(0, 1) for s in self.simulations]  # [C, P, R, m]
        spins = self.joined.reads(by_rung, chains * replicas).reshape(*self._shape, *self.ising.fields.shape)
        betas = np.ones((self.ising.num_problems, replicas))
        for bucket, simulation in zip(self.joined.buckets, self.simulations, strict=True):
            betas[bucket.rows] = simulation.betas
        return Kept(spins, _count_couplings(self.ising), betas)

    def lowest(self) -> Tensor:
        """The tracked state of lowest energy of each problem, of all its chains, int8 [*batch, n]."""
        by_chain = self.joined.reads([s.lowest[None] for s in self.simulations], self._shape[0])
        return lowest_state(self.ising, by_chain.to(self.ising.fields.device)).spins


def _arrays(ising: Ising) -> tuple[Any, ...]:
    """Fields [N, n], distinct J [C, n, n] and K, or values [C, E] of edges, None, and the edges [E, 2]."""
    edges, terms = ising.edges, tuple[Tensor | None, ...]()
    if edges is None:
        terms = (flat_fields(ising), *flat_interactions(ising), None)
    else:
        terms = flat_fields(ising), edges.values.reshape(edges.lead.numel(), edges.count), None, edges.index
    return tuple([None if t is None else t.numpy(force=True) for t in terms])


def _count_couplings(ising: Ising) -> int:
    """Number of distinct couplings."""
    coupled = ising.held_couplings is not None or ising.three_body is not None
    return ising.num_couplings if coupled else 0


def _cost(groups: int, problems: int, spins: int) -> float:
    """Number of additions of a sweep, plus a constant for the calls of one bucket, for 16 chains."""
    return 1e5 + groups * problems * float(spins) ** 2
